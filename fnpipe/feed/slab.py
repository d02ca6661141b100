"""Places for small parcels, in memory that all processes see and a GPU copies from.

A worker that leaves its parcel there sends a few hundred bytes. Sent whole it would go through a
pipe of 64 KiB, which one worker at a time may fill, and be copied four times on its way; in shared
memory of its own it would cost a handshake of two processes, 1 ms.
"""

import warnings
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor


PLACE = 2**20
"""Bytes of a place at most."""
ALL = 2**25
"""Bytes of all places at most: half of what Docker gives a container in /dev/shm."""
PAGE = 4096


class Slab:
    """``count`` places for each worker. A worker takes a place, the loader frees it.

    Where there is no such memory there are no places, and parcels go their own ways.
    """

    def __init__(self, workers: int, count: int) -> None:
        size = min(PLACE, ALL // (workers * count)) // PAGE * PAGE
        try:
            storage = torch.UntypedStorage._new_shared(workers * count * size)
        except RuntimeError:
            size, storage = 0, torch.UntypedStorage._new_shared(1)
        self._bytes = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
        taken = torch.zeros(workers, count, dtype=torch.uint8).share_memory_()
        self.__setstate__((self._bytes, taken, size))
        self._lent: deque[tuple[Any, int, int]] = deque()

    def __getstate__(self) -> tuple[Tensor, Tensor, int]:
        return self._bytes, self._flags, self._size

    def __setstate__(self, state: tuple[Tensor, Tensor, int]) -> None:
        self._bytes, self._flags, self._size = state
        # One byte a place: only a worker sets it, only the loader clears it.
        self._taken = self._flags.numpy()

    def take(self, worker: int, size: int) -> UInt8[Tensor, " size"] | None:
        """A place of a worker for ``size`` bytes; None where there is none, or none as large."""
        free = np.flatnonzero(self._taken[worker] == 0)
        if size > self._size or not len(free):
            return None
        self._taken[worker, free[0]] = 1
        return self.view(worker, int(free[0]), size)

    def place(self, buffer: Tensor) -> int | None:
        """Which of a worker's places a buffer is; None where it is none."""
        start = buffer.data_ptr() - self._bytes.data_ptr()
        if not (self._size and 0 <= start < self._bytes.numel()):
            return None
        return start // self._size % self._taken.shape[1]

    def view(self, worker: int, place: int, size: int) -> UInt8[Tensor, " size"]:
        """The first bytes of a place."""
        start = (worker * self._taken.shape[1] + place) * self._size
        return self._bytes[start : start + size]

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
        """Let GPUs copy from here without a stop in between; not before the workers' fork."""
        runtime: Any = torch.cuda.cudart()
        address = self._bytes.data_ptr()
        error = runtime.cudaHostRegister(address, self._bytes.numel(), 0)
        if int(error):
            warnings.warn(f"places of parcels stay pageable, copies wait: {error}", stacklevel=2)
            return
        weakref.finalize(self, _unlock, address, self._bytes).atexit = False


def _unlock(address: int, memory: Tensor) -> None:
    """``memory`` is held until here."""
    runtime: Any = torch.cuda.cudart()
    runtime.cudaHostUnregister(address)
