"""Fill a pool's file: what an older one has is copied, the rest decoded, by several processes."""

import contextlib
import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from xxhash import xxh3_128

from fnpipe.data.dataset import Changed, Dataset, check_dataset
from fnpipe.data.pool_file import (
    DONE,
    PENDING,
    UNREADABLE,
    PoolFile,
    begin,
    checksum,
    finish,
    lay_out,
    load,
    lock,
    turn,
    write,
    write_row,
)
from fnpipe.data.processes import Bar, check_main
from fnpipe.types import DataError


WORTH_A_PROCESS = 16
"""Photos that take longer to decode than a process takes to start by fork, about 20 ms."""
TELL = 0.1
"""Seconds between a process' looks at its parent and at what it has filled in.

It writes those rows together: a file takes one write at a time, and a process that waits for its
turn spins. A row after each photo's words made two processes spin for 6 % of theirs.
"""
PLACE = ["start", "width", "height"]
SHAPE = ["width", "height", "length"]
STATUS = ["length", "modified", "changed"]


@dataclass(frozen=True, eq=False)
class Entries:
    """The distinct files of a data set, in order of first appearance.

    Entry ``e`` is photo ``photos[e]`` at ``paths[e]``; photo ``i`` is entry ``entry[i]``. ``rows``
    say where each goes in the pool's file, and what its own file is like now.
    """

    photos: list[int]
    paths: list[str]
    entry: Int64[Tensor, " photos"]
    rows: np.ndarray


def entries(data: Dataset) -> Entries:
    """The distinct files of ``data``, each looked at; a missing one has a length of -1."""
    check_dataset(data)
    letters = data.path_bytes.numpy().tobytes()
    names = [letters[start:stop] for start, stop in pairwise(data.path_offsets.tolist())]
    first: dict[bytes, int] = {}
    for photo, name in enumerate(names):
        first.setdefault(name, photo)
    photos, place = [*first.values()], {name: e for e, name in enumerate(first)}
    paths = [os.path.join(data.root, os.fsdecode(name)) for name in first]
    rows = lay_out(data.sizes.numpy()[photos])
    found = np.array([*map(status, paths)], np.int64).reshape(-1, 3)
    for column, field in enumerate(STATUS):
        rows[field] = found[:, column]
    entry = torch.tensor([place[name] for name in names], dtype=torch.int64)
    return Entries(photos, paths, entry, rows)


def status(path: str) -> tuple[int, int, int]:
    """Bytes, mtime and ctime (ns) of a file, -1 where there is none.

    A program can set the mtime back, but not the ctime.
    """
    try:
        found = os.stat(path)
    except OSError:
        return -1, -1, -1
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def differences(file: PoolFile, data: Dataset, wanted: Entries) -> str:
    """How a pool's file differs from what is wanted, in words; empty if it does not."""
    rows = wanted.rows
    if len(file.rows) != len(rows) or not np.array_equal(file.rows[PLACE], rows[PLACE]):
        return "photos of other sizes"
    if count := int((file.rows[STATUS] != rows[STATUS]).sum()):
        return f"{count} photos changed"
    # What failed may have been the network's fault.
    lost = np.flatnonzero(file.rows["state"] == UNREADABLE).tolist()
    count = sum(_is_readable(data, wanted.photos[entry]) for entry in lost)
    return f"{count} photos can be read now" if count else ""


def _is_readable(data: Dataset, photo: int) -> bool:
    with contextlib.suppress(DataError):
        data.read_packed(photo)
        return True
    return False


def build(
    path: Path, data: Dataset, wanted: Entries, *, workers: int, again: bool, keep: bool, bar: Bar
) -> PoolFile:
    """Make the pool's file ``path``, or take the one that another made while this one waited.

    ``again`` decodes every photo, whatever there is. ``keep`` is for a file that outlives its
    processes: it reaches the disk before it gets its name, and what an interrupted build has of it
    stays. Errors: Changed, where a photo is not what the data set says; OSError on a full disk;
    ArgumentError as :func:`check_main`.
    """
    check_main()
    with turn(path) as mine:
        old = None if again else _load(path)
        if old and not differences(old, data, wanted):
            return old
        part = _adopt(path, wanted.rows) if mine and not again else None
        part = part or begin(path, wanted.rows)
        try:
            with _writing(part) as descriptor:
                if old:
                    _copy(part, descriptor, old, wanted)
                _decode(part, data, wanted, workers, bar)
                _complete(part, descriptor, data, wanted, bar)
            finish(part, path, durable=keep)
            return load(path)
        finally:
            part.close(last_removes=not keep)


def _load(path: Path, *, sealed: bool = True) -> PoolFile | None:
    with contextlib.suppress(DataError, OSError):
        return load(path, sealed=sealed)
    return None


@contextlib.contextmanager
def _writing(file: PoolFile) -> Iterator[int]:
    """A descriptor to write with, whose lock says that somebody does."""
    descriptor = os.open(file.path, os.O_RDWR)
    try:
        lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _adopt(path: Path, rows: np.ndarray) -> PoolFile | None:
    """What an interrupted build left behind, if it is of the same photos; all else of it goes.

    Whoever has the turn is the only builder, so only the processes of a dead one may still write:
    they end with their photo, and the lock is free when the last has. Entries of photos that
    changed since, and those whose words did not all reach the disk, are to be done again.
    """
    found = None
    for item in os.scandir(path.parent):
        if not (item.name.startswith(f".{path.name}.") and item.name.endswith(".part")):
            continue
        part = _load(Path(item.path), sealed=False)
        if part and not found and np.array_equal(part.rows[PLACE], rows[PLACE]):
            if lock(part.descriptors[0], alone=True, wait=True) and lock(part.descriptors[0]):
                found = part
                continue
        os.unlink(item.path)
    if found:
        with _writing(found) as descriptor:
            for index in np.flatnonzero(found.rows["state"]).tolist():
                row = found.rows[index]
                if row[STATUS] != rows[index][STATUS] or (
                    row["state"] == DONE and found.broken(index)
                ):
                    write_row(descriptor, index, rows[index])
    return found


def _copy(part: PoolFile, descriptor: int, old: PoolFile, wanted: Entries) -> None:
    """Take over the entries of photos that did not change."""
    if len(old.rows) != len(part.rows):
        return
    both = (part.rows["state"] == PENDING) & (old.rows["state"] == DONE)
    for index in np.flatnonzero(both).tolist():
        row, was = wanted.rows[index].copy(), old.rows[index]
        if _unchanged(row, was, wanted.paths[index]) and not old.broken(index):
            for name in ("content", "check", "state"):
                row[name] = was[name]
            write(descriptor, part, row, old.entry(index))
            write_row(descriptor, index, row)


def _unchanged(row: np.void, was: np.void, path: str) -> bool:
    """Whether a photo's file is the one of an older entry: by its status, else by its contents."""
    if row[SHAPE] != was[SHAPE]:
        return False
    return bool(row[STATUS] == was[STATUS]) or content(path) == was["content"].tobytes()


def content(path: str) -> bytes:
    """XXH3 of a file, 128 bits, nothing where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, xxh3_128).digest()
    except OSError:
        return b""


def _decode(part: PoolFile, data: Dataset, wanted: Entries, workers: int, bar: Bar) -> None:
    """Let processes fill in the pending entries, each its share; what one leaves stays pending."""
    pending = np.flatnonzero(part.rows["state"] == PENDING)
    # Large photos first, so that shares end at about the same time.
    pending = pending[np.argsort(-wanted.rows["length"][pending], kind="stable")]
    bar.total = len(part.rows)
    bar.initial = bar.n = bar.total - len(pending)
    workers = min(workers, len(pending) // WORTH_A_PROCESS)
    if multiprocessing.current_process().daemon:
        workers = 0  # such a process may not start others
    shares = [pending[i::workers].tolist() for i in range(workers)] if workers > 1 else []
    running = [
        multiprocessing.Process(target=_work, args=(part.path, data, wanted, share), daemon=True)
        for share in shares
    ]
    try:
        for process in running:
            process.start()
        while alive := {process.sentinel: process for process in running if process.is_alive()}:
            for ended in alive.keys() & wait(alive, timeout=0.2):
                alive[ended].join()  # else it is alive for as long as the system clears it away
            bar.update(int((part.rows["state"] != PENDING).sum()) - bar.n)
    finally:
        for process in running:
            process.terminate()
            process.join()


def _work(path: Path, data: Dataset, wanted: Entries, share: Sequence[int]) -> None:
    """Fill in a share of the entries while the parent lives; leave what fails to it."""
    parent = multiprocessing.parent_process()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    part = load(path, sealed=False)
    filled: dict[int, np.void] = {}
    with _writing(part) as descriptor:
        told = time.monotonic()
        for index in share:
            with contextlib.suppress(DataError, OSError):
                filled[index] = _fill(part, descriptor, index, data, wanted)
            if time.monotonic() - told > TELL or index == share[-1]:
                while filled:
                    write_row(descriptor, *filled.popitem())
                if parent is None or not parent.is_alive():
                    return
                told = time.monotonic()


def _complete(part: PoolFile, descriptor: int, data: Dataset, wanted: Entries, bar: Bar) -> None:
    """Fill in what is still pending, here; mark what cannot be read."""
    for index in np.flatnonzero(part.rows["state"] == PENDING).tolist():
        try:
            row = _fill(part, descriptor, index, data, wanted)
        except Changed:
            raise
        except DataError:
            row = wanted.rows[index].copy()
            row["state"] = UNREADABLE
        write_row(descriptor, index, row)
        bar.update(1)


def _fill(part: PoolFile, descriptor: int, index: int, data: Dataset, wanted: Entries) -> np.void:
    """Read a photo into its entry. The row returned, once written, makes it count.

    Errors: DataError; Changed, where it is not as listed; OSError: a full disk.
    """
    path, row = wanted.paths[index], wanted.rows[index].copy()
    contents = None  # a subclass may read from elsewhere
    with contextlib.suppress(OSError), open(path, "rb") as file:
        contents = file.read()
        row["content"] = np.frombuffer(xxh3_128(contents).digest(), np.uint8)
    words, _ = data.read_packed(wanted.photos[index], path=path, contents=contents)
    if status(path) != tuple(row[STATUS].tolist()):
        raise Changed(f"{path}: it changed while the pool was built; build it again")
    row["check"], row["state"] = checksum(words), DONE
    write(descriptor, part, row, words)
    return row
