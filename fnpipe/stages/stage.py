"""What a stage is: a frozen value whose ``repr`` is the code that builds it.

There is no base class. A pipeline tells stages apart by what they offer:

=====================  =========================================================================
``place(key, sizes)``  a layout: which photos make a picture, and where (mosaic)
``draw`` + ``move``    geometry: parameters from a key, a homography from parameters
``mirror(key)``        a flip: geometry that stays an exact permutation of pixels
``draw`` + ``color``   colour: parameters from a key, arithmetic on three planes
``transform``          beside these: code of others, on the whole image's codes
``lay``                a layer: what lies on top (copy-paste, mixup, cutmix, erase)
``finish``             dtype, layout, range; the last one
``keep``               which targets stay
``rasterize``          masks of the rings that are left
=====================  =========================================================================
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeVar, dataclass_transform, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from torch import Tensor

from fnpipe.keys import Key
from fnpipe.types import ArgumentError, Maps, Over, Plan, Plane, Sizes, Targets


T = TypeVar("T")
Drawn = Float64[Tensor, "b q"]
"""A stage's parameters, one row a sample."""
Frames = Float64[Tensor, "b 2"]
"""Width and height of every sample's frame."""


class Placed(NamedTuple):
    """Tiles of a batch: ``sources`` [b, t] (-1 is empty), ``maps`` source to frame [b, t, 3, 3],
    ``seams`` [b, 2, g - 1] positions across and down (inf is none), ``frames`` [b, 2]."""

    sources: Int64[Tensor, "b t"]
    maps: Float64[Tensor, "b t 3 3"]
    seams: Float64[Tensor, "b 2 s"]
    frames: Frames


@runtime_checkable
class Layout(Protocol):
    name: str

    def place(self, key: Key, sizes: Sizes) -> Placed:
        """Tiles for the samples of ``key`` out of a data set whose photos have ``sizes`` [m, 2]."""
        ...


@runtime_checkable
class Geometry(Protocol):
    name: str
    projective: bool

    def draw(self, key: Key) -> Drawn: ...

    def move(self, drawn: Drawn, frames: Frames) -> tuple[Maps, Frames]:
        """The map from the old frame to the new one, [b, 3, 3], and the new frames."""
        ...


@runtime_checkable
class Mirror(Protocol):
    name: str

    def mirror(self, key: Key) -> Bool[Tensor, "b 2"]:
        """Which samples flip across and down."""
        ...


class Scene(NamedTuple):
    """What a layer may ask for: targets so far, targets of the picture above, and its instances.

    ``above`` has as ``ids`` the rows of ``instances`` (:class:`fnpipe.types.Over`). Both are what
    the pipeline's ``keep`` leaves, in the finished frame.
    """

    below: Callable[[], Targets]
    above: Callable[[], Targets]
    instances: Int64[Tensor, "m 2"]


@runtime_checkable
class Layer(Protocol):
    name: str
    source: str

    def lay(self, key: Key, plan: Plan, scene: Scene) -> Over:
        """What of the pictures that ``plan`` makes lies on top.

        They are the pictures themselves, mirrored, where ``source`` is "self"; where it is "other",
        of another photo each; where it is "none", as they are, for a layer that shows no photo.
        """
        ...


@runtime_checkable
class Color(Protocol):
    name: str

    def draw(self, key: Key) -> Float32[Tensor, "b q"]: ...

    @property
    def color(self) -> Callable[..., tuple[Plane, Plane, Plane]]:
        """``color(r, g, b, *parameters)``: a pure elementwise function in the vocabulary."""
        ...


@runtime_checkable
class Foreign(Protocol):
    """A :class:`Color` that leaves planes as they are and draws a seed for code of others."""

    name: str

    def transform(self, image: UInt8[np.ndarray, "_ _ 3"], seed: int) -> UInt8[np.ndarray, "_ _ 3"]:
        """One image's codes, after all colour and before dtype and layout."""
        ...


def role(stage: Any) -> Any:
    """Which of the protocols a stage keeps: Layout, Geometry, Mirror, Layer, Color, or None.

    Found once a class: to ask ten stages costs 0.3 ms a batch on Python 3.11.
    """
    kind = type(stage)
    if kind not in _ROLES:
        protocols = (Layout, Geometry, Mirror, Layer, Color)
        _ROLES[kind] = next((p for p in protocols if isinstance(stage, p)), None)
    return _ROLES[kind]


_ROLES: dict[type, Any] = {}


@dataclass_transform(frozen_default=True)
def stage(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that is written as it was called: defaults left out."""
    made = dataclass(frozen=True, repr=False)(cls)

    def represent(self: Any) -> str:
        shown = []
        for f in fields(made):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if f.default is MISSING and not f.kw_only:
                shown.append(repr(value))
            elif f.default is MISSING or value != f.default:
                shown.append(f"{f.name}={value!r}")
        return f"{made.__name__}({', '.join(shown)})"

    made.__repr__ = represent  # type: ignore[method-assign]
    return made


def check_number(stage: str, name: str, value: float, low: float, high: float = math.inf) -> None:
    """Errors: ArgumentError where ``value`` is not a finite number in [low, high]."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and low <= value <= high):
        wanted = f"in [{low:g}, {high:g}]" if high < math.inf else f">= {low:g}"
        raise ArgumentError(f"{stage}: {name} wanted a number {wanted}, came {value!r}")


def check_probability(stage: str, name: str, value: float) -> None:
    """Errors: ArgumentError where ``value`` is not in [0, 1]."""
    check_number(stage, name, value, 0.0, 1.0)


def as_size(stage: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) from one number or two. Errors: ArgumentError."""
    pair = size if isinstance(size, tuple) else (size, size)
    whole = len(pair) == 2 and all(isinstance(x, int) and x >= 1 for x in pair)
    if not whole or isinstance(size, bool):
        raise ArgumentError(
            f"{stage}: size wanted pixels, one number or (height, width), each >= 1, came {size!r}"
        )
    return pair[0], pair[1]
