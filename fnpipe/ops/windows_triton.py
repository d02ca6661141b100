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


PROGRAMS, WARPS, BLOCK = 4, 32, 8192
"""Programs that share the windows, and the words that each reads at once. These alone fill PCIe 5
(30 GB/s; a plain copy 51) on an H200, and a training step beside them takes 11.38 ms for 11.12; a
program a window took every SM and 12.95, and 12,000 small copies a batch 10 ms of the host."""


@triton.jit(do_not_specialize=["count"])
def _fetch(
    words, pool, begins, pitches, columns, lines, starts, count, FILL: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    before = tl.arange(0, 2) - 2
    for window in range(tl.program_id(0), count, tl.num_programs(0)):
        source = pool + tl.load(begins + window)
        pitch = tl.load(pitches + window).to(tl.int64)
        width = tl.load(columns + window)
        made = words + tl.load(starts + window)
        tl.store(made + before, tl.full((2,), FILL, tl.int32))
        size = width * tl.load(lines + window)
        for first in range(0, size, BLOCK):
            place = first + tl.arange(0, BLOCK)
            line = place // width
            inside = place < size
            word = tl.load(source + line * pitch + (place - line * width), mask=inside)
            tl.store(made + place, word, mask=inside)


def fetch_words(windows, pool: Tensor) -> Tensor:
    """The words of ``windows`` out of those of a pool: what a device can read, wherever it is."""
    words = torch.empty(len(windows.room), dtype=torch.int32, device=windows.begins.device)
    count = len(windows.begins)
    with torch.cuda.device(words.device) if words.is_cuda else nullcontext():
        run: Any = _fetch[(min(count, PROGRAMS),)]
        run(
            words, pool, windows.begins, windows.pitches, windows.sources.strides, windows.lines,
            windows.sources.offsets, count, FILL=FILL_WORD, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return words
