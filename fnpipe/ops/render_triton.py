"""The fused pass: plan and sources to finished images in one kernel, nothing in between.

The arithmetic is :mod:`fnpipe.ops.warp` and :mod:`fnpipe.ops.pixel` re-read
(:mod:`fnpipe.ops.reread`); here is only what torch leaves to the compiler: which program makes
which pixels, loads, stores. A program makes a block of one image. A block that no seam crosses, and
most are, takes its tile's numbers as scalars; the others choose per pixel. Two neighbouring pixels
are made side by side, since in 16-bit channels-last layout two pixels are three whole words.

Numerics: ``enable_fp_fusion=False``, as ``a * b + c`` in one rounding is another number, and
``div_rn``, as Triton's ``/`` is not correctly rounded.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fnpipe.ops import render, twins, warp
from fnpipe.ops.pixel_triton import DTYPES, calls, cast, finished, pack_halves, three
from fnpipe.ops.reread import INTERPRETED, define, reread
from fnpipe.types import ArgumentError, Finish, Plan, Sources


bias = reread(warp.bias)
linear = reread(warp.linear)
tap = reread(warp.tap)
mix = reread(warp.mix)
to_code = reread(warp.to_code)
nearest = twins.TWINS[warp.nearest]
FAR = tl.constexpr(render.FAR)


OUTSIDE = tl.constexpr(render.OUTSIDE)
STEPS = tl.constexpr(warp.STEPS)


@triton.jit
def look(
    source, x, y, m00, m01, m02, m10, m11, m12, m20, m21, m22, across, down, bias_x, bias_y, stride,
    PROJECTIVE: tl.constexpr,
):  # fmt: skip
    """The colour at output positions x, y of the tile whose numbers are given: three codes."""
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
    near = tl.load(source + first)
    far = tl.load(source + (first + 1))
    near_below = tl.load(source + second)
    far_below = tl.load(source + (second + 1))
    red, green, blue = mix(near, far, near_below, far_below, wx, wy)
    return to_code(red), to_code(green), to_code(blue)


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
def numbers(words, offsets, sizes, origins, strides, sources, maps, tile, PROJECTIVE: tl.constexpr):
    """What :func:`look` needs to know of a tile: one for all pixels (a scalar), or one each."""
    source = tl.load(sources + tile)
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
def look_in(
    words, offsets, sizes, origins, strides, sources, maps, tile, x, y, PROJECTIVE: tl.constexpr
):
    """:func:`look` where every pixel has a tile of its own."""
    start, m00, m01, m02, m10, m11, m12, m20, m21, m22, across, down, bias_x, bias_y, stride = (
        numbers(words, offsets, sizes, origins, strides, sources, maps, tile, PROJECTIVE)
    )
    return look(
        start,
        x,
        y,
        m00,
        m01,
        m02,
        m10,
        m11,
        m12,
        m20,
        m21,
        m22,
        across,
        down,
        bias_x,
        bias_y,
        stride,
        PROJECTIVE,
    )


KERNEL = """
def kernel(
    words, offsets, sizes, origins, strides, sources, maps, splits, mirror, colors, out,
    height, width, across_blocks,
    scale_r, scale_g, scale_b, offset_r, offset_g, offset_b,
    GRID: tl.constexpr, PROJECTIVE: tl.constexpr, WHOLE: tl.constexpr,
    SHIFTED: tl.constexpr, DTYPE: tl.constexpr,
    LAST: tl.constexpr, PACKED: tl.constexpr, INTERPRETED: tl.constexpr,
    PAIRS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    left = (block % across_blocks) * (2 * PAIRS)
    top = (block // across_blocks) * (STEP * STEPS)
    sources += image * (GRID * GRID)
    maps += image * (GRID * GRID * 9)
    splits += image * (2 * (GRID - 1) * 3)
    out += image * height * width * 3
    colors += image * Q
    flip_x = tl.load(mirror + image * 2)
    flip_y = tl.load(mirror + image * 2 + 1)
    w = width.to(tl.float32)
    h = height.to(tl.float32)
    near_x = left + 0.5
    far_x = tl.minimum(left + 2 * PAIRS, width) - 0.5
    near_y = top + 0.5
    far_y = tl.minimum(top + STEP * STEPS, height) - 0.5
    near_x = tl.where(flip_x, w - near_x, near_x)
    far_x = tl.where(flip_x, w - far_x, far_x)
    near_y = tl.where(flip_y, h - near_y, near_y)
    far_y = tl.where(flip_y, h - far_y, far_y)
    # A seam is a rounded linear function, monotone along x and along y, so a block whose four
    # corners lie in one tile lies in it whole.
    tile = tile_of(near_x, near_y, splits, GRID)
    whole = (
        (tile == tile_of(far_x, near_y, splits, GRID))
        & (tile == tile_of(near_x, far_y, splits, GRID))
        & (tile == tile_of(far_x, far_y, splits, GRID))
    )
    pair = left // 2 + tl.arange(0, PAIRS)[None, :]
    x0 = (2 * pair).to(tl.float32) + 0.5
    x1 = (2 * pair).to(tl.float32) + 1.5
    x0 = tl.where(flip_x, w - x0, x0)
    x1 = tl.where(flip_x, w - x1, x1)
PARAMETERS
    start, m00, m01, m02, m10, m11, m12, m20, m21, m22, across, down, bias_x, bias_y, stride = numbers(
        words, offsets, sizes, origins, strides, sources, maps, tile, PROJECTIVE
    )
    for step in range(STEPS):
        row = top + step * STEP + tl.arange(0, STEP)[:, None]
        y = row.to(tl.float32) + 0.5
        y = tl.where(flip_y, h - y, y)
        if whole:
            r0, g0, b0 = look(
                start, x0, y, m00, m01, m02, m10, m11, m12, m20, m21, m22, across, down, bias_x, bias_y, stride,
                PROJECTIVE,
            )
            r1, g1, b1 = look(
                start, x1, y, m00, m01, m02, m10, m11, m12, m20, m21, m22, across, down, bias_x, bias_y, stride,
                PROJECTIVE,
            )
        else:
            tile0 = tile_of(x0, y, splits, GRID)
            tile1 = tile_of(x1, y, splits, GRID)
            r0, g0, b0 = look_in(words, offsets, sizes, origins, strides, sources, maps, tile0, x0, y, PROJECTIVE)
            r1, g1, b1 = look_in(words, offsets, sizes, origins, strides, sources, maps, tile1, x1, y, PROJECTIVE)
CHAIN
        r0 = finished(r0, scale_r, offset_r, WHOLE, SHIFTED)
        g0 = finished(g0, scale_g, offset_g, WHOLE, SHIFTED)
        b0 = finished(b0, scale_b, offset_b, WHOLE, SHIFTED)
        r1 = finished(r1, scale_r, offset_r, WHOLE, SHIFTED)
        g1 = finished(g1, scale_g, offset_g, WHOLE, SHIFTED)
        b1 = finished(b1, scale_b, offset_b, WHOLE, SHIFTED)
        store(
            out, row, pair, height, width, r0, g0, b0, r1, g1, b1,
            DTYPE, LAST, PACKED, INTERPRETED,
        )
"""


@triton.jit
def store(
    out, row, pair, height, width, r0, g0, b0, r1, g1, b1,
    DTYPE: tl.constexpr, LAST: tl.constexpr, PACKED: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Two pixels a lane, at (row, 2 pair) and (row, 2 pair + 1), in the batch's layout.

    ``PACKED`` is 16-bit channels-last of even width: three words for two pixels.
    """
    first = (row < height) & (2 * pair < width)
    second = (row < height) & (2 * pair + 1 < width)
    j = tl.arange(0, 4)[None, None, :]
    if PACKED:
        words = three(
            pack_halves(r0, g0, DTYPE, INTERPRETED),
            pack_halves(b0, r1, DTYPE, INTERPRETED),
            pack_halves(g1, b1, DTYPE, INTERPRETED),
        )
        at = (row * (width // 2) + pair) * 3
        there = out.to(tl.pointer_type(tl.int32)) + at[:, :, None] + j
        tl.store(there, words, mask=first[:, :, None] & (j < 3))
    else:
        r0, g0, b0 = (
            cast(r0, DTYPE, INTERPRETED),
            cast(g0, DTYPE, INTERPRETED),
            cast(b0, DTYPE, INTERPRETED),
        )
        r1, g1, b1 = (
            cast(r1, DTYPE, INTERPRETED),
            cast(g1, DTYPE, INTERPRETED),
            cast(b1, DTYPE, INTERPRETED),
        )
        at = row * width + 2 * pair
        if LAST:
            there = out + at[:, :, None] * 3 + j
            tl.store(there, three(r0, g0, b0), mask=first[:, :, None] & (j < 3))
            tl.store(there + 3, three(r1, g1, b1), mask=second[:, :, None] & (j < 3))
        else:
            plane = height * width
            side = tl.arange(0, 2)[None, None, :]
            there = out + at[:, :, None] + side
            mask = first[:, :, None] & (2 * pair[:, :, None] + side < width)
            tl.store(there, tl.join(r0, r1), mask=mask)
            tl.store(there + plane, tl.join(g0, g1), mask=mask)
            tl.store(there + 2 * plane, tl.join(b0, b1), mask=mask)


@cache
def build(chain: tuple[Callable[..., Any], ...], counts: tuple[int, ...]) -> Any:
    """The kernel of a pipeline: its colour stages, re-read, called in order inside.

    ``counts[i]`` is how many parameters the i-th takes. ``triton_op`` cannot carry a function as an
    argument through Inductor (torch 2.11 writes a broken file), so each pipeline has a kernel whose
    globals are its functions.
    """
    colors = {f"color{i}": reread(fn) for i, fn in enumerate(chain)}
    total = sum(counts)
    loads = [f"    p{i} = tl.load(colors + {i})" for i in range(total)]
    sides = ("r0, g0, b0", "r1, g1, b1")
    lines = [f"        {line}" for side in sides for line in calls(chain, counts, side)]
    source = KERNEL.replace("PARAMETERS", "\n".join(loads)).replace("CHAIN", "\n".join(lines))
    names = {
        "tl": tl, "Q": tl.constexpr(total), "tile_of": tile_of, "numbers": numbers,
        "look": look, "look_in": look_in,
        "finished": finished, "store": store, **colors,
    }  # fmt: skip
    return define("kernel", source.lstrip("\n"), names)


def render_fused(
    sources: Sources,
    plan: Plan,
    chain: tuple[Callable[..., Any], ...],
    how: Finish,
    *,
    block: tuple[int, int, int, int] = (32, 4, 8, 4),
) -> Tensor:
    """:func:`fnpipe.ops.render.render` in one kernel, the same bytes: [b, 3, h, w].

    ``block`` is (pairs of columns, rows a step, steps, warps) of a program; it changes speed only.
    Everything must be on one CUDA device (or on the CPU in Triton's interpreter). Errors:
    ArgumentError where it is not; :class:`fnpipe.ops.reread.Unreadable` for a colour stage that
    Triton cannot read.
    """
    words = sources.words
    if not (words.is_cuda or INTERPRETED):
        raise ArgumentError(f"render: Triton wants sources on a CUDA device, got {words.device}")
    if plan.maps.device != words.device:
        raise ArgumentError(
            f"render: plan is on {plan.maps.device}, sources are on {words.device}; move one"
        )
    count, tiles = plan.sources.shape
    height, width = plan.size
    layout = (count, height, width, 3) if how.channels_last else (count, 3, height, width)
    out = torch.empty(layout, dtype=how.dtype, device=words.device)
    colors = torch.cat(plan.colors, 1) if plan.colors else plan.maps
    kernel = build(chain, tuple(p.shape[1] for p in plan.colors))
    pairs, step, steps, warps = block
    across = triton.cdiv(width, 2 * pairs)
    grid = (across * triton.cdiv(height, step * steps), count)
    packed = how.channels_last and how.dtype.itemsize == 2 and width % 2 == 0
    device = torch.cuda.device(words.device) if words.is_cuda else nullcontext()
    with device:
        kernel[grid](
            words, sources.offsets, sources.sizes, sources.origins, sources.strides,
            plan.sources, plan.maps, plan.splits,
            plan.mirror, colors.contiguous(), out, height, width, across, *how.scale, *how.offset,
            GRID=round(tiles**0.5), PROJECTIVE=plan.projective, WHOLE=how.dtype == torch.uint8,
            SHIFTED=any(how.offset),
            DTYPE=DTYPES[how.dtype], LAST=how.channels_last, PACKED=packed,
            INTERPRETED=INTERPRETED,
            PAIRS=pairs, STEP=step, STEPS=steps, num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out.permute(0, 3, 1, 2) if how.channels_last else out
