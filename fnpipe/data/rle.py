"""COCO's run-length masks: decoded to pixels, encoded, and traced to rings that fill them again.

Runs go down the columns, first column first, and begin with zeros. The compressed form spells each
run as the difference to the run before last (from the fourth on), in groups of 5 bits, low group
first, offset by 48; bit 5 says that a group follows, bit 4 of the last is the sign (cocoapi,
``common/maskApi.c``).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from fnpipe.types import DataError


Counts = Sequence[int] | str | bytes


def decode_rle(counts: Counts, height: int, width: int) -> Bool[Tensor, "h w"]:
    """Mask of a COCO RLE: list of runs, or its compressed string.

    Raises ``DataError`` unless the runs are non-negative and cover ``height * width`` pixels.
    """
    lengths = _lengths(counts)
    if (lengths < 0).any() or lengths.sum() != height * width:
        raise DataError(
            f"RLE runs: wanted {height} x {width} = {height * width} pixels in runs of at least 0, "
            f"got {int(lengths.sum())} in runs of at least {int(lengths.min(initial=0))}"
        )
    values = np.arange(len(lengths)) % 2 == 1
    return torch.from_numpy(np.repeat(values, lengths).reshape(width, height).T)


def encode_rle(mask: Bool[Tensor, "h w"]) -> list[int]:
    """Runs of a mask, as COCO's uncompressed RLE lists them: zeros first."""
    flat = mask.T.reshape(-1).numpy()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    first = [0] if len(flat) and flat[0] else []
    return first + np.diff(changes, prepend=0, append=len(flat)).tolist()


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


def _lengths(counts: Counts) -> Int64[np.ndarray, " n"]:
    if not isinstance(counts, str | bytes):
        return np.array(counts, dtype=np.int64).reshape(-1)
    text = counts.encode("latin-1") if isinstance(counts, str) else counts
    groups = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - 48
    if len(groups) and (groups.min() < 0 or groups.max() > 63 or groups[-1] & 32):
        raise DataError(f"RLE counts: wanted COCO's compressed runs, got {text[:20]!r}")
    last = np.flatnonzero(groups & 32 == 0)
    first = np.append(0, last[:-1] + 1)[: len(last)]
    place = 5 * (np.arange(len(groups)) - np.repeat(first, last - first + 1))
    lengths = np.add.reduceat((groups & 31) << place, first) if len(last) else groups
    lengths -= (groups[last] >> 4 & 1) << (place[last] + 5)
    for start in (1, 2):  # a run from the fourth on is the difference to the one before last
        lengths[start::2] = lengths[start::2].cumsum()
    return lengths


def _loops(mask: Bool[np.ndarray, "h w"]) -> tuple[list[Float32[np.ndarray, "p 2"]], int]:
    """Closed boundaries as corner points, and how many of them go round a hole.

    ``mask`` has a border of one empty pixel. Corners of one row pair up to the boundary's
    horizontal parts, those of one column to its vertical parts; a loop takes both in turn. Where
    two pixels touch at a corner, the corner counts twice.
    """
    a, b, c, d = mask[:-1, :-1], mask[:-1, 1:], mask[1:, :-1], mask[1:, 1:]
    turns = (a ^ b ^ c ^ d) + 2 * ((a == d) & (b == c) & (a != b)).astype(np.int8)
    y, x = np.nonzero(turns)
    times = turns[y, x]
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
