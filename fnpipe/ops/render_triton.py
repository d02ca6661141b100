"""The fused pass: plan and sources to finished images in one kernel, nothing in between.

The arithmetic is :mod:`fnpipe.ops.warp` and :mod:`fnpipe.ops.pixel` re-read
(:mod:`fnpipe.ops.reread`); here is only what torch leaves to the compiler: which program makes
which pixels, loads, stores. A program makes a block of one image, and first asks what is the same
for all of it:

- nothing is inside a photo: one colour is worked out and written;
- one photo, columns map to columns, and no point is outside: a column's part is found once;
- one tile: its numbers are scalars;
- a seam crosses: every pixel fetches the numbers of its own tile.

Two neighbouring pixels are made side by side, since in 16-bit channels-last layout two pixels are
three whole words. ``docs/kernel.md`` has what each step of this gained.

Numerics: ``enable_fp_fusion=False``, as ``a * b + c`` in one rounding is another number, and
``div_rn``, as Triton's ``/`` is not correctly rounded.
"""
# Triton gives a kernel's parameters and values no types.
# pyright: basic

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fnpipe.ops import warp
from fnpipe.ops.layers import rasterized
from fnpipe.ops.layers_triton import layer_pointers, layer_tensors, with_layers
from fnpipe.ops.pixel_triton import (
    DTYPES,
    calls,
    cast,
    check_count,
    finished,
    pack_halves,
    three,
)
from fnpipe.ops.reread import INTERPRETED, define, reread
from fnpipe.ops.warp_triton import held, kind_of, look, numbers_of, place, seams, taps, tile_of
from fnpipe.types import ArgumentError, Finish, Plan, Sources


FILL = tl.constexpr(float(warp.FILL))
INPUTS = "words offsets sizes origins strides sources maps splits mirror".split()
KERNEL = """
def kernel(
    words, offsets, sizes, origins, strides, sources, maps, splits, mirror, out, height, width,
    scale_r, scale_g, scale_b, offset_r, offset_g, offset_b, COLORS
    GRID: tl.constexpr, PROJECTIVE: tl.constexpr, WHOLE: tl.constexpr, SHIFTED: tl.constexpr,
    DTYPE: tl.constexpr, LAST: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr,
    INTERPRETED: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr,
):
    image = tl.program_id(2)
    left = tl.program_id(0) * (2 * PAIRS)
    top = tl.program_id(1) * (STEP * STEPS)
    sources += image * (GRID * GRID)
    maps += image * (GRID * GRID * 9)
    splits += image * (2 * (GRID - 1) * 3)
    out += image.to(tl.int64) * (height * width * 3)
PARAMETERS
    flip_x = tl.load(mirror + image * 2)
    flip_y = tl.load(mirror + image * 2 + 1)
    turn_x = tl.where(flip_x, -1.0, 1.0)
    turn_y = tl.where(flip_y, -1.0, 1.0)
    near_x = tl.where(flip_x, (width - left).to(tl.float32) - 0.5, left.to(tl.float32) + 0.5)
    near_y = tl.where(flip_y, (height - top).to(tl.float32) - 0.5, top.to(tl.float32) + 0.5)
    far_x = near_x + turn_x * (tl.minimum(2 * PAIRS, width - left) - 1).to(tl.float32)
    far_y = near_y + turn_y * (tl.minimum(STEP * STEPS, height - top) - 1).to(tl.float32)
    column, last_column = seams(near_x, far_x, near_y, far_y, splits, GRID)
    row, last_row = seams(near_x, far_x, near_y, far_y, splits + (GRID - 1) * 3, GRID)
    whole = (column == last_column) & (row == last_row)
    tile = row * GRID + column
    numbers = numbers_of(
        words, offsets, sizes, origins, strides, sources, maps, tile, PROJECTIVE
    )
    outside, level = False, False
    if not PROJECTIVE:
        outside, level = kind_of(near_x, far_x, near_y, far_y, numbers)
    lane = tl.arange(0, PAIRS)[None, :].to(tl.float32) * (2.0 * turn_x)
    x0 = near_x + lane
    x1 = near_x + turn_x + lane
    y = near_y + turn_y * tl.arange(0, STEP)[:, None].to(tl.float32)
    if whole & outside:
        fill = tl.full([STEP, PAIRS], FILL, tl.float32)
        r, g, b = shade(fill, fill, fill, FINISH)
        for step in range(STEPS):
            store(out, left, top + step * STEP, height, width, r, g, b, r, g, b, LAYOUT)
    elif whole & level:
        start, stride = numbers[0], numbers[14]
        column0, wx0 = place(held(x0, near_x, far_x, EVEN), numbers[1], numbers[3], numbers[12])
        column1, wx1 = place(held(x1, near_x, far_x, EVEN), numbers[1], numbers[3], numbers[12])
        for step in range(STEPS):
            line, wy = place(held(y, near_y, far_y, EVEN), numbers[5], numbers[6], numbers[13])
            above = start + line * stride
            below = above + stride
            r0, g0, b0 = taps(above + column0, below + column0, wx0, wy)
            r1, g1, b1 = taps(above + column1, below + column1, wx1, wy)
            r0, g0, b0 = shade(r0, g0, b0, FINISH)
            r1, g1, b1 = shade(r1, g1, b1, FINISH)
            store(out, left, top + step * STEP, height, width, r0, g0, b0, r1, g1, b1, LAYOUT)
            y += turn_y * STEP
    else:
        for step in range(STEPS):
            if whole:
                r0, g0, b0 = look(x0, y, numbers, PROJECTIVE)
                r1, g1, b1 = look(x1, y, numbers, PROJECTIVE)
            else:
                r0, g0, b0 = look(x0, y, numbers_of(
                    words, offsets, sizes, origins, strides, sources, maps,
                    tile_of(x0, y, splits, GRID), PROJECTIVE,
                ), PROJECTIVE)
                r1, g1, b1 = look(x1, y, numbers_of(
                    words, offsets, sizes, origins, strides, sources, maps,
                    tile_of(x1, y, splits, GRID), PROJECTIVE,
                ), PROJECTIVE)
LAYERS
            r0, g0, b0 = shade(r0, g0, b0, FINISH)
            r1, g1, b1 = shade(r1, g1, b1, FINISH)
            store(out, left, top + step * STEP, height, width, r0, g0, b0, r1, g1, b1, LAYOUT)
            y += turn_y * STEP
"""
FINISH = "scale_r, scale_g, scale_b, offset_r, offset_g, offset_b, WHOLE, SHIFTED"
LAYOUT = "DTYPE, LAST, PACKED, EVEN, INTERPRETED"
SHADE = """
def shade(r, g, b, GIVEN):
CHAIN
    r = finished(r, scale_r, offset_r, WHOLE, SHIFTED)
    g = finished(g, scale_g, offset_g, WHOLE, SHIFTED)
    b = finished(b, scale_b, offset_b, WHOLE, SHIFTED)
    return r, g, b
"""


@triton.jit
def store(
    out, left, top, height, width, r0, g0, b0, r1, g1, b1,
    DTYPE: tl.constexpr, LAST: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The even and the odd columns of a block at (top, left), in the batch's layout.

    ``PACKED`` is 16-bit channels-last of even width: three words for two pixels. ``EVEN`` is that
    every block is whole.
    """
    row = tl.arange(0, r0.shape[0])[:, None]
    pair = tl.arange(0, r0.shape[1])[None, :]
    first = (top + row < height) & (left + 2 * pair < width)
    j = tl.arange(0, 4)[None, None, :]
    if PACKED:
        words = three(
            pack_halves(r0, g0, DTYPE, INTERPRETED),
            pack_halves(b0, r1, DTYPE, INTERPRETED),
            pack_halves(g1, b1, DTYPE, INTERPRETED),
        )
        stride = (width >> 1) * 3
        here = out.to(tl.pointer_type(tl.int32)) + (top * stride + (left >> 1) * 3)
        at = row * stride + pair * 3
        mask = j < 3
        if not EVEN:
            mask = mask & first[:, :, None]
        tl.store(here + (at[:, :, None] + j), words, mask=mask)
    else:
        second = (top + row < height) & (left + 2 * pair + 1 < width)
        at = (top + row) * width + (left + 2 * pair)
        r = tl.join(cast(r0, DTYPE, INTERPRETED), cast(r1, DTYPE, INTERPRETED))
        g = tl.join(cast(g0, DTYPE, INTERPRETED), cast(g1, DTYPE, INTERPRETED))
        b = tl.join(cast(b0, DTYPE, INTERPRETED), cast(b1, DTYPE, INTERPRETED))
        at = tl.join(at, at + 1)
        mask = tl.join(first, second)
        if LAST:
            there = out + (at[:, :, :, None] * 3 + j[:, :, None, :])
            tl.store(there, three(r, g, b), mask=mask[:, :, :, None] & (j[:, :, None, :] < 3))
        else:
            plane = height * width
            tl.store(out + at, r, mask=mask)
            tl.store(out + plane + at, g, mask=mask)
            tl.store(out + 2 * plane + at, b, mask=mask)


@cache
def build(
    chain: tuple[Callable[..., Any], ...], counts: tuple[int, ...], *, layers: int = 0
) -> Any:
    """The kernel of a pipeline: its layers and its colour stages, re-read, in order, inside.

    ``counts[i]`` is how many parameters the i-th takes. ``triton_op`` cannot carry a function as an
    argument through Inductor (torch 2.11 writes a broken file), so each pipeline has a kernel whose
    globals are its functions.
    """
    places = [(i, j) for i, count in enumerate(counts) for j in range(count)]
    pointers = [f"colors{i}" for i in range(len(counts))]
    loads = [
        f"    p{k} = tl.load(colors{i} + image * {counts[i]} + {j})"
        for k, (i, j) in enumerate(places)
    ]
    given = "".join(f"p{k}, " for k in range(len(places))) + FINISH
    constants = given.replace("WHOLE", "WHOLE: tl.constexpr")
    constants = constants.replace("SHIFTED", "SHIFTED: tl.constexpr")
    lines = [f"    {line}" for line in calls(chain, counts, "r, g, b")]
    shade = SHADE.replace("GIVEN", constants).replace("CHAIN", "\n".join(lines)).lstrip("\n")
    names = {f"color{i}": reread(fn) for i, fn in enumerate(chain)}
    pointers += layer_pointers(layers)
    names = {
        "tl": tl, "FILL": FILL, "held": held, "kind_of": kind_of, "look": look,
        "numbers_of": numbers_of, "place": place, "seams": seams, "store": store, "taps": taps,
        "tile_of": tile_of,
        "shade": define("shade", shade, {"tl": tl, "finished": finished, **names}),
    }  # fmt: skip
    source = with_layers(KERNEL, layers, names)
    source = source.replace("COLORS", "".join(f"{name}, " for name in pointers))
    source = source.replace("FINISH", given).replace("LAYOUT", LAYOUT)
    source = source.replace("PARAMETERS", "\n".join(loads)).lstrip("\n")
    # One compilation serves any slice of a batch: of the output alone the alignment is known.
    return define("kernel", source, names, do_not_specialize_on_alignment=[*INPUTS, *pointers])


def render_fused(
    sources: Sources,
    plan: Plan,
    chain: tuple[Callable[..., Any], ...],
    how: Finish,
    *,
    block: tuple[int, int, int, int] = (32, 2, 8, 1),
) -> Tensor:
    """:func:`fnpipe.ops.render.render` in one kernel, the same bytes: [b, 3, h, w].

    ``block`` is (pairs of columns, rows a step, steps, warps) of a program; it changes speed only.
    Everything must be on one CUDA device (or on the CPU in Triton's interpreter). Errors:
    ArgumentError where it is not, and for more images than a launch takes;
    :class:`fnpipe.ops.reread.Unreadable` for a colour stage that Triton cannot read.
    """
    words = sources.words
    if not (words.is_cuda or INTERPRETED):
        raise ArgumentError(f"render: Triton wants sources on a CUDA device, got {words.device}")
    if plan.maps.device != words.device:
        raise ArgumentError(
            f"render: plan is on {plan.maps.device}, sources are on {words.device}; move one"
        )
    plan = rasterized(plan)
    count = len(plan)
    check_count(count)
    height, width = plan.size
    layout = (count, height, width, 3) if how.channels_last else (count, 3, height, width)
    out = torch.empty(layout, dtype=how.dtype, device=words.device)
    tensors = [
        words, sources.offsets, sources.sizes, sources.origins, sources.strides, plan.sources,
        plan.maps, plan.splits, plan.mirror,
    ]  # fmt: skip
    pairs, step, steps, _ = block
    grid = (triton.cdiv(width, 2 * pairs), triton.cdiv(height, step * steps), count)
    arguments = (
        *(t.contiguous() for t in tensors), out, height, width, *how.scale, *how.offset,
        *(t.contiguous() for t in (*plan.colors, *layer_tensors(plan))),
    )  # fmt: skip
    counts = tuple(p.shape[1] for p in plan.colors)
    tiles = plan.sources.shape[1]
    layers = len(plan.overs)
    key = (chain, counts, layers, how, plan.size, tiles, plan.projective, block, words.device)
    if INTERPRETED or torch.cuda.current_device() == words.device.index:
        launch(key, grid, arguments)
    else:
        with torch.cuda.device(words.device):
            launch(key, grid, arguments)
    return out.permute(0, 3, 1, 2) if how.channels_last else out


COMPILED: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}
"""Kernels by all that they were compiled for, and their constants."""


def launch(key: tuple[Any, ...], grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
    """Run the kernel of ``key``, compiled on its first call; Triton's own look-up costs 90 us."""
    if key in COMPILED:
        kernel, constants = COMPILED[key]
        kernel[grid](*arguments, *constants)
        return
    chain, counts, layers, how, (height, width), tiles, projective, block, _ = key
    pairs, step, steps, warps = block
    constants = (
        round(tiles**0.5), projective, how.dtype == torch.uint8, any(how.offset), DTYPES[how.dtype],
        how.channels_last, how.channels_last and how.dtype.itemsize == 2 and width % 2 == 0,
        width % (2 * pairs) == 0 and height % (step * steps) == 0, INTERPRETED, pairs, step, steps,
    )  # fmt: skip
    kernel = build(chain, counts, layers=layers)[grid](
        *arguments, *constants, num_warps=warps, enable_fp_fusion=False
    )
    if not INTERPRETED:
        COMPILED[key] = kernel, constants
