"""Keys and frames for stages."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fnpipe.keys import Key, fold_in, key


@pytest.fixture
def samples() -> Callable[..., Key]:
    """The key of many samples, at a stage."""

    def make(count: int = 1000, *, name: str = "stage", seed: int = 0) -> Key:
        return fold_in(key(seed=seed, epoch=0, sample=torch.arange(count)), name)

    return make


@pytest.fixture
def frames() -> Callable[..., Tensor]:
    """Frames of width, height."""

    def make(*sizes: tuple[int, int]) -> Tensor:
        return torch.tensor(sizes, dtype=torch.float64)

    return make
