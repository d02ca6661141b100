"""Windows copied by the GPU itself, out of a pool in the host's memory."""
# Triton gives a kernel's parameters and values no types.
# pyright: basic

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fnpipe.ops.warp import FILL_WORD


BLOCK = 1024
"""Words that a program reads at once. 512 to 4096, and one to eight programs a window, all read 30
to 32 GB/s over PCIe 5, where one plain copy reads 51; 256 windows on an H200."""


@triton.jit
def _fetch(
    words, pool, begins, pitches, columns, lines, starts, FILL: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    window = tl.program_id(0)
    pool += tl.load(begins + window)
    pitch = tl.load(pitches + window).to(tl.int64)
    width = tl.load(columns + window)
    words += tl.load(starts + window)
    before = tl.arange(0, 2) - 2
    tl.store(words + before, tl.full((2,), FILL, tl.int32))
    count = width * tl.load(lines + window)
    for first in range(0, count, BLOCK):
        place = first + tl.arange(0, BLOCK)
        line = place // width
        inside = place < count
        word = tl.load(pool + line * pitch + (place - line * width), mask=inside)
        tl.store(words + place, word, mask=inside)


def fetch_words(windows, pool: Tensor) -> Tensor:
    """The words of ``windows`` out of those of a pool: what a device can read, wherever it is."""
    words = torch.empty(len(windows.room), dtype=torch.int32, device=windows.begins.device)
    with torch.cuda.device(words.device) if words.is_cuda else nullcontext():
        run: Any = _fetch[(len(windows.begins),)]
        run(
            words, pool, windows.begins, windows.pitches, windows.sources.strides, windows.lines,
            windows.sources.offsets, FILL=FILL_WORD, BLOCK=BLOCK,
        )  # fmt: skip
    return words
