"""Colour: pointwise functions of three planes with drawn parameters; one's own in a few lines."""

import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from inspect import isfunction, signature
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from fnpipe import keys
from fnpipe.keys import Key, fold_in
from fnpipe.ops import pixel
from fnpipe.stages.stage import check_number, check_probability, stage
from fnpipe.types import ArgumentError, Plane
from fnpipe.values import brief


Planes = tuple[Plane, Plane, Plane]
Row = Float32[Tensor, "b q"]


@runtime_checkable
class Distribution(Protocol):
    """A number to be drawn once a sample: ``draw(key)`` gives [b], float64."""

    def draw(self, key: Key) -> Float64[Tensor, " b"]: ...


@stage
class uniform:
    """A number in [low, high), evenly."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_number("uniform", "low", self.low, -1e30)
        check_number("uniform", "high", self.high, self.low)

    def draw(self, key: Key) -> Float64[Tensor, " b"]:
        if self.low == self.high:
            return torch.full(key.sample.shape, self.low, dtype=torch.float64)
        return keys.uniform(key, low=self.low, high=self.high)


@stage
class sometimes:
    """``then`` with probability ``p``, else the number ``otherwise``."""

    p: float
    then: Distribution
    otherwise: float

    def __post_init__(self) -> None:
        check_probability("sometimes", "p", self.p)
        _check_drawable("sometimes: then", self.then)
        check_number("sometimes", "otherwise", self.otherwise, -1e30)

    def draw(self, key: Key) -> Float64[Tensor, " b"]:
        own = fold_in(key, "sometimes")
        # One inside another wants chances of its own: under this key it would happen with this one.
        then = self.then.draw(own if isinstance(self.then, sometimes) else key)
        return torch.where(keys.bernoulli(own, self.p), then, self.otherwise)


@dataclass(frozen=True)
class pointwise:
    """A pure function ``fn(r, g, b, *parameters) -> (r, g, b)`` as a colour operation.

    Planes are float32 codes in [0, 255]; parameters broadcast against them. Write it with
    ``+ - *``, tensor / tensor, and torch's ``where minimum maximum clamp floor``;
    :func:`fnpipe.audit` names what stands outside. Usable as a decorator; :meth:`drawn` makes a
    stage of it.
    """

    fn: Callable[..., Planes]

    def __post_init__(self) -> None:
        if not isfunction(self.fn):
            raise ArgumentError(
                f"pointwise wanted a function of r, g, b and parameters, came {self.fn!r:.80}"
            )
        if len(signature(self.fn).parameters) < 3:
            raise ArgumentError(
                f"pointwise: {self.fn.__qualname__} wanted to take r, g, b and its parameters, "
                f"takes {signature(self.fn)}"
            )
        object.__setattr__(self, "__doc__", self.fn.__doc__)
        object.__setattr__(self, "__module__", self.fn.__module__)
        object.__setattr__(self, "__qualname__", self.fn.__qualname__)

    def __call__(self, r: Plane, g: Plane, b: Plane, *parameters: Plane) -> Planes:
        return self.fn(r, g, b, *parameters)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # As a decorator it has taken its function's name, and pickle finds it there.
        there = getattr(sys.modules.get(self.fn.__module__), self.fn.__qualname__, None)
        return self.fn.__qualname__ if there is self else (pointwise, (self.fn,))

    def __repr__(self) -> str:
        return self.fn.__qualname__

    def drawn(self, *, name: str | None = None, **draws: Distribution | float) -> "color":
        """A stage that draws each parameter by its distribution, or takes a number as it is.

        Errors: ArgumentError where the names are not the function's parameters, and for what is
        neither.
        """
        wanted = list(signature(self.fn).parameters)[3:]
        if set(draws) != set(wanted):
            raise ArgumentError(
                f"{self.fn.__qualname__}.drawn wanted {', '.join(wanted) or 'no parameter'}, "
                f"came {', '.join(draws) or 'none'}"
            )
        fixed = tuple(
            (n, uniform(d, d) if isinstance(d, int | float) else d)
            for n, d in ((n, draws[n]) for n in wanted)
        )
        for n, d in fixed:
            _check_drawable(f"{self.fn.__qualname__}.drawn: {n}", d)
        check_planes(self.fn, len(fixed))
        return color(self, fixed, name or self.fn.__name__)


def check_planes(fn: Callable[..., Any], count: int) -> None:
    """Errors: ArgumentError where ``fn`` of three planes and ``count`` numbers makes no planes.

    Sixteen pixels tell: of fewer planes a renderer would make images of fewer channels.
    """
    made = fn(*torch.full((3 + count, 16), 0.5))
    planes = [p for p in made if isinstance(p, Tensor)] if isinstance(made, tuple | list) else []
    if len(planes) != 3 or not all(p.shape == (16,) and p.dtype == torch.float32 for p in planes):
        raise ArgumentError(
            f"{fn.__qualname__} wanted to return r, g, b, float32 planes of their shape, came "
            f"{brief(made):.80}"
        )


@dataclass(frozen=True, repr=False)
class color:
    """A pointwise function with the distributions of its parameters: :meth:`pointwise.drawn`."""

    function: pointwise
    draws: tuple[tuple[str, Distribution], ...]
    name: str

    def draw(self, key: Key) -> Row:
        columns = [d.draw(fold_in(key, n)) for n, d in self.draws]
        if not columns:
            return torch.zeros(*key.sample.shape, 0, dtype=torch.float32)
        return torch.stack(columns, -1).to(torch.float32)

    @property
    def color(self) -> Callable[..., Planes]:
        return self.function.fn

    def __repr__(self) -> str:
        shown = [f"{n}={d!r}" for n, d in self.draws]
        if self.name != self.function.fn.__name__:
            shown.append(f"name={self.name!r}")
        return f"{self.function!r}.drawn({', '.join(shown)})"


@stage
class hsv:
    """Hue by up to ``hue`` turns either way, saturation and value by gains of 1 +- their amounts.

    Greys stay grey and black stays black (:func:`fnpipe.ops.pixel.shift_hsv`). With probability
    ``1 - p`` a sample keeps its colours.
    """

    _: KW_ONLY
    hue: float = 0.0
    saturation: float = 0.0
    value: float = 0.0
    p: float = 1.0
    name: str = "hsv"

    def __post_init__(self) -> None:
        check_number("hsv", "hue", self.hue, 0.0, 0.5)
        check_number("hsv", "saturation", self.saturation, 0.0, 1.0)
        check_number("hsv", "value", self.value, 0.0, 1.0)
        check_probability("hsv", "p", self.p)

    def draw(self, key: Key) -> Row:
        """Columns: sixths of a turn in [0, 6), saturation gain, value gain."""
        u = keys.uniform(key, 4)
        reach = torch.tensor([self.hue, self.saturation, self.value], dtype=torch.float64)
        drawn = torch.where(u[:, 3:] < self.p, (u[:, :3] * 2.0 - 1.0) * reach, 0.0)
        turns, saturation, value = drawn.unbind(1)
        sextants = torch.remainder(turns, 1.0) * 6.0
        columns = torch.stack([sextants, saturation + 1.0, value + 1.0], 1).to(torch.float32)
        # A hair below one turn rounds to 6 in float32, which is 0.
        columns[:, 0] = torch.where(columns[:, 0] < 6.0, columns[:, 0], 0.0)
        return columns

    @property
    def color(self) -> Callable[..., Planes]:
        return pixel.shift_hsv


@stage
class brightness:
    """Codes times a gain of 1 +- ``amount``, with probability ``p``."""

    amount: float
    _: KW_ONLY
    p: float = 1.0
    name: str = "brightness"

    def __post_init__(self) -> None:
        check_number("brightness", "amount", self.amount, 0.0, 1.0)
        check_probability("brightness", "p", self.p)

    def draw(self, key: Key) -> Row:
        return _draw(key, "factor", self.p, 1.0 - self.amount, 1.0 + self.amount, 1.0)

    @property
    def color(self) -> Callable[..., Planes]:
        return pixel.scale_brightness


@stage
class contrast:
    """Codes away from or towards middle grey by 1 +- ``amount``, with probability ``p``."""

    amount: float
    _: KW_ONLY
    p: float = 1.0
    name: str = "contrast"

    def __post_init__(self) -> None:
        check_number("contrast", "amount", self.amount, 0.0, 1.0)
        check_probability("contrast", "p", self.p)

    def draw(self, key: Key) -> Row:
        return _draw(key, "factor", self.p, 1.0 - self.amount, 1.0 + self.amount, 1.0)

    @property
    def color(self) -> Callable[..., Planes]:
        return pixel.scale_contrast


@stage
class grayscale:
    """Luma in all three channels, with probability ``p``."""

    _: KW_ONLY
    p: float = 1.0
    name: str = "grayscale"

    def __post_init__(self) -> None:
        check_probability("grayscale", "p", self.p)

    def draw(self, key: Key) -> Row:
        return _draw(key, "strength", self.p, 1.0, 1.0, 0.0)

    @property
    def color(self) -> Callable[..., Planes]:
        return pixel.blend_grayscale


@stage
class solarize:
    """Codes at or above ``threshold`` inverted, with probability ``p``."""

    threshold: float
    _: KW_ONLY
    p: float = 1.0
    name: str = "solarize"

    def __post_init__(self) -> None:
        check_number("solarize", "threshold", self.threshold, 0.0, 256.0)
        if 0 < self.threshold < 1:
            raise ArgumentError(
                f"solarize: threshold wanted a code, 0 to 256, came {self.threshold}; that share "
                f"of 255 is {self.threshold * 255:g}"
            )
        check_probability("solarize", "p", self.p)

    def draw(self, key: Key) -> Row:
        return _draw(key, "threshold", self.p, self.threshold, self.threshold, 256.0)

    @property
    def color(self) -> Callable[..., Planes]:
        return pixel.solarize


@stage
class posterize:
    """Codes with their highest ``bits`` bits only, with probability ``p``."""

    bits: int
    _: KW_ONLY
    p: float = 1.0
    name: str = "posterize"

    def __post_init__(self) -> None:
        if self.bits not in range(1, 9):
            raise ArgumentError(f"posterize: bits wanted one of 1 to 8, came {self.bits!r}")
        check_probability("posterize", "p", self.p)

    def draw(self, key: Key) -> Row:
        step = float(2 ** (8 - self.bits))
        return _draw(key, "step", self.p, step, step, 1.0)

    @property
    def color(self) -> Callable[..., Planes]:
        return pixel.posterize


def _check_drawable(what: str, given: Any) -> None:
    """Errors: ArgumentError for what is no distribution."""
    if isinstance(given, type) or not isinstance(given, Distribution):
        raise ArgumentError(
            f"{what} wanted a distribution, as fnpipe.uniform(low, high) is one, came {given!r:.80}"
        )


def _draw(key: Key, name: str, p: float, low: float, high: float, otherwise: float) -> Row:
    """One number in [low, high) with probability ``p``, else ``otherwise``: [b, 1]."""
    then = uniform(low, high)
    drawn = (then if p == 1.0 else sometimes(p, then, otherwise)).draw(fold_in(key, name))
    return drawn[:, None].to(torch.float32)
