"""Mosaic: several photos on one canvas, a seam between neighbours, one look-up a pixel."""

from dataclasses import KW_ONLY

import torch
from torch import Tensor

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
        if self.tiles not in (4, 9):
            raise ArgumentError(f"mosaic: tiles wanted 4 or 9, came {self.tiles!r}")

    def place(self, key: Key, sizes: Sizes) -> Placed:
        height, width = as_size("mosaic", self.size)
        box = torch.tensor([width, height], dtype=torch.float64)
        grid = 2 if self.tiles == 4 else 3
        others = partners(fold_in(key, "partners"), self.tiles - 1, len(sizes))
        sources = torch.cat([key.sample[:, None], others], 1)
        u = uniform(fold_in(key, "center"), 3)
        alone = u[:, 2] >= self.p
        fitted, gain = fit(sizes[sources].to(torch.float64), width, height)
        start = self._start(u[:, :2], box)
        seams = start[:, :, None] + box[:, None] * torch.arange(grid - 1, dtype=torch.float64)
        shift = torch.stack(
            [_anchor(fitted[..., axis], seams[:, axis], grid, axis) for axis in (0, 1)], -1
        )
        centred = ((box - fitted) * 0.5).floor()
        shift = torch.where(alone[:, None, None], centred, shift)
        rest = torch.arange(self.tiles) > 0
        return Placed(
            sources=torch.where(alone[:, None] & rest, -1, sources),
            maps=scale_and_shift(*gain.unbind(-1), *shift.unbind(-1)),
            seams=torch.where(alone[:, None, None], torch.inf, seams),
            frames=box.expand(len(sources), 2),
        )

    def _start(self, u: Tensor, box: Tensor) -> Tensor:
        """Where the first seams lie, in whole pixels: [b, 2]."""
        if self.tiles == 4:
            return (u * (box + 1.0)).floor()
        return (u * (box + 1.0)).floor() - (box * 0.5).floor()


def _anchor(extent: Tensor, seams: Tensor, grid: int, axis: int) -> Tensor:
    """Where photos [b, t] begin: up against the seam beside them, middle ones centred."""
    cell = torch.arange(grid * grid)
    cell = cell % grid if axis == 0 else cell // grid
    before = seams[:, cell.clamp(min=1) - 1]
    after = seams[:, cell.clamp(max=grid - 2)]
    middle = before + ((after - before - extent) * 0.5).floor()
    return torch.where(cell == 0, after - extent, torch.where(cell == grid - 1, before, middle))
