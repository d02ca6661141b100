"""Photos decoded once and kept: in memory, one copy a host; in a file; or on the device."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from fnpipe.data.bill import KINDS, cores, place, size
from fnpipe.data.dataset import Dataset, Report
from fnpipe.data.pool_build import Entries, build, content, differences, entries
from fnpipe.data.pool_file import (
    DONE,
    UNREADABLE,
    PoolFile,
    load,
    pool_bytes,
    release,
    sweep,
)
from fnpipe.data.pool_order import (
    Order,
    check_room,
    file_name,
    first_rank,
    fitting,
    own_folder,
    prefix,
    room,
)
from fnpipe.data.prepare import prepare
from fnpipe.data.processes import Bar
from fnpipe.ops.warp import join_sources
from fnpipe.ops.windows import Windows, gather, measure
from fnpipe.types import ArgumentError, DataError, Plan, Sources, Words, check_choice, check_whole


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Decoded photos of ``data``, which is the data set to draw from: photo i is ``sources`` i.

    ``data`` is the one that the pool was made of, at the size it was prepared to, without the
    photos that could not be read. ``held`` says which photos are here, None if all are; of a pool
    on a device, ``rest`` has the others. ``sources`` cannot be written to on the CPU: their memory
    is mapped for reading, so a write ends the process. It goes to workers by any start method
    without a copy.
    """

    data: Dataset
    kind: str
    sources: Sources
    held: Bool[Tensor, " photos"] | None
    order: Order
    file: PoolFile
    rest: "Rest | None" = None

    def __repr__(self) -> str:
        return f"<Pool, {self.kind!r}: {self.bytes / 1e6:.1f} MB of {self.data!r}>"

    @property
    def bytes(self) -> int:
        """Bytes of all pixels, and of what a part of a pool leaves free for windows."""
        return 4 * self.sources.words.numel()

    def gather(self, plan: Plan) -> tuple[Sources, Plan]:
        """The pixels of the photos that ``plan`` needs, and the plan, counting in them.

        Everything as it is, without a copy, where all of them are held; else those photos alone,
        the missing ones decoded now: the same bytes. Errors: DataError as ``data.read`` raises.
        """
        if self.rest is not None:
            return self.rest.host.gather(plan)
        if self.held is None:
            return self.sources, plan
        photos = plan.every_source
        if bool(self.held[photos[photos >= 0]].all()):
            return self.sources, plan
        return gather(plan, self._entry, join=join_sources)

    def _entry(self, photo: int) -> tuple[Words, tuple[int, int]]:
        """The words of a photo, decoded if it is not held, and its width and height."""
        if self.held is not None and not self.held[photo]:
            return self.data.read_packed(photo)
        start = int(self.sources.offsets[photo]) - 2
        width, height = self.sources.sizes[photo].tolist()
        end = start + 2 + (width + 2) * (height + 2)
        return self.sources.words[start:end], (width, height)

    def close(self) -> None:
        """Give the pool up: memory is free when the last tensor and process that has it is gone."""
        self.file.close(last_removes=self.kind == "ram")
        if self.rest is not None:
            self.rest.host.close()

    def verify(self) -> None:
        """Compare every photo's file and every entry with what they were when it was made.

        Reads all of both. Errors: DataError naming what differs.
        """
        paths, faults = entries(self.order.data).paths, []
        for index in np.flatnonzero(self.file.rows["state"] == DONE).tolist():
            path, row = paths[index], self.file.rows[index]
            if content(path) != row["content"].tobytes():
                faults.append(f"{path}: its contents changed")
            if self.file.broken(index):
                faults.append(f"{path}: its pixels in {self.file.path} changed")
        if faults:
            raise DataError("\n".join([f"{len(faults)} faults in a pool:", *faults]))

    def rebuild(self) -> "Pool":
        """Another pool of the same order, every photo decoded anew; this one stays as it is."""
        return _make(self.order, again=True)

    def __reduce__(self) -> tuple[Callable[..., "Pool"], tuple[Any, ...]]:
        if self.kind == "device":
            raise ArgumentError("a pool on a device cannot be sent to another process")
        rest = self.sources.replace(words=torch.zeros(0, dtype=torch.int32))
        file = self.file.path, self.file.seal
        return _reopen, (self.data, self.kind, rest, self.held, self.order, file)


@dataclass(frozen=True, eq=False)
class Rest:
    """What workers send of photos that a pool on a device does not hold: windows, from ``host``.

    The device copies them to the first ``room`` words of its pool, which are free for that. Where
    it reads ``host`` itself, workers only say where they are: they copy nothing (``copies``).
    """

    host: Pool
    held: Bool[Tensor, " photos"]
    room: int
    copies: bool = True

    @property
    def lacking(self) -> float:
        """The share of photos that the device does not hold."""
        return 1.0 - int(self.held.sum()) / len(self.held)

    def measure(self, plan: Plan) -> tuple[Windows | None, Plan, bool]:
        """Windows for ``plan``, the plan that counts in them, and whether it needs nothing else.

        They show the photos that the device lacks (None where it lacks none), numbered after those
        that it holds. Where they would not fit into its room, there are windows of all photos.
        """
        every = plan.every_source
        lacking = (every >= 0) & ~self.held[every.clamp(min=0)]
        if not bool(lacking.any()):
            return None, plan, False
        sources = self.host.sources
        windows, local = measure(sources, plan.with_sources(torch.where(lacking, every, -1)))
        if len(windows.room) > self.room:
            return *measure(sources, plan), True
        rows = torch.where(local.every_source < 0, -1, local.every_source + len(self.held))
        return windows, plan.with_sources(torch.where(lacking, rows, every)), False


def _reopen(
    data: Dataset,
    kind: str,
    sources: Sources,
    held: Tensor | None,
    order: Order,
    named: tuple[Path, bytes],
) -> Pool:
    """The pool that another process sent: its file, found by name."""
    path, seal = named
    try:
        file = load(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: the pool was closed before this process could open it") from error
    if file.seal != seal:
        file.close()
        raise DataError(f"{path}: the pool was built anew before this process could open it")
    return _kept(Pool(data, kind, sources.replace(words=file.words), held, order, file))


def pool(
    data: Dataset,
    kind: str,
    *,
    longest: int | None = None,
    limit: int | None = None,
    overflow: str = "raise",
    unreadable: str = "raise",
    device: torch.device | str = "cuda",
    folder: Path | str | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Pool:
    """Decode every distinct file of ``data`` once, before anything random, and keep the pixels.

    - ``kind``: "ram" is memory of the host, one copy for all processes that ask for the same photos
      (ranks, workers), gone with the last of them. "disk" is a file in ``folder`` that is mapped,
      and found again by the next run. "device" is one upload to ``device``.
    - ``longest``: prepare the photos first (:func:`fnpipe.data.prepare.prepare`).
    - ``limit``: the most bytes to take. What needs more is refused ("raise"), or, with
      ``overflow="prefix"``, the first photos are held and the others decoded when they are needed.
      On a device they are not: the limit is the device's, the host holds all, and workers send
      windows of what the device lacks.
    - ``unreadable``: "raise" names all photos that cannot be read; "drop" leaves them out of
      ``Pool.data`` and counts them in its report.
    - ``workers``: processes to decode with, by default as many as there are cores; ``progress``:
      a bar meanwhile, by default of a host's first rank alone.

    Errors: ArgumentError for an unknown choice, and, with the numbers, where there is not enough
    room; DataError for unreadable photos, and photos that are not what the data set was read from.
    """
    check_choice("kind", kind, KINDS)
    check_choice("overflow", overflow, ("raise", "prefix"))
    check_choice("unreadable", unreadable, ("raise", "drop"))
    if workers is not None:
        check_whole("workers", workers, 0)
    if overflow == "prefix" and limit is None:
        raise ArgumentError("overflow='prefix' needs a limit")
    keep = kind == "disk" or (kind == "device" and folder is not None)
    order = Order(
        data=data if longest is None else prepare(data, longest=longest),
        kind=kind,
        limit=limit,
        overflow=overflow,
        unreadable=unreadable,
        device=torch.device(device),
        folder=own_folder(place("disk" if keep else "ram", folder=folder)),
        keep=keep,
        workers=cores() if workers is None else workers,
        progress=first_rank() if progress is None else progress,
    )
    return _make(order, again=False)


def _make(order: Order, *, again: bool) -> Pool:
    wanted = fitting(order, entries(order.data))
    path = order.folder / file_name(order, wanted)
    file, reason = (None, "all again") if again else _ready(path, order.data, wanted)
    if file is None:
        if not order.keep:
            sweep(order.folder)
        check_room(order, wanted)
        title = f"{size(pool_bytes(wanted.rows))} of photos ({reason})"
        with Bar(desc=title, unit=" photos", disable=not order.progress) as bar:
            file = build(
                path, order.data, wanted,
                workers=order.workers, again=again, keep=order.keep, bar=bar,
            )  # fmt: skip
    return _assemble(order, wanted, file)


def _ready(path: Path, data: Dataset, wanted: Entries) -> tuple[PoolFile | None, str]:
    """The pool's file if it is there and of the photos as they are now; else why not."""
    try:
        file = load(path)
    except FileNotFoundError:
        return None, "new"
    except DataError as error:
        return None, str(error)
    reason = differences(file, data, wanted)
    if reason:
        file.close()
    return (None if reason else file), reason


def _assemble(order: Order, wanted: Entries, file: PoolFile) -> Pool:
    data, entry = order.data, wanted.entry
    held = entry < len(file.rows)
    place = torch.where(held, entry, 0)
    table = {name: torch.from_numpy(file.rows[name].copy()) for name in ("start", "state")}
    lost = held & (table["state"].to(torch.int64)[place] == UNREADABLE)
    if bool(lost.any()):
        try:
            data = _without(data, lost, order.unreadable)
        except DataError:
            file.close(last_removes=not order.keep)
            raise
        held, place = held[~lost], place[~lost]
    sizes, kind = data.sizes.to(torch.int32), "disk" if order.keep else "ram"
    sources = Sources(
        words=file.words,
        offsets=torch.where(held, table["start"][place], -1),
        sizes=sizes,
        origins=torch.zeros_like(sizes),
        strides=sizes[:, 0] + 2,
    )
    made = _kept(Pool(data, kind, sources, None if held.all() else held, order, file))
    return _uploaded(made) if order.kind == "device" else made


def _uploaded(host: Pool) -> Pool:
    """The pool, or as much of it as the limit allows, on the device of its order."""
    order, rows = host.order, host.file.rows
    count = prefix(order, rows)
    free = room(order, rows) if count < len(rows) else 0
    rows = rows[:count].copy()
    used = pool_bytes(rows) // 4
    words = torch.empty(free + used, dtype=torch.int32, device=order.device)
    words[free:].copy_(host.sources.words[:used])
    rows["start"] += free
    held = host.sources.offsets < used
    offsets = torch.where(held, host.sources.offsets + free, -1)
    made = Pool(
        data=host.data,
        kind="device",
        sources=host.sources.replace(words=words, offsets=offsets).to(order.device),
        held=held if free else None,
        order=order,
        file=replace(host.file, rows=rows, words=words, descriptors=[]),
        rest=Rest(host, held, free) if free else None,
    )
    if not free:
        host.close()
    return made


def _without(data: Dataset, lost: Tensor, policy: str) -> Dataset:
    """``data`` without the photos that cannot be read. Errors: DataError naming them, if asked."""
    reasons = []
    for photo in lost.nonzero().flatten().tolist():
        try:
            data.read(photo)
        except DataError as error:
            reasons.append(str(error))
        else:
            reasons.append(f"{data.path(photo)}: could not be read when the pool was built")
    if policy == "raise":
        raise DataError("\n".join([f"{len(reasons)} photos cannot be read:", *reasons]))
    report = data.report
    counts = {**report.counts}
    counts["photo dropped"] = counts.get("photo dropped", 0) + len(reasons)
    lines = (*report.lines, *(f"photo dropped: {reason}" for reason in reasons))
    left = data.subset((~lost).nonzero().flatten())
    return replace(left, report=Report(counts=counts, lines=lines))


def _kept(made: Pool) -> Pool:
    """Let go of the file at the latest when this process forgets the pool, or ends."""
    file = made.file
    weakref.finalize(
        file, release, file.descriptors, file.path, file.owner, last_removes=made.kind == "ram"
    )
    return made
