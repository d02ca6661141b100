"""The last stages: what the images become, and which targets stay."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY

import torch

from fnpipe.stages.stage import check_number, check_probability, stage
from fnpipe.types import ArgumentError, Finish, check_choice, check_flag


DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)


@stage
class finish:
    """Quantise to 8-bit codes, then dtype and layout; floats in [0, 1], or less ``mean`` / ``std``.

    ``mean`` and ``std`` are three numbers each on the scale of [0, 1], for float dtypes: a channel
    becomes ``code * (1 / (255 std)) - mean / std``, the constants rounded to float32 once.
    """

    dtype: torch.dtype = torch.float32
    _: KW_ONLY
    channels_last: bool = False
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    name: str = "finish"

    def __post_init__(self) -> None:
        check_choice("finish: dtype", self.dtype, DTYPES)
        check_flag("finish: channels_last", self.channels_last)
        for name in ("mean", "std"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, _three(name, given))
        if self.dtype == torch.uint8 and (self.mean or self.std):
            raise ArgumentError("finish: mean and std want a float dtype, came torch.uint8")
        if self.mean is not None and max(self.mean) > 1:
            raise ArgumentError(
                f"finish: mean wanted three numbers on the scale of [0, 1], came {self.mean}: "
                "codes divided by 255"
            )
        if self.std is not None and not all(s > 0 for s in self.std):
            raise ArgumentError(f"finish: std wanted three numbers > 0, came {self.std}")

    @property
    def finish(self) -> Finish:
        mean, std = self.mean or (0.0, 0.0, 0.0), self.std or (1.0, 1.0, 1.0)
        scale = tuple(_single(1.0 / (255.0 * s)) for s in std)
        offset = tuple(_single(0.0 - m / s) for m, s in zip(mean, std, strict=True))
        return Finish(self.dtype, self.channels_last, scale, offset)  # type: ignore[arg-type]


@stage
class keep:
    """Which targets stay: at least ``visible`` of their area, and sides of ``side`` pixels or more.

    Without this stage every instance stays of which anything is visible.
    """

    _: KW_ONLY
    visible: float = 0.0
    side: float = 0.0
    name: str = "keep"

    def __post_init__(self) -> None:
        check_probability("keep", "visible", self.visible)
        check_number("keep", "side", self.side, 0.0)


def _three(name: str, given: Sequence[float]) -> tuple[float, float, float]:
    try:
        r, g, b = (float(x) for x in given)
    except (TypeError, ValueError):
        raise ArgumentError(f"finish: {name} wanted three numbers, came {given!r}") from None
    if not all(map(math.isfinite, (r, g, b))):
        raise ArgumentError(f"finish: {name} wanted three finite numbers, came {given!r}")
    return r, g, b


def _single(x: float) -> float:
    """The nearest float32, so that a kernel's argument and a tensor's constant are one number."""
    return torch.tensor(x, dtype=torch.float32).item()
