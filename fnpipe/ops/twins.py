"""Three definitions spelt by hand for the GPU, where one of its instructions does a whole line.

They are integer or rounding operations with one right answer, so the spelling cannot change a bit;
``properties/test_parity.py`` compares them all the same. Triton's interpreter knows no assembly and
reads the torch definitions instead (``nearest`` excepted: Triton has no rounding to even).
"""

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


MIX = """
{
    .reg .b32 weights, above, below, rest, rg, b, rg_below, b_below;
    mad.lo.u32 weights, $7, 0xFFFF, 128;
    sub.u32 rest, 128, $8;
    mul.lo.u32 above, weights, rest;
    mul.lo.u32 below, weights, $8;
    prmt.b32 rg, $3, $4, 0x5140;
    prmt.b32 b, $3, $4, 0x7362;
    prmt.b32 rg_below, $5, $6, 0x5140;
    prmt.b32 b_below, $5, $6, 0x7362;
    dp2a.lo.u32.u32 $0, above, rg, 0;
    dp2a.lo.u32.u32 $0, below, rg_below, $0;
    dp2a.hi.u32.u32 $1, above, rg, 0;
    dp2a.hi.u32.u32 $1, below, rg_below, $1;
    dp2a.lo.u32.u32 $2, above, b, 0;
    dp2a.lo.u32.u32 $2, below, b_below, $2;
}
"""


@triton.jit
def mix(near, far, near_below, far_below, wx, wy):
    """:func:`fnpipe.ops.warp.mix` by two-way byte dot products: 14 instructions, not 28.

    A permutation pairs each channel of neighbouring taps; weights are at most 128 * 128, so two fit
    a word.
    """
    return tl.inline_asm_elementwise(
        MIX_ASSEMBLY,  # pyright: ignore[reportArgumentType]
        "=&r,=&r,=&r,r,r,r,r,r,r",
        [near, far, near_below, far_below, wx, wy],
        dtype=(tl.int32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


MIX_ASSEMBLY = tl.constexpr(MIX)

TWINS[warp.nearest] = nearest_interpreted if INTERPRETED else nearest
if not INTERPRETED:
    TWINS[warp.mix] = mix
    TWINS[pixel.quantize] = quantize
