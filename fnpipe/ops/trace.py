"""Masks to rings that fill them again: along the edges of pixels, exactly."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor


def trace_mask(mask: Bool[Tensor, "h w"]) -> list[Float32[Tensor, "p 2"]]:
    """Rings along pixel edges, in pixels, that fill exactly ``mask`` (even-odd, then united).

    Without holes, one ring a piece; pieces that touch at a corner only may share one. With holes,
    one ring in all, the :func:`bridge` of every boundary, whose straight lines enclose nothing.
    """
    loops, holes = _loops(np.pad(mask.numpy(), 1))
    rings = [torch.from_numpy(loop) for loop in loops]
    return [bridge(rings)] if holes else rings


def bridge(rings: Sequence[Float[Tensor, "_ 2"]]) -> Float[Tensor, "p 2"]:
    """One ring that walks all of ``rings``, going from one to the next and back on the same lines.

    It fills by even-odd what an odd number of the rings hold: their union where none overlap.
    """
    if len(rings) == 1:
        return rings[0]
    back = [ring[:1] for ring in reversed(rings[1:-1])]
    return torch.cat([*(torch.cat([ring, ring[:1]]) for ring in rings), *back])


def _loops(mask: Bool[np.ndarray, "h w"]) -> tuple[list[Float32[np.ndarray, "p 2"]], int]:
    """Closed boundaries as corner points, and how many of them go round a hole.

    ``mask`` has a border of one empty pixel. Corners of one row pair up to the boundary's
    horizontal parts, those of one column to its vertical parts; a loop takes both in turn. Where
    two pixels touch at a corner, the corner counts twice.
    """
    a, b, c, d = mask[:-1, :-1], mask[:-1, 1:], mask[1:, :-1], mask[1:, 1:]
    left, right = a ^ c, b ^ d  # where a vertical step lies above and below a corner
    twice = left & right & (a ^ b)
    places = np.flatnonzero((left ^ right) | twice)
    y, x = np.divmod(places, twice.shape[1])
    times = 1 + twice.reshape(-1)[places]
    x, y = np.repeat(x, times), np.repeat(y, times)
    down = np.lexsort((y, x))
    other = np.empty(len(x), dtype=np.int64)
    other[down.reshape(-1, 2)] = down.reshape(-1, 2)[:, ::-1]
    points = np.stack([x, y], axis=1).astype(np.float32)
    starts = mask[1:, 1:][y, x]
    loops, holes, partner, seen = [], 0, other.tolist(), bytearray(len(x))
    for corner in range(len(x)):
        loop, here = [], corner
        while not seen[here]:
            across = here ^ 1  # corners lie in the order of rows, so the partners are 2k and 2k + 1
            seen[here] = seen[across] = 1
            loop += [here, across]
            here = partner[across]
        if loop:
            loops.append(points[loop])
            holes += not starts[corner]
    return loops, holes
