"""Plan and sources to images: every output pixel looks once, into the one tile it belongs to."""

from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, clamp, where

from fnpipe.ops.layers import rasterized
from fnpipe.ops.pixel import quantize
from fnpipe.ops.warp import STEPS, bias, blend, linear, nearest, tap
from fnpipe.types import ArgumentError, Finish, Plan, Plane, Sources, Words


Planes = tuple[Plane, Plane, Plane]
Color = Callable[..., Planes]
FAR = float(2**30)
"""Steps (1/128 pixel) beyond which a projected point may not be converted to an integer."""
LIMIT = 2.0**21
"""How far, in pixels, a map may send the corners of an image: positions stay 32-bit integers."""
OUTSIDE = -2
"""Where a point outside looks, from its source's start: the words of fill before it."""


class Tiles(NamedTuple):
    """What a look-up needs to know of every tile besides its map: integers, [b, t].

    ``start`` (int64) is where its photo begins in the buffer and ``stride`` a row's words;
    ``across``, ``down`` are the last positions inside, -1 for an empty tile; ``bias_x``,
    ``bias_y`` turn a position into a tap's place in the stored window.
    """

    start: Tensor
    stride: Tensor
    across: Tensor
    down: Tensor
    bias_x: Tensor
    bias_y: Tensor


def resolve(sources: Sources, plan: Plan) -> Tiles:
    """A plan's tiles in terms of a buffer's addresses."""
    start, numbers = find(sources, plan)
    return Tiles(start, *numbers.unbind(-1))


def find(sources: Sources, plan: Plan) -> tuple[Tensor, Tensor]:
    """:func:`resolve` in two tensors: starts [b, t], and all other numbers [b, t, 5]."""
    if torch.compiler.is_compiling():
        starts, numbers = _tabulate(sources)
    else:
        if sources not in _TABLES:
            _TABLES[sources] = _tabulate(sources)
        starts, numbers = _TABLES[sources]
    return starts[plan.sources], numbers[plan.sources]


_TABLES: WeakKeyDictionary[Sources, tuple[Tensor, Tensor]] = WeakKeyDictionary()
"""What :func:`find` looks up, for as long as its sources live: of a pool, made once. Made for
every batch it is a dozen launches, 0.15 ms of the host, half of what the GPU needs for the rest."""


def _tabulate(sources: Sources) -> tuple[Tensor, Tensor]:
    """Of every photo the start, and its other numbers; the last row, -1, is an empty tile."""
    last = sources.sizes * STEPS - 1
    numbers = torch.cat([sources.strides[:, None], last, bias(sources.origins)], 1)
    empty = torch.cat([numbers[:1, :1], torch.full_like(last[:1], -1), numbers[:1, 3:]], 1)
    return torch.cat([sources.offsets, sources.offsets[:1]]), torch.cat([numbers, empty])


def choose(columns: Tensor, right: list[Tensor], below: list[Tensor]) -> Tensor:
    """Of one number a tile, [b, g * g], each pixel's own: ``right`` and ``below`` are its seams.

    A CPU selects (16 lanes at once), a GPU looks the number up by its tile (one load, nearly
    always the same for a warp, where selecting takes four): the same numbers either way.
    """
    grid = len(right) + 1
    if columns.is_cuda and grid > 1:
        row, column = (sum((p.to(torch.int32) for p in past), 0) for past in (below, right))
        image = torch.arange(columns.shape[0], dtype=torch.int32, device=columns.device)
        return columns[image[:, None, None], row * grid + column]
    rows = []
    for row in range(grid):
        chosen = columns[:, row * grid, None, None]
        for column, past in enumerate(right, start=1):
            chosen = where(past, columns[:, row * grid + column, None, None], chosen)
        rows.append(chosen)
    chosen = rows[0]
    for row, past in enumerate(below, start=1):
        chosen = where(past, rows[row], chosen)
    return chosen


def check_reach(plan: Plan) -> None:
    """Errors: ArgumentError where a corner of an image looks ``LIMIT`` pixels away.

    Positions are 32-bit integers of 1/128 pixel; projective ones :func:`look` cuts off itself.
    """
    if plan.projective:
        return
    height, width = plan.size
    corners = np.array([[0, 0, 1], [width, 0, 1], [0, height, 1], [width, height, 1]])
    reach = np.abs((plan.maps.numpy()[..., :2, None, :] * corners).sum(-1))
    near = (reach <= LIMIT * STEPS).all((1, 2, 3))  # no number is near where it is NaN
    if not near.all():
        raise ArgumentError(
            f"plan: sample {int(plan.ids.numpy()[~near][0])} looks more than {LIMIT:g} pixels "
            "away from its photo; draw a milder map"
        )


def warp(sources: Sources, plan: Plan) -> Planes:
    """Mosaic and resample in one look-up a pixel: three planes [b, h, w], codes in [0, 255].

    Values are multiples of 2**-14: exact sums (:mod:`fnpipe.ops.warp`). An empty tile (source -1)
    and whatever lies outside its photo is ``FILL``. On a grid of tiles the seams decide which tile
    a pixel belongs to; then it looks into that tile alone, so tiles never bleed into each other.
    Layers are laid on top, in order (:func:`lay`).
    """
    plan = rasterized(plan)
    tiles = resolve(sources, plan), *(resolve(sources, over.plan) for over in plan.overs)
    return look_all(sources.words, tiles, plan)


def look_all(words: Words, tiles: tuple[Tiles, ...], plan: Plan) -> Planes:
    """:func:`warp` where the tiles of the plan and of its layers are resolved already."""
    planes = look(words, tiles[0], plan)
    for over, its in zip(plan.overs, tiles[1:], strict=True):
        assert isinstance(over.cover, Tensor)  # rasterized() made it so
        share = where(over.cover, 0.0, over.weight[:, None, None])
        planes = lay(*planes, *look(words, its, over.plan), share)
    return planes


def lay(
    r: Plane, g: Plane, b: Plane, over_r: Plane, over_g: Plane, over_b: Plane, share: Plane
) -> Planes:
    """A picture on top of another: ``share`` of what lies beneath and the rest of what is above.

    ``below * share + above * (1 - share)``, so that a share of 0 or 1 gives one of them, exact.
    """
    rest = 1.0 - share
    return r * share + over_r * rest, g * share + over_g * rest, b * share + over_b * rest


def look(words: Words, tiles: Tiles, plan: Plan) -> Planes:
    """What the tiles of a plan show, without its layers."""
    height, width = plan.size
    device = plan.maps.device
    x = (torch.arange(width, dtype=torch.float32, device=device) + 0.5)[None, None, :]
    y = (torch.arange(height, dtype=torch.float32, device=device) + 0.5)[None, :, None]
    x = where(plan.mirror[:, 0, None, None], width - x, x)
    y = where(plan.mirror[:, 1, None, None], height - y, y)
    seams = plan.splits[..., None, None]
    right, below = (
        [linear(x, y, *seams[:, axis, i].unbind(1)) >= 0.0 for i in range(seams.shape[2])]
        for axis in (0, 1)
    )
    start, stride, across, down, bias_x, bias_y = (choose(c, right, below) for c in tiles)
    m = [choose(plan.maps[..., i, j], right, below) for i in (0, 1, 2) for j in (0, 1, 2)]
    u, v = linear(x, y, *m[0:3]), linear(x, y, *m[3:6])
    ahead = None
    if plan.projective:
        depth = linear(x, y, *m[6:9])
        ahead = depth > 0.0
        u, v = clamp(torch.div(u, depth), -FAR, FAR), clamp(torch.div(v, depth), -FAR, FAR)
    column, wx, miss_x = tap(nearest(u), bias_x, across)
    row, wy, miss_y = tap(nearest(v), bias_y, down)
    inside = (miss_x | miss_y) >= 0
    if ahead is not None:
        inside = inside & ahead
    first = where(inside, row * stride + column, OUTSIDE)
    second = where(inside, first + stride, OUTSIDE)
    first, second = start + first, start + second
    near, far = take(words, first), take(words, first + 1)
    near_below, far_below = take(words, second), take(words, second + 1)
    return blend(near, far, near_below, far_below, wx, wy)


def take(words: Words, index: Tensor) -> Tensor:
    """``words[index]`` for an index that is not negative.

    Inductor lets ``words[index]`` count from the end where an index is negative: on a CPU 24 of 350
    vector instructions a block of 16 pixels, on an H200 0.27 ms a batch of 64 against 0.23. Neither
    of these has that meaning. (On CUDA ``gather``, whose index is flat, makes two kernels of one.)
    """
    if not words.is_cuda:
        return words.gather(0, index.flatten()).view(index.shape)
    if torch.compiler.is_compiling():
        everywhere = torch.ones_like(index, dtype=torch.bool)
        return torch.ops.aten._unsafe_masked_index(words, everywhere, [index], 0)
    return words[index]


def paint(planes: Planes, colors: tuple[Tensor, ...], chain: tuple[Color, ...]) -> Planes:
    """Run the colour stages in order; ``colors[i]`` are the i-th one's parameters: [b, q], or
    [b, q, h] repeated for every row."""
    for color, parameters in zip(chain, colors, strict=True):
        missing = (None,) * (4 - parameters.dim())
        planes = color(*planes, *parameters[(..., *missing)].unbind(1))
    return planes


def finish(planes: Planes, how: Finish) -> Tensor:
    """Quantise, restore and lay out: [b, 3, h, w] in ``how.dtype``, channels last or first."""
    # Three planes apart, stacked last: one kernel that computes each pixel once. Written as one
    # stacked expression, Inductor computes every pixel three times (0.68 ms against 0.27 ms).
    cast = to_planes(planes, how)
    if how.channels_last:
        return torch.stack(cast, dim=-1).permute(0, 3, 1, 2)
    return torch.stack(cast, dim=1)


def to_planes(planes: Planes, how: Finish) -> tuple[Tensor, ...]:
    """Quantise and restore: three planes in ``how.dtype``."""
    whole = [quantize(p) for p in planes]
    if how.dtype != torch.uint8:
        whole = [p * s for p, s in zip(whole, how.scale, strict=True)]
        if any(how.offset):
            whole = [p + o for p, o in zip(whole, how.offset, strict=True)]
    return tuple(p.to(how.dtype) for p in whole)


def to_words(planes: Planes) -> Tensor:
    """Whole codes as one 32-bit word a pixel, [b, h, w]: red, green, blue from the lowest byte."""
    red, green, blue = (quantize(p).to(torch.int32) for p in planes)
    return red | (green << 8) | (blue << 16)


def from_words(words: Tensor, how: Finish) -> Tensor:
    """What :func:`finish` makes of the planes whose codes ``words`` holds, the same bytes."""
    shift = torch.arange(0, 24, 8, dtype=torch.int32, device=words.device)
    codes = (words[..., None] >> shift) & 255
    if how.dtype != torch.uint8:
        scale = torch.tensor(how.scale, dtype=torch.float32, device=words.device)
        codes = codes.to(torch.float32) * scale
        if any(how.offset):
            codes = codes + torch.tensor(how.offset, dtype=torch.float32, device=words.device)
    images = codes.to(how.dtype).permute(0, 3, 1, 2)
    return images if how.channels_last else images.contiguous()


def render(sources: Sources, plan: Plan, chain: tuple[Color, ...], how: Finish) -> Tensor:
    """The whole pixel path: tiles to finished images. The reference that all else must equal."""
    return finish(paint(warp(sources, plan), plan.colors, chain), how)
