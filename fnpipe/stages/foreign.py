"""Running code of others on finished codes, image by image, each with its own seed."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnpipe.ops.render import finish
from fnpipe.stages.stage import Foreign
from fnpipe.types import ArgumentError, Finish


def foreign_stages(colors: Iterable[Any]) -> tuple[tuple[int, Foreign], ...]:
    """The colour stages that run code of others, each with its place among them."""
    return tuple((i, s) for i, s in enumerate(colors) if isinstance(s, Foreign))


def transform_all(
    codes: Tensor, stages: Iterable[tuple[int, Foreign]], colors: tuple[Tensor, ...], how: Finish
) -> Tensor:
    """Codes [b, 3, h, w], uint8, through every stage, then dtype and layout.

    Stage ``i`` finds its seeds in ``colors[i]`` [b, 1]. Errors: ArgumentError for a stage that
    makes an image of another shape or dtype.
    """
    for place, stage in stages:
        codes = _transform(stage, codes, colors[place])
    red, green, blue = codes.float().unbind(1)
    return finish((red, green, blue), how)


def _transform(stage: Foreign, codes: Tensor, seeds: Tensor) -> Tensor:
    done = []
    for image, seed in zip(codes.permute(0, 2, 3, 1), seeds[:, 0].tolist(), strict=True):
        got = stage.transform(image.contiguous().numpy().copy(), int(seed))
        if got.shape != image.shape or got.dtype != np.uint8:
            raise ArgumentError(
                f"{stage!r}: wanted uint8 {tuple(image.shape)}, came {got.dtype} {got.shape}"
            )
        done.append(torch.from_numpy(np.ascontiguousarray(got)))
    return torch.stack(done).permute(0, 3, 1, 2)
