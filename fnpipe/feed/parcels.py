"""What a worker makes of an address, and how it gets to the loader."""

import os
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import get_worker_info

from fnpipe.cuts import Parcel
from fnpipe.feed.addresses import Address
from fnpipe.feed.ahead import Drawing
from fnpipe.feed.board import Board, Line
from fnpipe.feed.failures import Failure, Replaced, failure, replace_failing
from fnpipe.feed.job import Job
from fnpipe.feed.slab import GROWTH, SMALL, Slab, shared_memory
from fnpipe.packing import Packed, Slot, packed
from fnpipe.schedules import values_of
from fnpipe.types import ArgumentError, DataError


class Sent(NamedTuple):
    """A parcel in one buffer, and the samples that were replaced in it.

    ``place`` is (worker, place) where the buffer lies in the slab, and is the worker's again after
    :meth:`Workers.give_back`.
    """

    packed: Packed
    replaced: tuple[Replaced, ...] = ()
    place: tuple[int, int] | None = None

    def pin_memory(self) -> "Sent":
        """The same in page-locked memory; torch's DataLoader calls it."""
        return self._replace(packed=self.packed.pin_memory())


@dataclass(frozen=True)
class Left:
    """What a worker sends of a parcel that lies in the slab: where, and the rest of :class:`Sent`.

    No tuple, since torch's DataLoader makes lists of those on their way.
    """

    worker: int
    place: int
    size: int
    slots: tuple[Slot | None, ...]
    form: bytes
    replaced: tuple[Replaced, ...]
    segment: Tensor | None
    """The place's own memory, where the loader does not know it yet."""


class Parcels(TorchDataset[Any]):
    """What a worker makes of an address: a parcel, a failure, or None of an old stream's."""

    job: Job
    board: Board
    on_error: str
    slab: Slab | None

    def __init__(self, job: Job, board: Board, on_error: str) -> None:
        self.job, self.board, self.on_error = job, board, on_error
        self.slab = None
        self._drawing = Drawing(job)

    def __getitem__(self, address: Address) -> Sent | Left | Failure | None:
        info = get_worker_info()
        line, wanted = self.board.lines[info.id if info else 0], self.board.lines[-1]["stream"]
        if address.stream != wanted:
            return None
        if line["stream"] != address.stream:
            line["stream"], line["done"] = address.stream, 0
            if self.slab is not None:
                self.slab.tell_again()
        line["pid"], line["epoch"], line["step"] = os.getpid(), address.epoch, address.step
        line["sample"], line["since"] = -1, monotonic_ns()
        who = f"worker {info.id} (pid {os.getpid()})" if info else "no worker"
        sent = self._send(address, line, info.num_workers if info else 1, who)
        line["since"] = 0
        line["done"] += 1
        return sent

    def _send(self, address: Address, line: Line, stride: int, who: str) -> Sent | Left | Failure:
        ids, replaced, place = self.job.ids(address, stride=stride), (), self._place()
        empty = torch.empty if place is None else place.empty
        try:
            try:
                drawn = partial(self._drawing.take, address, stride=stride)
                parcel = self.job.prepare(address, line=line, drawn=drawn, empty=empty)
            except Exception:
                if self.on_error == "raise":
                    raise
                ids, replaced = replace_failing(self.job, address, ids)
                parcel = self.job.prepare(address, ids=ids, line=line, empty=empty)
            start = monotonic_ns()
            sent = Sent(packed(parcel), replaced) if place is None else place.pack(parcel, replaced)
            line.spend("pack", start)
        except Exception as error:
            if place is not None:
                place.leave()
            return failure(self.job, address, ids, error, who)
        return sent

    def _place(self) -> "Place | None":
        info = get_worker_info()
        return None if info is None or self.slab is None else Place(self.slab, info.id)


class Place:
    """Where a worker makes a parcel: in the slab, or in shared memory of its own.

    Windows, or what a package renders, nearly all of a parcel's bytes, are made in it, and what
    else there is comes behind them. Made elsewhere and copied, windows of an image take a worker
    1.4 ms for 0.6.
    """

    def __init__(self, slab: Slab, worker: int) -> None:
        self._slab, self._worker = slab, worker
        self._ground: Tensor | None = None

    def empty(self, count: int, *, dtype: torch.dtype) -> Tensor:
        """Memory for ``count`` elements at the beginning, with room for the rest of a parcel.

        What is small is made elsewhere: it may end in memory that is common to all places.
        """
        self.leave()
        size = count * dtype.itemsize
        if size < SMALL:
            return torch.empty(count, dtype=dtype)
        self._ground = self._take(size + SMALL, dtype=torch.uint8)
        return self._ground[:size].view(dtype)

    def pack(self, parcel: Any, replaced: tuple[Replaced, ...]) -> Sent | Left:
        """A parcel where the loader finds it."""
        made = packed(parcel, empty=self._take, ground=self._ground)
        if self._ground is not None and made.buffer.data_ptr() != self._ground.data_ptr():
            self.leave()
        place = self._slab.place(self._worker, made.buffer)
        if place is None:
            return Sent(made, replaced)
        size, news = made.buffer.numel(), self._slab.news(self._worker, place)
        return Left(self._worker, place, size, made.slots, made.form, replaced, news)

    def leave(self) -> None:
        """Give back what :meth:`empty` took: nobody else knows of it."""
        if self._ground is not None:
            self._slab.leave(self._worker, self._ground)
            self._ground = None

    def _take(self, count: int, *, dtype: torch.dtype) -> Tensor:
        place = self._slab.take(self._worker, count)
        return shared_memory(count) if place is None else place


def largest(job: Job) -> int:
    """Bytes of the largest first parcel of any of a job's pipelines."""
    jobs = [replace(job, recipe=pipeline) for pipeline in values_of(job.recipe)]
    return max(packed(_first(each)).buffer.numel() for each in jobs)


def _first(job: Job) -> Parcel:
    """A job's first parcel; a photo that fails is replaced, and told of when its batch is due."""
    at = Address(0, 0)
    try:
        return job.prepare(at)
    except DataError:
        ids, _ = replace_failing(job, at, job.ids(at))
        return job.prepare(at, ids=ids)


def batches_within(job: Job, memory: int, prefetch: int, workers: int, device: torch.device) -> int:
    """Batches that each worker may be ahead, ``prefetch`` at most, so that all take ``memory``.

    Errors: ArgumentError where not even one fits.
    """
    one = largest(job)
    one += SMALL if one >= SMALL else 0  # pixels are made where there is room for the rest
    if device.type == "cuda":  # places, one more than batches ahead, with room to grow
        one = int(one * GROWTH)
        fits, least = memory // one // workers - 1, 2 * workers * one
    else:  # two are with the loader: one used, one on its way
        fits, least = (memory // one - 2) // workers, (workers + 2) * one
    if fits < 1:
        raise ArgumentError(
            f"memory wanted {least:,} bytes at least, for {workers} workers and batches of "
            f"{one:,}, came {memory:,}"
        )
    return min(prefetch, fits)
