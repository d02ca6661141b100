"""Code of others as a stage: any function of one image's 8-bit codes, height x width x 3.

It acts on finished images in the worker: after all geometry and colour, before dtype and layout.
There it sees what the model would see; photos themselves are decoded once and shared by epochs and
mosaics, so a random change of them would be the same in every epoch. It may not move pixels, since
targets do not follow it. Its seed is drawn from the key like any parameter, so a sample is the same
in any worker and after any resume; but its bytes are its authors', on this version and machine:
:func:`fnpipe.audit` says so, and a cut that leaves pixels to the device is refused.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from fnpipe.keys import Key, words
from fnpipe.stages.stage import stage
from fnpipe.types import ArgumentError, Plane


Codes = UInt8[np.ndarray, "_ _ 3"]
BRIDGES = {"albumentations": "albumentations", "torchvision.transforms": "torchvision_v2"}
"""Transforms that take no array as it is: v2's would leave it as it came, and say nothing."""
MOVING = ("geometric", "crops", "_geometry")
"""In what modules of theirs Albumentations and torchvision v2 keep what moves pixels."""


def untouched(r: Plane, g: Plane, b: Plane, seed: Plane) -> tuple[Plane, Plane, Plane]:
    """What the renderer sees of such a stage."""
    return r, g, b


@stage
class foreign:
    """``function(image) -> image``, uint8 [h, w, 3], RGB, of a library's own.

    For each image Python's, NumPy's and torch's generators are seeded and afterwards put back; a
    function that has ``set_random_seed`` (Albumentations') is seeded by it as well. A function that
    is pickled by name can be sent to workers. Errors: ArgumentError for what is no function of an
    array, as a transform that :class:`albumentations` or :class:`torchvision_v2` makes one of.
    """

    function: Callable[[Any], Any]
    _: KW_ONLY
    name: str = "foreign"
    portable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ArgumentError(
                f"foreign wanted a function of an image, came {self.function!r:.80}"
            )
        library = type(self.function).__module__
        for beginning, bridge in BRIDGES.items():
            if library.startswith(beginning):
                raise ArgumentError(
                    f"foreign wanted a function of an image, came one of {library.split('.')[0]}: "
                    f"foreign({bridge}(...))"
                )

    def draw(self, key: Key) -> Float32[Tensor, "b 1"]:
        """A seed in [0, 2**24), which float32 holds exactly."""
        return (words(key, 1) >> 8).to(torch.float32)

    @property
    def color(self) -> Callable[..., tuple[Plane, Plane, Plane]]:
        return untouched

    def transform(self, image: Codes, seed: int) -> Codes:
        with seeded(seed):
            reseed = getattr(self.function, "set_random_seed", None)
            if reseed is not None:
                reseed(seed)
            return np.asarray(self.function(image))

    def __call__(self, image: Codes) -> Codes:
        """The function itself, unseeded."""
        return self.function(image)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global generators of Python, NumPy and torch (CPU) seeded inside, and as before after it."""
    ours, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(arrays)


def _check_transform(name: str, given: Any) -> None:
    if not callable(given):
        raise ArgumentError(f"{name} wanted a transform, came {given!r:.80}")
    for inner in getattr(given, "transforms", ()):
        _check_transform(name, inner)
    if any(f".{part}" in type(given).__module__ for part in MOVING):
        raise ArgumentError(
            f"{name}: {type(given).__name__} moves pixels, and targets would not follow; stages as "
            "fnpipe.flip, fnpipe.affine and fnpipe.crop move both"
        )


@stage
class albumentations:
    """An Albumentations transform as such a function: ``foreign(albumentations(A.Blur(p=0.5)))``.

    Pixels only: what it would do to boxes is not asked for.
    """

    compose: Any

    def __post_init__(self) -> None:
        _check_transform("albumentations", self.compose)

    def set_random_seed(self, seed: int) -> None:
        self.compose.set_random_seed(seed)

    def __call__(self, image: Codes) -> Codes:
        return self.compose(image=image)["image"]


@stage
class torchvision_v2:
    """A torchvision v2 transform of tensors as such a function: it sees uint8 [3, h, w]."""

    transform: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        _check_transform("torchvision_v2", self.transform)

    def __call__(self, image: Codes) -> Codes:
        planes = torch.from_numpy(image).permute(2, 0, 1)
        return self.transform(planes).permute(1, 2, 0).numpy()
