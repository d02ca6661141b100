"""Places for parcels, in memory that all processes see, used again and again.

A parcel that is sent whole goes through a pipe of 64 KiB, which one worker at a time may fill, and
is copied four times on its way. In new shared memory of its own it costs a handshake of two
processes, 1 ms, and a page fault for every 4 KiB on both sides: of 96 MB, 20 ms each. In a place it
costs neither, and a GPU copies from it at once, since its pages are locked.
"""

import contextlib
import re
import shutil
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from fnpipe.feed.locked import Locked
from fnpipe.types import LoaderError


SMALL = 2**20
"""Bytes, at most, of a place's part in the memory that is common to all places."""
ALL = 2**25
"""Bytes of that memory at most: half of what Docker gives a container in /dev/shm."""
PAGE = 4096
GROWTH = 1.25
"""How much larger than what is wanted a segment is made that was too small: windows differ in size
from batch to batch. Images do not, and to lock their pages takes 0.26 ms a megabyte."""


class Slab:
    """``count`` places for each worker. A worker takes a place, the loader frees it.

    What is too large for the common memory lies in a segment of the place's own, which a worker
    makes and the loader learns of. Without ``segments`` there are none: for batches on the host,
    which belong to whoever asked for them. Where there is no memory, there are no places.
    """

    def __init__(self, workers: int, count: int, *, segments: bool) -> None:
        size = min(SMALL, ALL // (workers * count)) // PAGE * PAGE
        try:
            common = shared_memory(workers * count * size)
        except LoaderError:
            size, common = 0, shared_memory(1)
        taken = shared_copy(torch.zeros(workers, count, dtype=torch.uint8))
        self.__setstate__((common, taken, size, segments))

    def __getstate__(self) -> tuple[Tensor, Tensor, int, bool]:
        return self._common, self._flags, self._size, self._grows

    def __setstate__(self, state: tuple[Tensor, Tensor, int, bool]) -> None:
        self._common, self._flags, self._size, self._grows = state
        # One byte a place: a worker sets it; who has the place, later the loader, clears it.
        self._taken = self._flags.numpy()
        self._lent: deque[tuple[Any, int, int]] = deque()
        self._locked: Locked | None = None
        self._segments: dict[tuple[int, int], Tensor | Locked] = {}
        self._untold: set[tuple[int, int]] = set()

    def take(self, worker: int, size: int) -> UInt8[Tensor, " size"] | None:
        """A place of a worker for ``size`` bytes; None where there is none. Errors: LoaderError."""
        free = np.flatnonzero(self._taken[worker] == 0)
        if not len(free) or (size > self._size and not self._grows):
            return None
        place = int(free[0])
        if size > self._size:
            self._grow((worker, place), size)
        self._taken[worker, place] = 1
        return self.view(worker, place, size)

    def _grow(self, at: tuple[int, int], size: int) -> None:
        """Make the segment of a place as large as that, if it is not."""
        there = at in self._segments
        if there and len(_memory(self._segments[at])) >= size:
            return
        self._segments.pop(at, None)  # first, so that there is not more than one
        self._segments[at] = shared_memory(int(size * GROWTH) if there else size)
        self._untold.add(at)

    def place(self, worker: int, buffer: Tensor) -> int | None:
        """Which of a worker's places a buffer begins; None where it is in none."""
        start, end = buffer.data_ptr(), self._common.data_ptr() + self._common.numel()
        if self._size and self._common.data_ptr() <= start < end:
            return (start - self._common.data_ptr()) // self._size % self._taken.shape[1]
        for (owner, place), segment in self._segments.items():
            if owner == worker and _memory(segment).data_ptr() == start:
                return place
        return None

    def leave(self, worker: int, buffer: Tensor) -> None:
        """Free the place that a buffer begins, if it is in one; for the worker that took it."""
        place = self.place(worker, buffer)
        if place is not None:
            self._taken[worker, place] = 0

    def news(self, worker: int, place: int) -> Tensor | None:
        """The segment of a place, where the loader has not been told of it."""
        if (worker, place) not in self._untold:
            return None
        self._untold.discard((worker, place))
        return _memory(self._segments[worker, place])

    def tell_again(self) -> None:
        """Tell the loader of all segments anew: it may have left the stream that told of them."""
        self._untold.update(self._segments)

    def learn(self, worker: int, place: int, segment: Tensor) -> None:
        """Take over a segment that a worker has told of."""
        self._segments[worker, place] = _lock(segment)

    def view(self, worker: int, place: int, size: int) -> UInt8[Tensor, " size"]:
        """The first bytes of a place."""
        if size > self._size:
            return _memory(self._segments[worker, place])[:size]
        start = (worker * self._taken.shape[1] + place) * self._size
        return self._common[start : start + size]

    def free(self, worker: int, place: int, *, after: Any = None) -> None:
        """The worker may write there again, from the event ``after`` on: a copy that is done."""
        self._lent.append((after, worker, place))
        self.look()

    def look(self) -> None:
        """Free the places of all copies that are done."""
        while self._lent and (self._lent[0][0] is None or self._lent[0][0].query()):
            _, worker, place = self._lent.popleft()
            self._taken[worker, place] = 0

    def clear(self) -> None:
        """Free every place, once no copy reads from one."""
        for event, _, _ in self._lent:
            if event is not None:
                event.synchronize()
        self._lent.clear()
        self._taken[:] = 0

    def lock_pages(self) -> None:
        """Let GPUs copy from the common memory at once; not before the workers' fork."""
        self._locked = _lock(self._common)


def _lock(memory: Tensor) -> Locked:
    locked = Locked(memory)
    if locked.error:
        warnings.warn(f"copies to the GPU wait: no locked pages ({locked.error})", stacklevel=2)
    return locked


def _memory(segment: Tensor | Locked) -> Tensor:
    return segment.memory if isinstance(segment, Locked) else segment


def shared_memory(count: int) -> UInt8[Tensor, " count"]:
    """Memory that another process can see.

    A worker that writes there at once saves the copy that sending any other tensor takes. It also
    learns that there is no more of it as an error, here; in the thread that sends, where it would
    come up else, nobody could catch it, and the loader would wait for ever.
    Errors: LoaderError.
    """
    try:
        storage = torch.UntypedStorage._new_shared(count)
    except RuntimeError as error:
        forget_name(error)
        raise LoaderError(
            f"no {count:,} bytes of shared memory for a batch ({error}): {limits()}; lower "
            "workers, prefetch or batch_size, or raise the limit (docker run --shm-size, ulimit -n)"
        ) from error
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]


def forget_name(error: Exception) -> None:
    """Remove what torch leaves behind in /dev/shm where it found too little: all that was free."""
    left = re.search(r"</(torch_\w+)>", str(error))
    if left is not None:
        with contextlib.suppress(OSError):
            Path("/dev/shm", left[1]).unlink()


def shared_copy(t: Tensor) -> Tensor:
    """A contiguous tensor's copy in such memory. Errors: LoaderError."""
    return shared_memory(t.nbytes).view(t.dtype).view(t.shape).copy_(t)


def limits() -> str:
    """How much shared memory and how many files there are to be had."""
    if not Path("/dev/shm").is_dir():
        return "this system does not say what is left of it"
    import resource  # there is none on Windows

    shm, (files, _) = shutil.disk_usage("/dev/shm"), resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"/dev/shm has {shm.free:,} bytes free of {shm.total:,}, and a process may open {files} "
        "files"
    )
