"""COCO's run-length masks: decoded to pixels and encoded.

Runs go down the columns, first column first, and begin with zeros. The compressed form spells each
run as the difference to the run before last (from the fourth on), in groups of 5 bits, low group
first, offset by 48; bit 5 says that a group follows, bit 4 of the last is the sign (cocoapi,
``common/maskApi.c``).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int64
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
