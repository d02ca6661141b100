"""Runs of cells against planes of them."""

import numpy as np
import pytest
import torch

from fnpipe.ops.raster import masks
from fnpipe.ops.runs import Grid, fill, grid_round, holds, spread, subtract
from fnpipe.testing import rings_of

from .test_occlude import TRIANGLE, rectangle


Planes = np.ndarray
GRID = Grid(-2, 4, 9, 7)


def random_planes(seed: int, count: int = 3) -> Planes:
    """Planes of ``GRID``, whose last row and column are empty; some have no cell."""
    random = np.random.default_rng(seed)
    planes = random.random((count, GRID.height, GRID.width)) < random.random((count, 1, 1))
    planes[:, -1], planes[:, :, -1] = False, False
    return planes


def to_runs(planes: Planes) -> np.ndarray:
    return np.flatnonzero(np.diff(planes.reshape(-1), prepend=False))


def to_planes(runs: np.ndarray, count: int = 3) -> Planes:
    cells = np.arange(count * GRID.area)
    return holds(runs, cells).reshape(count, GRID.height, GRID.width)


@pytest.mark.parametrize("seed", range(20))
def test_sets_are_there_and_subtract(seed: int):
    one, other = random_planes(seed), random_planes(seed + 100)
    assert np.array_equal(to_planes(to_runs(one)), one)
    assert np.array_equal(subtract(to_runs(one), to_runs(other)), to_runs(one & ~other))


@pytest.mark.parametrize("seed", range(20))
def test_planes_are_spread_in_the_rows_that_are_asked_for(seed: int):
    planes, to = random_planes(seed), random_planes(seed + 100, 5)
    chosen = np.array([2, 0, 0, 1, 2])
    rows = np.flatnonzero
    wanted = np.zeros_like(to)
    for i, plane in enumerate(chosen):
        there = rows(to[i].any(1))
        if len(there):
            span = slice(there[0], there[-1] + 1)
            wanted[i, span] = planes[plane, span]
    assert np.array_equal(spread(to_runs(planes), GRID, chosen, to_runs(to)), to_runs(wanted))


def test_a_cell_has_one_number_and_one_place():
    cells = np.arange(4 * GRID.area)
    plane, row, column = GRID.place(cells)
    assert np.array_equal(GRID.number(plane, row + GRID.top, column + GRID.left), cells)
    assert (plane.max(), row.max(), column.max()) == (3, GRID.height - 1, GRID.width - 1)


def test_a_grid_is_even_and_holds_all_and_a_row_and_a_column_more():
    grid = grid_round(rings_of([rectangle(-1.2, 3.5, 4.1, 7)]), rings_of([rectangle(0, 5, 6, 6)]))
    assert (grid.left, grid.top) == (-4, 6)
    assert (grid.left + grid.width, grid.top + grid.height) == (14, 16)
    assert grid_round(rings_of(), rings_of([])) == Grid(0, 0, 1, 1)


def test_cells_are_the_pixels_of_every_stride():
    rings = rings_of([TRIANGLE, rectangle(2, 3, 40, 15)])
    grid = grid_round(rings)
    runs = fill(rings, grid)
    for stride in (1, 2, 4, 8):
        at = np.arange(64 // stride) * 2 * stride + stride
        row, column = (x.reshape(-1) for x in np.meshgrid(at, at, indexing="ij"))
        there = (row < grid.top + grid.height) & (column < grid.left + grid.width)
        there &= (row >= grid.top) & (column >= grid.left)
        seen = there & holds(runs, grid.number(0 * row, row, column))
        wanted = masks(rings, (64, 64), stride=stride)[0]
        assert torch.equal(torch.from_numpy(seen).view(wanted.shape), wanted)


def test_a_ring_is_even_odd_and_the_rings_of_an_instance_unite():
    star = (
        (0.0, 0.0),
        (8.0, 0.0),
        (8.0, 8.0),
        (0.0, 8.0),
        (0.0, 0.0),
        (4.0, 2.0),
        (6.0, 6.0),
        (2.0, 6.0),
    )
    rings = rings_of([star, rectangle(5, 5, 12, 12)], [], [rectangle(1, 1, 2, 2)] * 2)
    grid = grid_round(rings)
    count = len(rings.instance_offsets) - 1
    cells = holds(fill(rings, grid), np.arange(count * grid.area))
    planes = torch.from_numpy(cells.reshape(count, grid.height, grid.width))
    assert torch.equal(planes[:, 1:-1:2, 1:-1:2], masks(rings, (12, 12), stride=1))
