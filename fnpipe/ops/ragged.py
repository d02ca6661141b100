"""Ragged arrays: runs laid end to end in one flat array, told apart by their offsets."""

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fnpipe.types import Offsets


Rows = Int64[np.ndarray, " _"]
Starts = Int64[np.ndarray, " _"]


def offsets_of(counts: Int64[Tensor, " n"]) -> Offsets:
    """The offsets of runs of these lengths."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def ranges(first: Rows, counts: Rows) -> Rows:
    """The integers ``first[i]``, ``first[i] + 1``, ... (``counts[i]`` of them), i by i."""
    return np.arange(counts.sum()) + np.repeat(first - (counts.cumsum() - counts), counts)


def gather(offsets: Starts, rows: Rows) -> tuple[Rows, Starts]:
    """Positions of all items of ragged ``rows``, in the order asked for, and their new offsets."""
    first = offsets[rows]
    counts = offsets[rows + 1] - first
    return ranges(first, counts), np.append(0, counts.cumsum())


def gather_ragged(
    offsets: Offsets, rows: Int64[Tensor, " k"]
) -> tuple[Int64[Tensor, " q"], Offsets]:
    """:func:`gather` of tensors; the result is where ``rows`` are."""
    found = gather(offsets.cpu().numpy(), rows.cpu().numpy())
    index, starts = (torch.from_numpy(part).to(rows.device) for part in found)
    return index, starts
