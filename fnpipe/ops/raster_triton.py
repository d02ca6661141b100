"""Polygons to masks on the device: the rule of :mod:`fnpipe.ops.raster`, a tile a program.

And masks to maps: the rule of :mod:`fnpipe.ops.paint`, some pixels of an image a program.

A program makes some rows of 32 columns of one instance's plane, each row a word of bits. It takes a
ring's edges by the block; a crossing toggles all bits from the first centre past it on. A block of
edges that are all above, below or right of the tile toggles none and is skipped.

The arithmetic is the definition re-read, but for :func:`first_past`, which is spelt again.
``enable_fp_fusion=False``, as ``a + b * c`` in one rounding is another number; ``div_rn``, which
re-reading puts for ``/``. Loops are ``while``: under numpy 2.4 the interpreter of Triton 3.6 cannot
count a ``range`` up to a tensor.
"""
# Triton gives a kernel's parameters and values no types.
# pyright: basic

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Int32, Int64
from torch import Tensor

from fnpipe.ops import raster
from fnpipe.ops.reread import INTERPRETED, reread
from fnpipe.types import ArgumentError, Rings


centre = reread(raster.centre)
crossing = reread(raster.crossing)
edge_to_line = reread(raster.edge_to_line)

COLUMNS = tl.constexpr(32)
SHAPE: dict[str, Any] = {"ROWS": 16, "EDGES": 32, "num_warps": 1}
"""Rows of a tile, edges of a block, warps of a program. They change speed only: 0.08 ms for 2,083
instances on 160 x 160 on an H200, where 48 other shapes took 0.09 to 0.4."""


@triton.jit
def first_past(position, width, STRIDE: tl.constexpr):
    """:func:`fnpipe.ops.raster.first_past`."""
    held = tl.minimum(tl.maximum(position, 0.0), (width * STRIDE).to(tl.float32))
    index = (held * (1 / STRIDE)).to(tl.int32)
    return index + (centre(index, STRIDE) < held).to(tl.int32)


@triton.jit
def toggles(ax, ay, bx, by, y, start, width, STRIDE: tl.constexpr):
    """Which columns from ``start`` on are past an odd number of crossings: a word a row.

    Edges lie along the first axis, rows at heights ``y`` along the second.
    """
    crossed = (tl.minimum(ay, by) <= y) & (y < tl.maximum(ay, by))
    x, top, slope, left, right = edge_to_line(ax, ay, bx, by)
    column = first_past(crossing(y, x, top, slope, left, right), width, STRIDE) - start
    shift = tl.minimum(tl.maximum(column, 0), COLUMNS - 1)
    return tl.xor_sum(tl.where(crossed & (column < COLUMNS), -1 << shift, 0), 0)


@triton.jit
def kernel(
    points, ring_offsets, instance_offsets, planes, height, width,
    STRIDE: tl.constexpr, ROWS: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    instance = tl.program_id(0).to(tl.int64)
    up, start = tl.program_id(1) * ROWS, tl.program_id(2) * COLUMNS
    row = up + tl.arange(0, ROWS)
    y = centre(row, STRIDE)[None, :]
    first_y, last_y = centre(up, STRIDE), centre(up + (ROWS - 1), STRIDE)
    last_x = centre(start + (COLUMNS - 1), STRIDE)
    covered = row * 0
    ring, rings = tl.load(instance_offsets + instance), tl.load(instance_offsets + instance + 1)
    while ring < rings:
        first, last = tl.load(ring_offsets + ring), tl.load(ring_offsets + ring + 1)
        inside = row * 0
        done = first
        while done < last:
            point = done + tl.arange(0, EDGES)[:, None]
            a = points + 2 * point
            b = points + 2 * tl.where(point + 1 < last, point + 1, first)
            # Beyond the ring's end are edges from (0, 0) to (0, 0), which cross nothing.
            ax, ay = (
                tl.load(a, mask=point < last, other=0),
                tl.load(a + 1, mask=point < last, other=0),
            )
            bx, by = (
                tl.load(b, mask=point < last, other=0),
                tl.load(b + 1, mask=point < last, other=0),
            )
            near = (tl.minimum(ay, by) <= last_y) & (tl.maximum(ay, by) > first_y)
            near = near & (tl.minimum(ax, bx) <= last_x)
            if tl.max(near.to(tl.int32)) > 0:  # type: ignore[operator]
                inside = inside ^ toggles(ax, ay, bx, by, y, start, width, STRIDE)
            done += EDGES
        covered = covered | inside
        ring += 1
    column = tl.arange(0, COLUMNS)[None, :]
    at = planes + instance * height * width + row[:, None] * width + start + column
    bits = (covered[:, None] >> column) & 1
    tl.store(at, bits != 0, mask=(row[:, None] < height) & (start + column < width))


def rasterize(rings: Rings, height: int, width: int, stride: int) -> raster.Masks:
    """The planes of :func:`fnpipe.ops.raster.masks`, each pixel written once.

    Raises ArgumentError where the rings are on no CUDA device (and Triton's interpreter is off).
    """
    points = rings.points
    if not (points.is_cuda or INTERPRETED):
        raise ArgumentError(f"impl: 'triton' wants rings on a CUDA device; came {points.device}")
    instances = len(rings.instance_offsets) - 1
    planes = torch.empty(instances, height, width, dtype=torch.bool, device=points.device)
    tiles = triton.cdiv(height, SHAPE["ROWS"]), triton.cdiv(width, COLUMNS.value)
    how: dict[str, Any] = {"STRIDE": stride, "enable_fp_fusion": False, **SHAPE}
    if instances:
        with torch.cuda.device(points.device) if points.is_cuda else nullcontext():
            kernel[instances, *tiles](
                points.contiguous(), rings.ring_offsets, rings.instance_offsets, planes,
                height, width, **how,
            )  # fmt: skip
    return planes


@triton.jit
def paint_kernel(
    planes, values, order, starts, canvas, pixels, background, PIXELS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    shown = at * 0 + background
    place, end = tl.load(starts + image), tl.load(starts + image + 1)
    while place < end:
        instance = tl.load(order + place)
        covered = tl.load(planes + instance * pixels + at, mask=at < pixels, other=0)
        shown = tl.where(covered != 0, tl.load(values + instance), shown)
        place += 1
    tl.store(canvas + image * pixels + at, shown, mask=at < pixels)


def paint(
    planes: raster.Masks,
    values: Int64[Tensor, " n"],
    owner: Int64[Tensor, " n"],
    order: Int64[Tensor, " n"],
    images: int,
    background: int,
) -> Int32[Tensor, "b mh mw"]:
    """The maps of :func:`fnpipe.ops.paint.paint`; ``order`` goes image by image, first at the
    bottom. Ascending owners say where each image's part of it begins: nothing waits for the device.
    """
    canvas = torch.empty(images, *planes.shape[1:], dtype=torch.int32, device=planes.device)
    starts = torch.searchsorted(owner, torch.arange(images + 1, device=owner.device))
    pixels = planes.shape[1] * planes.shape[2]
    how: dict[str, Any] = {"PIXELS": 1024}
    with torch.cuda.device(planes.device) if planes.is_cuda else nullcontext():
        paint_kernel[images, triton.cdiv(pixels, how["PIXELS"])](
            planes, values.int(), order, starts, canvas, pixels, background, **how,
        )  # fmt: skip
    return canvas
