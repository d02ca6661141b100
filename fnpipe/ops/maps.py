"""Homographies in float64, by additions and multiplications in a stated order.

No matmul: a library is free to order or fuse its sums, and then a plan would depend on the machine.
Sine and cosine are polynomials for the same reason. All of this runs on the host, once a sample.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from fnpipe.types import Maps


Column = Float64[Tensor, "*batch"]


def compose(
    after: Float64[Tensor, "*#batch 3 3"], before: Float64[Tensor, "*#batch 3 3"]
) -> Float64[Tensor, "*out 3 3"]:
    """The map that does ``before``, then ``after``: their product."""
    first, second, third = (after[..., :, k, None] * before[..., None, k, :] for k in range(3))
    return (first + second) + third


def invert(maps: Maps) -> Maps:
    """The inverse, by cofactors, scaled so that an affine map's last row is exactly 0 0 1.

    A singular map gives infinities; stages refuse to draw one.
    """
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in maps.unbind(-2))
    rows = [
        torch.stack([e * i - f * h, c * h - b * i, b * f - c * e], -1),
        torch.stack([f * g - d * i, a * i - c * g, c * d - a * f], -1),
        torch.stack([d * h - e * g, b * g - a * h, a * e - b * d], -1),
    ]
    # Along the last row: for an affine map it is 0 0 1, so this is the very number in the corner.
    determinant = (g * rows[0][..., 2] + h * rows[1][..., 2]) + i * rows[2][..., 2]
    return torch.stack(rows, -2) / determinant[..., None, None]


def matrix(rows: list[list[Column | float]]) -> Maps:
    """A batch of maps from nine columns; numbers stand for constant ones."""
    columns = [x for row in rows for x in row]
    shape = torch.broadcast_shapes(*(x.shape for x in columns if isinstance(x, Tensor)))
    full = [
        x.expand(shape) if isinstance(x, Tensor) else torch.full(shape, x, dtype=torch.float64)
        for x in columns
    ]
    return torch.stack(full, -1).unflatten(-1, (3, 3))


def scale_and_shift(sx: Column, sy: Column, tx: Column, ty: Column) -> Maps:
    """(x, y) to (sx x + tx, sy y + ty)."""
    return matrix([[sx, 0.0, tx], [0.0, sy, ty], [0.0, 0.0, 1.0]])


def mirror(flips: Tensor, sizes: Tensor) -> Maps:
    """Horizontal and vertical flips [b, 2] of frames of width, height [b, 2]."""
    sign = torch.where(flips, -1.0, 1.0).to(torch.float64)
    shift = torch.where(flips, sizes.to(torch.float64), 0.0)
    return scale_and_shift(sign[..., 0], sign[..., 1], shift[..., 0], shift[..., 1])


def sine_cosine(degrees: Column) -> tuple[Column, Column]:
    """Sine and cosine of degrees, exact at multiples of 90, the same on every machine.

    The angle is reduced to within 45 degrees of a quarter turn, then Taylor's polynomials to the
    17th power: the next term is below 2**-59.
    """
    quarters = torch.round(degrees / 90.0)
    x = (degrees - quarters * 90.0) * (math.pi / 180.0)
    squared = x * x
    sine, cosine = torch.ones_like(x), torch.ones_like(x)
    for n in (16, 14, 12, 10, 8, 6, 4, 2):
        sine = 1.0 - sine * (squared / (n * (n + 1)))
        cosine = 1.0 - cosine * (squared / (n * (n - 1)))
    sine = sine * x
    turn = torch.remainder(quarters, 4.0).to(torch.int64)
    swapped = turn % 2 == 1
    sine, cosine = torch.where(swapped, cosine, sine), torch.where(swapped, sine, cosine)
    # sin(x + 90) = cos x, cos(x + 90) = -sin x, and so on round the circle; 0 - 0 is never -0.
    sine = torch.where(turn >= 2, 0.0 - sine, sine)
    cosine = torch.where((turn == 1) | (turn == 2), 0.0 - cosine, cosine)
    return sine, cosine


def fit(sizes: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """The largest size with a photo's aspect inside ``width`` x ``height``, and its scale.

    ``sizes`` is width, height [b, 2], float64. Sides are rounded half up, at least 1 pixel, and the
    scales are those of the rounded sides, so that nothing is lost on the way back.
    """
    box = torch.tensor([width, height], dtype=torch.float64)
    ratio = (box / sizes).amin(-1, keepdim=True)
    fitted = torch.minimum((sizes * ratio + 0.5).floor().clamp(min=1.0), box)
    return fitted, fitted / sizes
