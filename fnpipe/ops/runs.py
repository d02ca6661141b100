"""Sets of cells as runs: the cells, counted through, at which what is inside begins and ends.

A cell is half a pixel wide and high, and row or column i of them lies round i / 2: the centres of
the pixels of every stride are cells. A set is ascending numbers of cells: where a run begins, the
first one past it, where the next begins, and so on. Work follows the outline, not the area: the
instances that copy-paste covers in 64 mosaics of 640 pixels are 20 million cells, and 0.1 million
numbers.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64

from fnpipe.ops.ragged import ranges
from fnpipe.ops.raster import crossing, edge_to_line, following
from fnpipe.types import Rings


Runs = Int64[np.ndarray, " _"]
"""Beginnings and ends, alternating."""
Numbers = Int64[np.ndarray, " n"]


class Grid(NamedTuple):
    """How cells are counted: through planes as large as each other, row by row.

    ``left`` and ``top`` are even, so that pixels have their centres in odd rows and columns. The
    last row and column hold nothing: every run ends in its row, every outline in its plane.
    """

    left: int
    top: int
    width: int
    height: int

    @property
    def area(self) -> int:
        """Cells of a plane."""
        return self.width * self.height

    def number(self, plane: Numbers, row: Numbers, column: Numbers) -> Numbers:
        """The number of a cell."""
        origin = self.top * self.width + self.left
        return (plane * self.height + row) * self.width + column - origin

    def place(self, cells: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Plane, row and column, these from the grid's first ones on."""
        line = cells // self.width  # numpy's divmod takes four times as long
        plane = line // self.height
        return plane, line - plane * self.height, cells - line * self.width


def grid_round(*rings: Rings) -> Grid:
    """A grid that holds all of these, the least one."""
    points = np.concatenate([part.points.numpy() for part in rings])
    if not len(points):
        return Grid(0, 0, 1, 1)
    (left, top), (right, bottom) = np.floor(points.min(0)) * 2, np.ceil(points.max(0)) * 2
    return Grid(int(left), int(top), int(right - left) + 2, int(bottom - top) + 2)


def fill(rings: Rings, grid: Grid) -> Runs:
    """What each instance holds, in a plane of its own: the rule of :mod:`fnpipe.ops.raster`."""
    numbers = _crossings(rings, grid)
    numbers.sort()
    # Each ring's begin and end by turns: even-odd. An instance is where more begin than end.
    ring, ends = numbers // grid.area, np.arange(len(numbers)) & 1
    owner = np.repeat(np.arange(len(rings.instance_offsets) - 1), rings.instance_offsets.diff())
    numbers += (owner - np.arange(len(owner)))[ring] * grid.area
    numbers = numbers * 2 + ends
    numbers.sort(kind="stable")  # merges what ascends already
    depth = (1 - (numbers & 1) * 2).cumsum()
    return _changes(numbers >> 1, depth > 0)


def _crossings(rings: Rings, grid: Grid) -> Numbers:
    """The first cell past each crossing of an edge and a row, every ring in a plane of its own."""
    x, y = (column.contiguous() for column in rings.points.unbind(1))
    after = following(rings.ring_offsets)
    row = (y * 2).ceil().long()
    first, counts = row.minimum(row[after]).numpy(), (row - row[after]).abs().numpy()
    rows = ranges(first, counts)
    lines = edge_to_line(x, y, x[after], y[after])
    lines = (torch.from_numpy(np.repeat(field.numpy(), counts)) for field in lines)
    position = crossing(torch.from_numpy(rows).float() * 0.5, *lines)
    column = (position * 2).ceil().long().numpy()
    ring = np.repeat(np.arange(len(rings.ring_offsets) - 1), rings.ring_offsets.diff())
    return grid.number(np.repeat(ring, counts), rows, column)


def subtract(runs: Runs, other: Runs) -> Runs:
    """What the first has and the second has not."""
    numbers = np.concatenate((runs * 2, other * 2 + 1))
    numbers.sort(kind="stable")  # merges what ascends already
    its = (numbers & 1).cumsum()
    mine = np.arange(1, len(numbers) + 1) - its
    return _changes(numbers >> 1, (mine & ~its & 1) == 1)


def spread(runs: Runs, grid: Grid, planes: Numbers, to: Runs) -> Runs:
    """Plane ``planes[i]`` of ``runs`` as plane i, in the rows that plane i of ``to`` has."""
    starts = np.searchsorted(to, np.arange(len(planes) + 1) * grid.area)
    first, last = starts[:-1], starts[1:]
    there = np.flatnonzero(last > first)
    shift = (there - planes[there]) * grid.area
    begin = to[first[there]] // grid.width * grid.width - shift
    end = (to[last[there] - 1] // grid.width + 1) * grid.width - shift
    low, high = np.searchsorted(runs, begin), np.searchsorted(runs, end)
    counts = high - low
    return runs[ranges(low, counts)] + np.repeat(shift, counts)


def holds(runs: Runs, cells: Numbers) -> Bool[np.ndarray, " n"]:
    """Whether each cell is in the set."""
    return np.searchsorted(runs, cells, side="right") & 1 == 1


def _changes(numbers: Numbers, inside: Bool[np.ndarray, " n"]) -> Runs:
    """The numbers at which a state changes that holds after each; the last of equal ones counts."""
    last = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=last[:-1])
    if not last.all():
        numbers, inside = numbers[last], inside[last]
    changed = inside.copy()
    changed[1:] ^= inside[:-1]
    return numbers[changed]
