"""Mosaic: several photos on one canvas, a seam between neighbours, one look-up a pixel.

The inner work is numpy on views of CPU tensors, as in :mod:`fnpipe.ops.maps`.
"""

from dataclasses import KW_ONLY

import numpy as np
import torch
from jaxtyping import Float64

from fnpipe.keys import Key, fold_in, partners, uniform
from fnpipe.ops.maps import fit, scale_and_shift
from fnpipe.stages.stage import Placed, as_size, check_probability, stage
from fnpipe.types import ArgumentError, Sizes


@stage
class mosaic:
    """``tiles`` photos (4 or 9) round a random point; the frame is ``size`` in the middle of them.

    Every photo is fitted into ``size`` first. The sample itself comes first (top left), its
    partners are drawn from the whole data set. With four, the point where they meet lies anywhere
    in the frame; with nine, the middle cell is as large as the frame and begins up to half a frame
    away from it. Photos are not cut at the frame: what lies beyond comes in where an affine stage
    looks further. With probability ``1 - p`` a sample is letterboxed alone.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    tiles: int = 4
    p: float = 1.0
    name: str = "mosaic"

    def __post_init__(self) -> None:
        as_size("mosaic", self.size)
        check_probability("mosaic", "p", self.p)
        if self.tiles not in (4, 9) or type(self.tiles) is not int:
            raise ArgumentError(f"mosaic: tiles wanted 4 or 9, came {self.tiles!r}")

    def place(self, key: Key, sizes: Sizes) -> Placed:
        height, width = as_size("mosaic", self.size)
        box = np.array([width, height], dtype=np.float64)
        grid = 2 if self.tiles == 4 else 3
        others = partners(fold_in(key, "partners"), self.tiles - 1, len(sizes))
        sources = torch.cat([key.sample[:, None], others], 1)
        u = uniform(fold_in(key, "center"), 3)
        alone = u[:, 2] >= self.p
        fitted, gain = fit(sizes[sources].to(torch.float64), width, height)
        start = np.floor(u[:, :2].numpy() * (box + 1.0))
        if self.tiles == 9:
            start -= np.floor(box * 0.5)
        seams = start[..., None] + np.outer(box, np.arange(grid - 1))
        shift = _anchors(fitted.numpy(), seams, grid)
        if alone.any():
            centred = np.floor((box - fitted.numpy()) * 0.5)
            shift = np.where(alone.numpy()[:, None, None], centred, shift)
            seams[alone.numpy()] = np.inf
            sources[alone, 1:] = -1
        return Placed(
            sources=sources,
            maps=scale_and_shift(*gain.unbind(-1), *torch.from_numpy(shift).unbind(-1)),
            seams=torch.from_numpy(seams),
            frames=torch.from_numpy(box).expand(len(sources), 2),
        )


def _anchors(
    extents: Float64[np.ndarray, "b t 2"], seams: Float64[np.ndarray, "b 2 s"], grid: int
) -> Float64[np.ndarray, "b t 2"]:
    """Where photos [b, t, 2] begin: up against the seam beside them, middle ones centred."""
    cell = np.arange(grid * grid)
    cell = np.stack((cell % grid, cell // grid), 1)
    axis = np.arange(2)
    before = seams[:, axis, np.maximum(cell, 1) - 1]
    after = seams[:, axis, np.minimum(cell, grid - 2)]
    middle = before + np.floor((after - before - extents) * 0.5)
    return np.where(cell == 0, after - extents, np.where(cell == grid - 1, before, middle))
