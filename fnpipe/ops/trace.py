"""Masks to rings that fill them again: along the edges of pixels, exactly."""

from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from fnpipe.ops.ragged import ranges
from fnpipe.ops.runs import Grid, Runs


Corners = Int64[np.ndarray, " _"]
"""One integer a corner, or which corners."""
Piece = tuple[int, int]
"""A part of an array: its start and its length."""


class Traced(NamedTuple):
    """Rings of a grid's planes: x, y of all corners, and of each ring the length and the plane."""

    corners: Int64[np.ndarray, "_ 2"]
    lengths: list[int]
    planes: list[int]


def trace_mask(mask: Bool[Tensor, "h w"]) -> list[Float32[Tensor, "p 2"]]:
    """Rings along pixel edges, in pixels, that fill exactly ``mask`` (even-odd, then united).

    Without holes, one ring a piece; pieces that touch at a corner only may share one. With holes,
    one ring in all, the :func:`bridge` of every boundary, whose straight lines enclose nothing.
    """
    height, width = mask.shape
    padded = np.zeros((height + 1, width + 1), bool)
    padded[:height, :width] = mask.numpy()
    runs = np.flatnonzero(np.diff(padded.reshape(-1), prepend=False))
    traced = trace(runs, Grid(0, 0, width + 1, height + 1))
    points = torch.from_numpy(traced.corners).to(torch.float32)
    return list(points.split(traced.lengths)) if traced.lengths else []


def trace(runs: Runs, grid: Grid) -> Traced:
    """The rings of :func:`trace_mask` of each plane of a grid, in cells."""
    cells, outer = _corners(runs, grid)
    plane, y, x = grid.place(cells)
    order, loops = _walk(_next(plane, y, x, grid, cells), outer[0::2])
    # A loop begins with an edge of its highest ones, walked to the right, and so does each piece.
    corner = np.stack((order, order ^ 1), 1).reshape(-1)
    pieces, lengths, planes = [], [], []
    for owner, mine in groupby(loops, lambda loop: int(plane[corner[loop[0]]])):
        rings = list(mine)
        holes = not all(outer[corner[start]] for start, _ in rings)
        for ring in [bridge(rings)] if holes else [[ring] for ring in rings]:
            pieces += ring
            lengths.append(sum(count for _, count in ring))
            planes.append(owner)
    corner = corner[ranges(*np.array(pieces, dtype=np.int64).reshape(-1, 2).T)]
    return Traced(np.stack((x[corner], y[corner]), 1), lengths, planes)


def bridge(rings: list[Piece]) -> list[Piece]:
    """One ring that walks all of ``rings``, going from one to the next and back on the same lines.

    It fills by even-odd what an odd number of the rings hold: their union where none overlap.
    """
    if len(rings) == 1:
        return rings
    first = [(start, 1) for start, _ in rings]
    there = [piece for pair in zip(rings, first, strict=True) for piece in pair]
    return there + first[-2:0:-1]


def _corners(runs: Runs, grid: Grid) -> tuple[Corners, Bool[np.ndarray, " _"]]:
    """The cells right below corners, ascending, and whether a loop that begins there has cells in.

    Where a row's run begins or ends and the next row's does likewise, the outline goes straight on.
    Where one begins and the other ends, two cells touch at the corner, which counts twice.
    """
    begins = np.arange(1, len(runs) + 1) & 1
    lower = runs + grid.width
    numbers = np.concatenate((runs * 2 + begins, lower * 2 + (1 - begins)))
    numbers.sort(kind="stable")  # merges what ascends already
    straight = np.flatnonzero(numbers[1:] ^ numbers[:-1] == 1)
    turns = np.ones(len(numbers), bool)
    turns[straight] = turns[straight + 1] = False
    numbers = numbers[turns]
    return numbers >> 1, numbers & 1 == 1


def _next(plane: Corners, y: Corners, x: Corners, grid: Grid, cells: Corners) -> Corners:
    """The corner after the other end of each corner's horizontal edge, down or up.

    Corners of one row pair up to the outline's horizontal parts, so that corners 2 k and 2 k + 1
    are the ends of one, and those of one column to its vertical parts.
    """
    second = np.diff(cells, prepend=-1) == 0
    # No two are equal, so that the order needs no stable sort, five times as long.
    down = (((plane * grid.width + x) * grid.height + y) * 2 + second).argsort()
    other = np.empty_like(down)
    other[down[0::2]], other[down[1::2]] = down[1::2], down[0::2]
    return other[np.arange(len(other)) ^ 1]


def _walk(after: Corners, below: Bool[np.ndarray, " _"]) -> tuple[Corners, list[Piece]]:
    """Corners where loops enter horizontal edges, and each loop as a piece of these edges' ends.

    A loop begins with its first edge, to the right. ``below`` are the edges with the inside below.
    All loops are walked at once, by steps of 1, 2, 4, ... edges, with the inside on the right; a
    loop round a hole then lies the wrong way round.
    """
    edges = np.arange(len(below))
    ahead = after[2 * edges + ~below] >> 1
    first, least, jump = edges, np.minimum(edges, ahead), ahead
    while (first != least).any():
        jump = jump[jump]
        first, least = least, np.minimum(least, least[jump])
    jump = np.where(first == edges, edges, ahead)
    left = (first != edges).astype(np.int64)  # to the first edge
    while (more := left[jump]).any():
        left, jump = left + more, jump[jump]
    outer = below[first]
    rank = np.where(outer & (left > 0), len(edges) - left, left)
    order = (first * len(edges) + rank).argsort()
    entered = 2 * order + (below != outer)[order]
    counts = 2 * np.bincount(first)
    counts = counts[counts > 0]
    return entered, list(zip((counts.cumsum() - counts).tolist(), counts.tolist(), strict=True))
