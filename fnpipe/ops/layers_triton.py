"""Layers in the fused pass: :func:`fnpipe.ops.render.lay` re-read, and the text that calls it.

An image with nothing on top goes the way it goes without layers: whether it has is one scalar. One
that has looks pixel by pixel, once for each layer that it has, before its colours.
"""
# Triton gives a kernel's parameters and values no types.
# pyright: basic

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fnpipe.ops import render
from fnpipe.ops.reread import reread
from fnpipe.ops.warp_triton import look, numbers_of, tile_of
from fnpipe.types import Plan


lay = reread(render.lay)
POINTERS = "sources maps splits mirror cover weight active".split()


@triton.jit
def lay_over(
    r, g, b, column, line, width, height, words, offsets, sizes, origins, strides,
    sources, maps, splits, mirror, cover, share, GRID: tl.constexpr, PROJECTIVE: tl.constexpr,
):  # fmt: skip
    """Output pixels (column, line), whose colour so far is r, g, b, with one layer on top."""
    x, y = column.to(tl.float32) + 0.5, line.to(tl.float32) + 0.5
    x = tl.where(tl.load(mirror), width - x, x)
    y = tl.where(tl.load(mirror + 1), height - y, y)
    tile = 0
    if GRID > 1:
        tile = tile_of(x, y, splits, GRID)
    numbers = numbers_of(words, offsets, sizes, origins, strides, sources, maps, tile, PROJECTIVE)
    over_r, over_g, over_b = look(x, y, numbers, PROJECTIVE)
    inside = (column < width) & (line < height)
    covered = tl.load(cover + (line * width + column), mask=inside, other=0) != 0
    return lay(r, g, b, over_r, over_g, over_b, tl.where(covered, 0.0, share))


LOADS = """
    active# = tl.load(active# + image)
    weight# = tl.load(weight# + image)
    sources# += image * (GRID * GRID)
    maps# += image * (GRID * GRID * 9)
    splits# += image * (2 * (GRID - 1) * 3)
    mirror# += image * 2
    cover# += image.to(tl.int64) * (height * width)
"""
CALLS = """
            if active#:
                at_x = left + 2 * tl.arange(0, PAIRS)[None, :]
                at_y = top + step * STEP + tl.arange(0, STEP)[:, None]
                r0, g0, b0 = lay_over(r0, g0, b0, at_x, at_y, OPERANDS)
                r1, g1, b1 = lay_over(r1, g1, b1, at_x + 1, at_y, OPERANDS)
"""
OPERANDS = (
    "width, height, words, offsets, sizes, origins, strides, sources#, maps#, splits#, mirror#, "
    "cover#, weight#, GRID, PROJECTIVE"
)


def layer_pointers(layers: int) -> list[str]:
    """The kernel's arguments that are about layers."""
    return [f"{name}{i}" for i in range(layers) for name in POINTERS]


def layer_tensors(plan: Plan) -> list[Tensor]:
    """What :func:`layer_pointers` names."""
    found = []
    for over in plan.overs:
        above = over.plan
        found += [above.sources, above.maps, above.splits, above.mirror]
        found += [over.cover, over.weight, over.active]
    return found


def with_layers(kernel: str, layers: int, names: dict[str, Any]) -> str:
    """The text of a kernel that lays ``layers`` pictures on top; ``names`` gets what it calls."""
    if not layers:
        return kernel.replace("LAYERS\n", "")
    names["lay_over"] = lay_over
    loads = "".join(LOADS.replace("#", str(i)) for i in range(layers))
    calls = CALLS.replace("OPERANDS", OPERANDS)
    laid = "".join(calls.replace("#", str(i)) for i in range(layers))
    bare = " & ".join(f"(active{i} == 0)" for i in range(layers))
    kernel = kernel.replace("PARAMETERS\n", f"PARAMETERS\n{loads}    bare = {bare}\n")
    kernel = kernel.replace("whole & outside", "bare & whole & outside")
    kernel = kernel.replace("whole & level", "bare & whole & level")
    return kernel.replace("LAYERS\n", laid)
