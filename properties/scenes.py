"""Photos in memory, pipelines and plans to try on them, and a slow renderer that shares no line.

The slow one follows the words of ``fnpipe/ops/warp.py`` in fractions, pixel by pixel, on the photos
themselves: it knows nothing of borders that are stored, of words, or of float32.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import fnpipe as fp
from fnpipe.ops.warp import pack_sources
from fnpipe.ops.windows import gather
from fnpipe.testing import strategies
from fnpipe.testing.strategies import Album as Album
from fnpipe.testing.strategies import affines as affines
from fnpipe.testing.strategies import finishes as finishes
from fnpipe.testing.strategies import flips as flips
from fnpipe.testing.strategies import paints as paints
from fnpipe.types import Plan, Sources


SIZE = (48, 64)
"""Height, width of the pictures that backends make."""


def photo(width: int, height: int, *, seed: int = 0) -> Tensor:
    """Noise: no two neighbours are alike, so a wrong look-up shows."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


ALBUM = Album(
    [
        photo(width, height, seed=i)
        for i, (width, height) in enumerate(
            [(64, 48), (1, 1), (1, 40), (77, 1), (50, 60), (128, 96), (33, 21), (64, 48), (9, 200)]
        )
    ]
)
"""Photos of one pixel, one column, one row; of the frame's size, smaller, larger, narrow."""


def draw(
    pipeline: fp.Pipeline, ids: Any, *, seed: int = 0, album: Album = ALBUM
) -> tuple[Sources, Plan]:
    """The photos and the plan of some samples."""
    key = fp.key(seed=seed, epoch=0, sample=torch.as_tensor(ids, dtype=torch.int64))
    return gather(pipeline.draw(key, album), album.read)


def render(pipeline: fp.Pipeline, ids: Any, *, seed: int = 0, album: Album = ALBUM) -> Tensor:
    """Pictures, eagerly."""
    sources, plan = draw(pipeline, ids, seed=seed, album=album)
    return pipeline.render(plan, sources)


# Pipelines

geometries = strategies.layouts(SIZE)
pipelines = partial(strategies.pipelines, size=SIZE)


batches = st.lists(st.integers(0, len(ALBUM) - 1), min_size=1, max_size=3)
seeds = st.integers(0, 2**64 - 1)


# A pipeline whose draws are known

KNOWN = fp.pipe(
    fp.mosaic(64),
    fp.affine(degrees=20, translate=0.1, scale=0.5),
    fp.hsv(hue=0.015, saturation=0.7, value=0.4),
    fp.flip(horizontal=0.5),
    fp.finish(torch.float16),
)


def assert_known_draws() -> None:
    """A change of these numbers is a change of every run that anybody has made."""
    plan = KNOWN.draw(fp.key(seed=2**40 + 7, epoch=3, sample=torch.tensor([5])), ALBUM)
    assert plan.sources.tolist() == [[5, 8, 3, 0]]
    gains = [0.0035580038093030453, 1.4017376899719238, 1.323775053024292]
    assert plan.colors[0].tolist() == [gains]
    seam = [1.0560808181762695, 0.37069329619407654, -14.645383834838867]
    assert plan.splits[0, 0, 0].tolist() == seam
    assert plan.mirror.tolist() == [[True, False]]


# Plans whose float32 arithmetic is exact, and what they must show


@st.composite
def exact_scenes(draw: st.DrawFn) -> tuple[Album, Plan]:
    """Maps and seams of small halves, so that positions and seams are often hit exactly."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3))
    album = Album([photo(*size, seed=i) for i, size in enumerate(sizes)])
    grid, count = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    tiles = grid * grid
    step = st.one_of(st.sampled_from([0, 128, -128, 64, 256]), st.integers(-300, 300))
    # Half pixels put centres on centres and on edges, where one step more is another answer.
    origin = st.one_of(
        st.integers(-1600, 1600).map(lambda n: n / 2), st.integers(-16, 16).map(lambda n: 64.0 * n)
    )
    row = st.tuples(step, step, origin)
    last = st.just((0, 0, 1))
    maps = draw(st.lists(st.tuples(row, row, last), min_size=count * tiles, max_size=count * tiles))
    seam = st.tuples(
        st.integers(-2, 2), st.integers(-2, 2), st.integers(-20, 20), st.integers(1, 6)
    )
    seams = draw(st.lists(st.tuples(seam, seam), min_size=count, max_size=count))
    splits = [
        [[(a, b, c / 2 - k * apart) for k in range(grid - 1)] for a, b, c, apart in both]
        for both in seams
    ]
    rows = st.lists(st.integers(-1, len(album) - 1), min_size=tiles, max_size=tiles)
    flips = st.lists(st.booleans(), min_size=2, max_size=2)
    height, width = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    unused = torch.arange(count)
    return album, Plan(
        ids=unused,
        epochs=unused,
        sources=torch.tensor([draw(rows) for _ in range(count)]),
        maps=torch.tensor(maps, dtype=torch.float32).view(count, tiles, 3, 3),
        forward=torch.eye(3, dtype=torch.float64).expand(count, tiles, 3, 3),
        splits=torch.tensor(splits, dtype=torch.float32).view(count, 2, grid - 1, 3),
        mirror=torch.tensor([draw(flips) for _ in range(count)]),
        colors=(),
        size=(height, width),
    )


def at(row: list[float], x: Fraction, y: Fraction) -> Fraction:
    return Fraction(row[0]) * x + Fraction(row[1]) * y + Fraction(row[2])


def look(plan: Plan, album: Album, b: int, column: int, line: int) -> list[int]:
    """What one pixel shows, in codes times 128 * 128."""
    height, width = plan.size
    x, y = Fraction(2 * column + 1, 2), Fraction(2 * line + 1, 2)
    flip_x, flip_y = plan.mirror[b].tolist()
    x, y = width - x if flip_x else x, height - y if flip_y else y
    across, down = plan.splits[b].tolist()
    grid = len(across) + 1
    tile = sum(at(s, x, y) >= 0 for s in down) * grid + sum(at(s, x, y) >= 0 for s in across)
    source = int(plan.sources[b, tile])
    if source < 0:
        return [114 * 128 * 128] * 3
    u, v = (round(at(row, x, y)) for row in plan.maps[b, tile].tolist()[:2])
    image = album.images[source]
    wide, high = image.shape[2], image.shape[1]
    if not (0 <= u < 128 * wide and 0 <= v < 128 * high):
        return [114 * 128 * 128] * 3
    left, top = (u - 64) // 128, (v - 64) // 128
    total = [0, 0, 0]
    for i, wx in ((left, 128 - (u - 64) % 128), (left + 1, (u - 64) % 128)):
        for j, wy in ((top, 128 - (v - 64) % 128), (top + 1, (v - 64) % 128)):
            i, j = min(max(i, 0), wide - 1), min(max(j, 0), high - 1)
            total = [t + int(c) * wx * wy for t, c in zip(total, image[:, j, i], strict=True)]
    return total


def assert_seen(warp: Callable[..., Any], album: Album, plan: Plan) -> None:
    """Errors: AssertionError where ``warp`` shows anything but what the words say."""
    sources = pack_sources(album.images)
    planes = torch.stack(warp(sources, plan), -1) * (128 * 128)
    for b in range(len(plan)):
        for line in range(plan.size[0]):
            for column in range(plan.size[1]):
                wanted = look(plan, album, b, column, line)
                got = planes[b, line, column].tolist()
                assert got == wanted, f"image {b}, column {column}, row {line}: {got}, not {wanted}"
