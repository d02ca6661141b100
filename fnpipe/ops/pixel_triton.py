"""The colour pass alone: float32 planes to finished images, for what workers warped.

12 bytes a pixel in, 6 out in bfloat16: at the speed of memory if accesses are wide. A lane takes
four neighbouring pixels, 16 bytes a plane; in 16-bit channels-last layout they leave as three
8-byte words. The colour stages are the definitions re-read (:mod:`fnpipe.ops.reread`), numerics as
in :mod:`fnpipe.ops.render_triton`.
"""
# Triton gives a kernel's parameters and values no types.
# pyright: basic

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float32
from torch import Tensor

from fnpipe.ops import pixel, twins
from fnpipe.ops.reread import INTERPRETED, define, reread
from fnpipe.types import ArgumentError, Finish


assert twins.TWINS, "the hand-spelt twins must be known before a definition is re-read"
quantize = reread(pixel.quantize)


DTYPES = {
    torch.uint8: tl.uint8,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}
MOST = 65_535
"""Images of a batch: more than that a CUDA grid's second and third axes do not count."""


def check_count(count: int) -> None:
    """Errors: ArgumentError for a batch of more images than one launch takes."""
    if count > MOST:
        raise ArgumentError(f"backend 'triton' wanted {MOST:,} images at most, came {count:,}")


@triton.jit
def finished(plane, scale, offset, WHOLE: tl.constexpr, SHIFTED: tl.constexpr):
    """A channel quantised and restored, float32; ``WHOLE`` leaves codes as they are."""
    code = quantize(plane)
    if not WHOLE:
        code = code * scale
        if SHIFTED:
            code = code + offset
    return code


@triton.jit
def cast(x, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """To the batch's dtype, nearest even. The interpreter's own bfloat16 cast cuts bits off."""
    if INTERPRETED and DTYPE == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def pack_halves(low, high, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """Two 16-bit floats in one word, ``low`` first in memory; one instruction on the GPU."""
    if INTERPRETED:
        first = cast(low, DTYPE, INTERPRETED).to(tl.uint16, bitcast=True).to(tl.uint32)
        second = cast(high, DTYPE, INTERPRETED).to(tl.uint16, bitcast=True).to(tl.uint32)
        return (first | (second << 16)).to(tl.int32, bitcast=True)
    if DTYPE == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], tl.int32, is_pure=True, pack=1
        )
    return tl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], tl.int32, is_pure=True, pack=1
    )


def calls(chain: tuple[Callable[..., Any], ...], counts: tuple[int, ...], planes: str) -> list[str]:
    """The source lines that run a chain on planes of the given names; parameters are p0, p1, ..."""
    lines, at = [], 0
    for i, (_, count) in enumerate(zip(chain, counts, strict=True)):
        given = "".join(f", p{at + k}" for k in range(count))
        lines.append(f"{planes} = color{i}({planes}{given})")
        at += count
    return lines


@triton.jit
def three(first, second, third):
    """Three numbers a lane as a last axis of four, the fourth unused: [..., 4].

    Stored with a mask, neighbouring lanes write neighbouring words, whole 32-byte sectors. Three
    stores of every third word leave an H200's level 2 cache merging partial sectors: the colour
    pass ran at 0.45 of a copy's speed that way, and took no longer with the colour in it.
    """
    # Triton has no starred lists.
    shape: tl.constexpr = first.shape + [4]  # noqa: RUF005
    return tl.join(tl.join(first, third), tl.join(second, second)).reshape(shape)


@triton.jit
def pack_words(low, high):
    """Two 32-bit words in one of 64, ``low`` first in memory."""
    wide = high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    return (wide | low.to(tl.uint32, bitcast=True).to(tl.uint64)).to(tl.int64, bitcast=True)


@triton.jit
def store_four(
    out, lane, r, g, b, pixels,
    DTYPE: tl.constexpr, LAST: tl.constexpr, PACKED: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Four pixels a lane, [n, 4] a channel, from pixel ``4 * lane`` of an image of ``pixels``."""
    j = tl.arange(0, 4)
    if PACKED:
        n: tl.constexpr = r.shape[0]
        r_even, r_odd = tl.split(tl.reshape(r, (n, 2, 2)))
        g_even, g_odd = tl.split(tl.reshape(g, (n, 2, 2)))
        b_even, b_odd = tl.split(tl.reshape(b, (n, 2, 2)))
        first0, first1 = tl.split(pack_halves(r_even, g_even, DTYPE, INTERPRETED))
        second0, second1 = tl.split(pack_halves(b_even, r_odd, DTYPE, INTERPRETED))
        third0, third1 = tl.split(pack_halves(g_odd, b_odd, DTYPE, INTERPRETED))
        words = three(
            pack_words(first0, second0), pack_words(third0, first1), pack_words(second1, third1)
        )
        at = out.to(tl.pointer_type(tl.int64)) + lane[:, None] * 3 + j[None, :]
        tl.store(at, words, mask=(lane[:, None] * 4 < pixels) & (j[None, :] < 3))
    else:
        at = lane[:, None] * 4 + j[None, :]
        mask = at < pixels
        r = cast(r, DTYPE, INTERPRETED)
        g = cast(g, DTYPE, INTERPRETED)
        b = cast(b, DTYPE, INTERPRETED)
        if LAST:
            there = out + at[:, :, None] * 3 + j[None, None, :]
            tl.store(there, three(r, g, b), mask=mask[:, :, None] & (j[None, None, :] < 3))
        else:
            tl.store(out + at, r, mask=mask)
            tl.store(out + pixels + at, g, mask=mask)
            tl.store(out + 2 * pixels + at, b, mask=mask)


KERNEL = """
def kernel(
    planes, colors, out, pixels,
    scale_r, scale_g, scale_b, offset_r, offset_g, offset_b,
    WHOLE: tl.constexpr, SHIFTED: tl.constexpr, DTYPE: tl.constexpr, LAST: tl.constexpr,
    PACKED: tl.constexpr, INTERPRETED: tl.constexpr, LANES: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    planes += image * 3 * pixels
    out += image * 3 * pixels
    colors += image * Q
PARAMETERS
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    at = lane[:, None] * 4 + tl.arange(0, 4)[None, :]
    mask = at < pixels
    r = tl.load(planes + at, mask=mask, other=0.0)
    g = tl.load(planes + pixels + at, mask=mask, other=0.0)
    b = tl.load(planes + 2 * pixels + at, mask=mask, other=0.0)
CHAIN
    r = finished(r, scale_r, offset_r, WHOLE, SHIFTED)
    g = finished(g, scale_g, offset_g, WHOLE, SHIFTED)
    b = finished(b, scale_b, offset_b, WHOLE, SHIFTED)
    store_four(out, lane, r, g, b, pixels, DTYPE, LAST, PACKED, INTERPRETED)
"""


@cache
def build(chain: tuple[Callable[..., Any], ...], counts: tuple[int, ...]) -> Any:
    """The kernel of a pipeline's colour stages."""
    loads = [f"    p{i} = tl.load(colors + {i})" for i in range(sum(counts))]
    lines = [f"    {line}" for line in calls(chain, counts, "r, g, b")]
    source = KERNEL.replace("PARAMETERS", "\n".join(loads)).replace("CHAIN", "\n".join(lines))
    names = {
        "tl": tl, "Q": tl.constexpr(sum(counts)), "finished": finished, "store_four": store_four,
        **{f"color{i}": reread(fn) for i, fn in enumerate(chain)},
    }  # fmt: skip
    return define("kernel", source.lstrip("\n"), names)


def paint_fused(
    planes: Float32[Tensor, "b 3 h w"],
    colors: tuple[Tensor, ...],
    chain: tuple[Callable[..., Any], ...],
    how: Finish,
    *,
    block: tuple[int, int] = (256, 4),
) -> Tensor:
    """Colour stages, quantise, restore and lay out in one pass: [b, 3, h, w].

    The same bytes as :func:`fnpipe.ops.render.paint` and ``finish``. ``colors[i]`` [b, q] are the
    i-th stage's parameters; ``block`` is (lanes, warps) of a program. Errors: ArgumentError where
    the planes are not on a CUDA device, or more than ``MOST``; ``Unreadable`` for a stage that
    Triton cannot read.
    """
    if not (planes.is_cuda or INTERPRETED):
        raise ArgumentError(f"paint: Triton wants planes on a CUDA device, got {planes.device}")
    planes = planes.contiguous()
    count, _, height, width = planes.shape
    check_count(count)
    layout = (count, height, width, 3) if how.channels_last else (count, 3, height, width)
    out = torch.empty(layout, dtype=how.dtype, device=planes.device)
    kernel = build(chain, tuple(p.shape[1] for p in colors))
    parameters = torch.cat(colors, 1) if colors else planes
    lanes, warps = block
    pixels = height * width
    packed = how.channels_last and how.dtype.itemsize == 2 and pixels % 4 == 0
    with torch.cuda.device(planes.device) if planes.is_cuda else nullcontext():
        kernel[(triton.cdiv(pixels, 4 * lanes), count)](
            planes, parameters, out, pixels, *how.scale, *how.offset,
            WHOLE=how.dtype == torch.uint8, SHIFTED=any(how.offset), DTYPE=DTYPES[how.dtype],
            LAST=how.channels_last, PACKED=packed, INTERPRETED=INTERPRETED, LANES=lanes,
            num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out.permute(0, 3, 1, 2) if how.channels_last else out
