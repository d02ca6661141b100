"""What is left of instances that something was laid over.

A picture is made of whole pixels, so what is left of an instance is a set of pixels, which decides
its box and its visible share. Its rings must also fill masks of other strides, whose centres lie
between pixels: they are cut on cells of half a pixel, one round each multiple of half a pixel,
where the centres of every stride lie. So at any stride the mask of what is left is, bit for bit,
the instance's mask less the mask of what covers it.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fnpipe.ops.annotate import add_corners, join_rings, take_rings
from fnpipe.ops.points import bounds
from fnpipe.ops.runs import Grid, Runs, fill, grid_round, holds, spread, subtract
from fnpipe.ops.trace import trace
from fnpipe.types import Keypoints, Rings, Targets


class Extents(NamedTuple):
    """Of each plane of a grid: its cells, its pixels, and their bounds, if any."""

    cells: Int64[np.ndarray, " n"]
    pixels: Int64[np.ndarray, " n"]
    boxes: Int64[np.ndarray, "n 4"]


def occlude(targets: Targets, cover: Rings) -> Targets:
    """Targets of a batch under ``cover``, an instance of rings an image: they lose what it hides.

    The sides of a box that changed are those of the pixels left, the others stay exact. ``visible``
    is multiplied by the share of the pixels that are left, and is 0 for what is hidden whole. A
    keypoint that is covered is labelled but hidden (1). A quad stays the whole rectangle. An
    instance without rings is taken to fill its quad or box, and gets no rings.
    """
    rows = _under(targets, cover)
    shapes = outlines(targets, rows)
    grid = grid_round(shapes, cover)
    above = fill(cover, grid)
    targets = targets.replace(keypoints=_hide(targets, above, grid))
    whole = fill(shapes, grid)
    rest = subtract(whole, spread(above, grid, targets.owner[rows].numpy(), whole))
    return _lessen(targets, rows, whole, rest, grid)


def _lessen(
    targets: Targets, rows: Int64[Tensor, " q"], whole: Runs, rest: Runs, grid: Grid
) -> Targets:
    """Targets of which ``rows`` held the cells ``whole``, a plane each, and now hold ``rest``."""
    before, after = extents(whole, grid, len(rows)), extents(rest, grid, len(rows))
    thin = before.pixels == 0  # without a pixel's centre: its cells decide
    old, new = (np.where(thin, part.cells, part.pixels) for part in (before, after))
    share = np.divide(new, old, out=np.ones(len(rows)), where=old > 0)
    less, moved = after.cells < before.cells, (after.boxes != before.boxes) & ~thin[:, None]
    seen = share > 0
    boxes, visible = targets.boxes.clone(), targets.visible.clone()
    sides = np.where(moved, after.boxes, boxes[rows].numpy()) * seen[:, None]
    boxes[rows] = torch.from_numpy(sides.astype(np.float32))
    visible[rows] *= torch.from_numpy(share).float()
    ringed = (targets.rings.instance_offsets.diff() > 0)[rows].numpy()
    traced = _retrace(rest[(less & seen & ringed)[rest // grid.area]], grid, len(rows))
    place = torch.arange(len(targets))
    place[rows[torch.from_numpy(less)]] = len(targets) + torch.from_numpy(np.flatnonzero(less))
    rings = take_rings(join_rings([targets.rings, traced]), place)
    return targets.replace(boxes=boxes, visible=visible, rings=rings)


def _retrace(runs: Runs, grid: Grid, planes: int) -> Rings:
    """Rings in pixels that fill the cells of each plane again."""
    traced = trace(runs, grid)
    corners = torch.from_numpy(traced.corners + np.array([grid.left, grid.top])).float()
    lengths = torch.tensor([0, *traced.lengths])
    owners = torch.tensor(traced.planes, dtype=torch.int64)
    return Rings(
        (corners - 0.5) * 0.5,  # a cell begins half of one before its centre
        lengths.cumsum(0),
        torch.searchsorted(owners, torch.arange(planes + 1)),
    )


def extents(runs: Runs, grid: Grid, planes: int) -> Extents:
    """How large the set in each plane is, and where; pixels are the cells that have centres."""
    begin, length = runs[0::2], runs[1::2] - runs[0::2]
    plane, row, left = grid.place(begin)
    cells = np.bincount(plane, length, planes).astype(np.int64)
    right, left = (left + length) >> 1, left >> 1
    there = np.flatnonzero((row & 1 == 1) & (right > left))
    plane, row, left, right = plane[there], row[there] >> 1, left[there], right[there]
    pixels = np.bincount(plane, right - left, planes).astype(np.int64)
    first = np.flatnonzero(np.diff(plane, prepend=-1))
    last = np.flatnonzero(np.diff(plane, append=-1))
    low, high = np.minimum.reduceat(left, first), np.maximum.reduceat(right, first)
    boxes = np.zeros((planes, 4), dtype=np.int64)
    boxes[plane[first]] = np.stack((low, row[first], high, row[last] + 1), 1)
    return Extents(cells, pixels, boxes + np.array([grid.left, grid.top] * 2) // 2)


def outlines(targets: Targets, rows: Int64[Tensor, " q"]) -> Rings:
    """The rings of some instances; of one that has none its quad, or else its box."""
    bare = (targets.rings.instance_offsets.diff() == 0).nonzero().squeeze(1)
    place = torch.arange(len(targets))
    place[bare] = len(targets) + torch.arange(len(bare))
    return take_rings(add_corners(targets, bare), place[rows])


def _under(targets: Targets, cover: Rings) -> Int64[Tensor, " q"]:
    """The instances whose box meets that of a ring that covers their image."""
    sheets, boxes = bounds(_apart(cover)).numpy(), targets.boxes.numpy()
    offsets = cover.instance_offsets.numpy()
    images = np.flatnonzero(np.diff(offsets))
    first, last = (np.searchsorted(targets.owner.numpy(), images + more) for more in (0, 1))
    found = [np.zeros(0, dtype=np.int64)]
    for image, start, end in zip(images, first, last, strict=True):
        x0, y0, x1, y1 = boxes[start:end, :, None].transpose(1, 0, 2)
        left, top, right, bottom = sheets[offsets[image] : offsets[image + 1]].T
        met = (x0 < right) & (x1 > left) & (y0 < bottom) & (y1 > top)
        found.append(np.flatnonzero(met.any(1)) + start)
    return torch.from_numpy(np.concatenate(found))


def _apart(rings: Rings) -> Rings:
    """Every ring as an instance."""
    return rings.replace(instance_offsets=torch.arange(len(rings.ring_offsets)))


def _hide(targets: Targets, above: Runs, grid: Grid) -> Keypoints:
    """Keypoints, those that are covered marked as hidden: the pixel that one is in decides."""
    keypoints = targets.keypoints.clone()
    row, point = (keypoints[..., 2] == 2).nonzero(as_tuple=True)
    x, y = (keypoints[row, point, :2].floor().long() * 2 + 1).numpy().T
    inside = (x >= grid.left) & (x < grid.left + grid.width)
    inside &= (y >= grid.top) & (y < grid.top + grid.height)
    hidden = torch.from_numpy(inside & holds(above, grid.number(targets.owner[row].numpy(), y, x)))
    keypoints[row[hidden], point[hidden], 2] = 1.0
    return keypoints
