"""Four definitions spelt by hand for the GPU, where one of its instructions does a whole line.

Each has one right answer, an integer or a correctly rounded number, so the spelling cannot change a
bit; ``properties/test_parity.py`` compares them all the same. Triton's interpreter knows no
assembly and reads the torch definitions instead (``nearest`` excepted: Triton has no rounding to
even).
"""
# Triton gives a kernel's parameters and values no types.
# pyright: basic

import triton
import triton.language as tl

from fnpipe.ops import pixel, warp
from fnpipe.ops.reread import INTERPRETED, TWINS


@triton.jit
def nearest(x):
    """:func:`fnpipe.ops.warp.nearest`: one conversion."""
    return tl.inline_asm_elementwise(
        "cvt.rni.s32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def nearest_interpreted(x):
    """:func:`fnpipe.ops.warp.nearest` without a rounding instruction."""
    below = tl.floor(x)
    rest = x - below
    whole = below.to(tl.int32)
    up = (rest > 0.5) | ((rest == 0.5) & ((whole & 1) == 1))
    return whole + up.to(tl.int32)


@triton.jit
def quantize(x):
    """:func:`fnpipe.ops.pixel.quantize`: one saturating conversion and one back, not four steps."""
    code = tl.inline_asm_elementwise(
        "cvt.rni.sat.u8.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
    )
    return code.to(tl.float32)


RECIPROCAL = """
{
    .reg .f32 near, rest;
    rcp.approx.ftz.f32 near, $1;
    neg.f32 rest, $1;
    fma.rn.f32 rest, rest, near, 0f3F800000;
    fma.rn.f32 $0, near, rest, near;
}
"""


@triton.jit
def reciprocal(x):
    """:func:`fnpipe.ops.pixel.reciprocal`: the hardware's estimate and one step of Newton.

    The step that any correctly rounded division takes on this hardware, without the test for
    numbers near the ends of float32's range, which cost 9 instructions a pixel.
    """
    return tl.inline_asm_elementwise(
        RECIPROCAL_ASSEMBLY,  # pyright: ignore[reportArgumentType]
        "=&f,f",
        [x],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


BLEND = """
{
    .reg .b32 rg, b, rg_below, b_below;
    prmt.b32 rg, $3, $4, 0x5140;
    prmt.b32 b, $3, $4, 0x7362;
    prmt.b32 rg_below, $5, $6, 0x5140;
    prmt.b32 b_below, $5, $6, 0x7362;
    dp2a.lo.u32.u32 $0, $7, rg, 0x44000000;
    dp2a.lo.u32.u32 $0, $8, rg_below, $0;
    dp2a.hi.u32.u32 $1, $7, rg, 0x44000000;
    dp2a.hi.u32.u32 $1, $8, rg_below, $1;
    dp2a.lo.u32.u32 $2, $7, b, 0x44000000;
    dp2a.lo.u32.u32 $2, $8, b_below, $2;
}
"""


@triton.jit
def blend(near, far, near_below, far_below, wx, wy):
    """:func:`fnpipe.ops.warp.blend` by two-way byte dot products: 15 instructions, not 31.

    A permutation pairs each channel of neighbouring taps; weights are at most 128 * 128, so two fit
    a word. Sums are below 2**23 and start at the bits of 512.0, whose last place is 2**-14: read as
    a float, a sum is 512 more than the code, exactly, and no integer is converted.
    """
    weights = wx * 0xFFFF + 128
    red, green, blue = tl.inline_asm_elementwise(
        BLEND_ASSEMBLY,  # pyright: ignore[reportArgumentType]
        "=&r,=&r,=&r,r,r,r,r,r,r",
        [near, far, near_below, far_below, weights * (128 - wy), weights * wy],
        dtype=(tl.int32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    return (
        red.to(tl.float32, bitcast=True) - 512.0,
        green.to(tl.float32, bitcast=True) - 512.0,
        blue.to(tl.float32, bitcast=True) - 512.0,
    )


RECIPROCAL_ASSEMBLY = tl.constexpr(RECIPROCAL)
BLEND_ASSEMBLY = tl.constexpr(BLEND)

TWINS[warp.nearest] = nearest_interpreted if INTERPRETED else nearest
if not INTERPRETED:
    TWINS[warp.blend] = blend
    TWINS[pixel.quantize] = quantize
    TWINS[pixel.reciprocal] = reciprocal
