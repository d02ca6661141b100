"""Where a block of output pixels looks, on the GPU: parts of :mod:`fnpipe.ops.render_triton`.

The arithmetic is :mod:`fnpipe.ops.warp` re-read; the rest says for a whole block what
:func:`fnpipe.ops.render.warp` finds pixel by pixel.
"""
# Triton gives a kernel's parameters and values no types.
# pyright: basic

import triton
import triton.language as tl

from fnpipe.ops import render, twins, warp
from fnpipe.ops.reread import reread


bias = reread(warp.bias)
linear = reread(warp.linear)
tap = reread(warp.tap)
blend = reread(warp.blend)
nearest = twins.TWINS[warp.nearest]
FAR = tl.constexpr(render.FAR)
OUTSIDE = tl.constexpr(render.OUTSIDE)
STEPS = tl.constexpr(warp.STEPS)


@triton.jit
def taps(above, below, wx, wy):
    """The blend of the words at two addresses and of those after them: three codes."""
    return blend(tl.load(above), tl.load(above + 1), tl.load(below), tl.load(below + 1), wx, wy)


@triton.jit
def look(x, y, numbers, PROJECTIVE: tl.constexpr):
    """The colour at output positions x, y of the tile whose :func:`numbers_of` are given."""
    start, m00, m01, m02, m10, m11, m12, m20, m21, m22, across, down, bias_x, bias_y, stride = (
        numbers
    )
    u = linear(x, y, m00, m01, m02)
    v = linear(x, y, m10, m11, m12)
    if PROJECTIVE:
        depth = linear(x, y, m20, m21, m22)
        u = tl.minimum(tl.maximum(tl.div_rn(u, depth), -FAR), FAR)
        v = tl.minimum(tl.maximum(tl.div_rn(v, depth), -FAR), FAR)
    column, wx, miss_x = tap(nearest(u), bias_x, across)
    row, wy, miss_y = tap(nearest(v), bias_y, down)
    inside = (miss_x | miss_y) >= 0
    if PROJECTIVE:
        inside = inside & (depth > 0.0)
    first = tl.where(inside, row * stride + column, OUTSIDE)
    second = tl.where(inside, first + stride, OUTSIDE)
    return taps(start + first, start + second, wx, wy)


@triton.jit
def place(x, scale, shift, bias):
    """Where a column or a row of pixels looks, where a map is level: the first tap and the weight.

    All of :func:`linear` that is left where the other coordinate's coefficient is 0: a 0 is added.
    """
    first, weight, _ = tap(nearest(scale * x + shift), bias, 0)
    return first, weight


@triton.jit
def held(x, near, far, EVEN: tl.constexpr):
    """Positions x, those of lanes past the frame moved to the block's last ones in it.

    A level block looks without asking whether a point is inside. Past the frame one may not be: of
    the buffer's last photo it lies behind the buffer, where there need be no memory.
    """
    if EVEN:
        return x
    return tl.minimum(tl.maximum(x, tl.minimum(near, far)), tl.maximum(near, far))


@triton.jit
def bounds(near_x, far_x, near_y, far_y, a, b, c):
    """The least and the greatest of :func:`linear` over a block, from its first and last pixels.

    Rounded products and sums are monotone, so these are reached, to the bit.
    """
    near, far = a * near_x, a * far_x
    first, last = b * near_y + c, b * far_y + c
    return (
        tl.minimum(near, far) + tl.minimum(first, last),
        tl.maximum(near, far) + tl.maximum(first, last),
    )


@triton.jit
def seams(near_x, far_x, near_y, far_y, splits, GRID: tl.constexpr):
    """How many of an axis's seams lie before all of a block, and how many before some of it."""
    fewest, most = 0, 0
    for i in tl.static_range(GRID - 1):  # pyright: ignore[reportGeneralTypeIssues]
        seam = splits + i * 3
        a, b, c = tl.load(seam), tl.load(seam + 1), tl.load(seam + 2)
        least, greatest = bounds(near_x, far_x, near_y, far_y, a, b, c)
        fewest += (least >= 0.0).to(tl.int32)
        most += (greatest >= 0.0).to(tl.int32)
    return fewest, most


@triton.jit
def tile_of(x, y, splits, GRID: tl.constexpr):
    """Which tile positions x, y belong to; ``splits`` are an image's seams, [2, GRID - 1, 3]."""
    column = (x * 0.0 + y * 0.0).to(tl.int32)
    row = column
    for i in tl.static_range(GRID - 1):  # pyright: ignore[reportGeneralTypeIssues]
        right = splits + i * 3
        below = splits + (GRID - 1 + i) * 3
        a, b, c = tl.load(right), tl.load(right + 1), tl.load(right + 2)
        column += (linear(x, y, a, b, c) >= 0.0).to(tl.int32)
        a, b, c = tl.load(below), tl.load(below + 1), tl.load(below + 2)
        row += (linear(x, y, a, b, c) >= 0.0).to(tl.int32)
    return row * GRID + column


@triton.jit
def numbers_of(
    words, offsets, sizes, origins, strides, sources, maps, tile, PROJECTIVE: tl.constexpr
):
    """What :func:`look` needs to know of a tile: one for all pixels (a scalar), or one each."""
    source = tl.load(sources + tile).to(tl.int32)
    # An empty tile has no width: no point is inside, and every look-up finds photo 0's fill.
    filled = source >= 0
    source = tl.maximum(source, 0)
    width = tl.load(sizes + source * 2)
    down = tl.load(sizes + source * 2 + 1)
    start = words + tl.load(offsets + source)
    m = maps + tile * 9
    m20, m21, m22 = 0.0, 0.0, 1.0
    if PROJECTIVE:
        m20, m21, m22 = tl.load(m + 6), tl.load(m + 7), tl.load(m + 8)
    bias_x = bias(tl.load(origins + source * 2))
    bias_y = bias(tl.load(origins + source * 2 + 1))
    return (
        start, tl.load(m), tl.load(m + 1), tl.load(m + 2), tl.load(m + 3), tl.load(m + 4),
        tl.load(m + 5), m20, m21, m22, tl.where(filled, width * STEPS - 1, -1), down * STEPS - 1,
        bias_x, bias_y, tl.load(strides + source),
    )  # fmt: skip


@triton.jit
def kind_of(near_x, far_x, near_y, far_y, numbers):
    """Whether all of a block is outside its photo, and whether it is level and all inside."""
    _, m00, m01, m02, m10, m11, m12, _, _, _, across, down, _, _, _ = numbers
    least, greatest = bounds(near_x, far_x, near_y, far_y, m00, m01, m02)
    u0, u1 = nearest(least), nearest(greatest)
    least, greatest = bounds(near_x, far_x, near_y, far_y, m10, m11, m12)
    v0, v1 = nearest(least), nearest(greatest)
    outside = (u1 < 0) | (u0 > across) | (v1 < 0) | (v0 > down)
    inside = (u0 >= 0) & (u1 <= across) & (v0 >= 0) & (v1 <= down)
    return outside, inside & (m01 == 0.0) & (m10 == 0.0)
