"""Homographies in float64, by additions and multiplications in a stated order.

No matmul: a library is free to order or fuse its sums, and then a plan would depend on the machine.
Sine and cosine are polynomials for the same reason. All of this runs on the host, once a sample:
the inner work is numpy on views of CPU tensors, whose operators cost 1 us on 64 maps, torch's 5.
"""

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fnpipe.types import Maps


Column = Float64[Tensor, "*batch"]


def compose(
    after: Float64[Tensor, "*#batch 3 3"], before: Float64[Tensor, "*#batch 3 3"]
) -> Float64[Tensor, "*out 3 3"]:
    """The map that does ``before``, then ``after``: their product."""
    rows, columns = after.numpy(), before.numpy()
    first, second, third = (rows[..., :, k, None] * columns[..., None, k, :] for k in range(3))
    return torch.from_numpy((first + second) + third)


def invert(maps: Maps) -> Maps:
    """The inverse, by cofactors, scaled so that an affine map's last row is exactly 0 0 1.

    A singular map gives infinities; stages refuse to draw one.
    """
    columns = np.moveaxis(maps.flatten(-2).numpy(), -1, 0)
    a, b, c, d, e, f, g, h, i = columns
    out = np.empty(maps.shape)
    out[..., 0, 0], out[..., 0, 1], out[..., 0, 2] = e * i - f * h, c * h - b * i, b * f - c * e
    out[..., 1, 0], out[..., 1, 1], out[..., 1, 2] = f * g - d * i, a * i - c * g, c * d - a * f
    out[..., 2, 0], out[..., 2, 1], out[..., 2, 2] = d * h - e * g, b * g - a * h, a * e - b * d
    # Along the last row: for an affine map it is 0 0 1, so this is the very number in the corner.
    determinant = (g * out[..., 0, 2] + h * out[..., 1, 2]) + i * out[..., 2, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        out /= determinant[..., None, None]
    return torch.from_numpy(out)


def matrix(rows: list[list[Column | float]]) -> Maps:
    """A batch of maps from nine columns; numbers stand for constant ones."""
    columns = [x.numpy() if isinstance(x, Tensor) else x for row in rows for x in row]
    out = np.empty((*np.broadcast(*columns).shape, 9))
    for place, column in enumerate(columns):
        out[..., place] = column
    return torch.from_numpy(out).unflatten(-1, (3, 3))


def scale_and_shift(sx: Column, sy: Column, tx: Column, ty: Column) -> Maps:
    """(x, y) to (sx x + tx, sy y + ty)."""
    return matrix([[sx, 0.0, tx], [0.0, sy, ty], [0.0, 0.0, 1.0]])


def mirror(flips: Tensor, sizes: Tensor) -> Maps:
    """Horizontal and vertical flips [b, 2] of frames of width, height [b, 2]."""
    flipped = flips.numpy()
    sign = torch.from_numpy(np.where(flipped, -1.0, 1.0))
    shift = torch.from_numpy(np.where(flipped, sizes.double().numpy(), 0.0))
    return scale_and_shift(*sign.unbind(-1), *shift.unbind(-1))


def sine_cosine(degrees: Column) -> tuple[Column, Column]:
    """Sine and cosine of degrees, exact at multiples of 90, the same on every machine.

    The angle is reduced to within 45 degrees of a quarter turn, then Taylor's polynomials to the
    17th power: the next term is below 2**-59.
    """
    angle = degrees.numpy()
    quarters = np.rint(angle / 90.0)
    x = (angle - quarters * 90.0) * (math.pi / 180.0)
    squared = x * x
    sine = cosine = np.ones_like(x)
    for n in (16, 14, 12, 10, 8, 6, 4, 2):
        sine = 1.0 - sine * (squared / (n * (n + 1)))
        cosine = 1.0 - cosine * (squared / (n * (n - 1)))
    sine = sine * x
    turn = np.remainder(quarters, 4.0)
    swapped = turn % 2.0 == 1.0
    sine, cosine = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    # sin(x + 90) = cos x, cos(x + 90) = -sin x, and so on round the circle; 0 - 0 is never -0.
    sine = np.where(turn >= 2.0, 0.0 - sine, sine)
    cosine = np.where((turn == 1.0) | (turn == 2.0), 0.0 - cosine, cosine)
    return torch.from_numpy(sine), torch.from_numpy(cosine)


def fit(sizes: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """The largest size with a photo's aspect inside ``width`` x ``height``, and its scale.

    ``sizes`` is width, height [b, 2], float64. Sides are rounded half up, at least 1 pixel, and the
    scales are those of the rounded sides, so that nothing is lost on the way back.
    """
    whole, box = sizes.numpy(), np.array([width, height], dtype=np.float64)
    ratio = (box / whole).min(-1, keepdims=True)
    fitted = np.minimum(np.maximum(np.floor(whole * ratio + 0.5), 1.0), box)
    return torch.from_numpy(fitted), torch.from_numpy(fitted / whole)
