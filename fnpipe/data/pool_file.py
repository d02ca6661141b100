"""The file of a pool: a head, a row an entry, then the words of all entries, to be mapped.

    64 bytes      magic, version, entries, byte where the words begin, decoders, seal
    72 an entry   rows (:data:`ROW`)
    from 4096 k   words, entry after entry, as :func:`fnpipe.ops.warp.pack` makes them

Numbers are little-endian; nothing is pickled. The seal, SHA-256 of the rest of the head and of the
rows, is written last: a file without the right one is still being built, or broken. Rows hold a
checksum of their words, which :meth:`PoolFile.broken` compares; opening does not (it would read
all). Another version of Pillow or its libraries may decode other pixels, so its digest is there.
"""

import contextlib
import hashlib
import mmap
import os
import struct
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np
import PIL
import torch
from jaxtyping import Int32
from PIL import features
from torch import Tensor
from xxhash import xxh3_64_intdigest

from fnpipe.types import DataError


try:
    import fcntl
except ImportError:  # no POSIX: nobody waits, and unique names alone keep builders apart
    fcntl = None

MAGIC = b"\x89FNPOOL\n"
VERSION = 2
"""Of the layout, and of whatever decides the pixels of a photo: decoding, shrinking, packing."""
HEAD = struct.Struct("<8sIIQ8s32s")
PAGE = 4096
ROW = np.dtype(
    [
        ("start", "<i8"),  # the entry's first word; the two before it are fill
        ("width", "<i4"),
        ("height", "<i4"),
        ("length", "<i8"),  # the photo's file when it was read: bytes, mtime and ctime in ns
        ("modified", "<i8"),
        ("changed", "<i8"),
        ("content", "u1", 16),  # XXH3 of the file, 128 bits
        ("check", "<u8"),  # XXH3 of the entry's words, 64 bits
        ("state", "<i8"),
    ]
)
PENDING, DONE, UNREADABLE = 0, 1, 2

_one_thread = Lock()


@dataclass(frozen=True, eq=False)
class PoolFile:
    """An open pool file: its rows and words, mapped for reading. Nobody can write to either.

    The descriptor holds a shared lock, which forked children share, and which ends with the last
    process that has it. ``rows`` and ``words`` live on after :meth:`close`, without a name.
    """

    path: Path
    rows: np.ndarray
    words: Int32[Tensor, " n"]
    seal: bytes
    first: int
    descriptors: list[int]
    owner: int

    def entry(self, index: int) -> Int32[Tensor, " n"]:
        """The words of one entry, fill and border and all."""
        row = self.rows[index]
        start = int(row["start"])
        return self.words[start - 2 : start - 2 + length(row)]

    def broken(self, index: int) -> bool:
        """Whether an entry's words are not those that were written."""
        return checksum(self.entry(index).cpu()) != int(self.rows[index]["check"])

    def close(self, *, last_removes: bool = False) -> None:
        """Let go of the file; with ``last_removes``, the last one to do so removes it."""
        release(self.descriptors, self.path, self.owner, last_removes=last_removes)


def release(descriptors: list[int], path: Path, owner: int, *, last_removes: bool) -> None:
    """Close the descriptors; if asked to, remove the file where nobody else holds it.

    Closing alone would not end the lock: Python's map has a descriptor of its own, and so has a
    forked child, whose part it is not to end the lock of its parent.
    """
    while descriptors:
        descriptor = descriptors.pop()
        if os.getpid() == owner:
            if last_removes and lock(descriptor, alone=True) and same(descriptor, path):
                path.unlink()
            unlock(descriptor)
        os.close(descriptor)


@cache
def decoders() -> bytes:
    """A digest of the versions of what decodes photos, 8 bytes."""
    libraries = ("jpg", "libjpeg_turbo", "jpg_2000", "zlib", "libtiff", "webp", "avif")
    versions = [PIL.__version__, *(features.version(name) for name in libraries)]
    return hashlib.blake2s(repr(versions).encode(), digest_size=8).digest()


def checksum(words: Int32[Tensor, " n"]) -> int:
    """XXH3, 64 bits: 0.11 ms a megabyte, where CRC-32 takes 0.5 and SHA-256 0.9."""
    return xxh3_64_intdigest(words.numpy().data)


def length(row: np.void) -> int:
    """How many words an entry has."""
    return 2 + (int(row["width"]) + 2) * (int(row["height"]) + 2)


def pool_bytes(rows: np.ndarray) -> int:
    """How many bytes the words of all entries take."""
    return 4 * (int(rows["start"][-1]) - 2 + length(rows[-1])) if len(rows) else 8


def lay_out(sizes: np.ndarray) -> np.ndarray:
    """Rows of entries of ``sizes`` [n, 2] (width, height), one behind the other, all pending."""
    rows = np.zeros(len(sizes), ROW)
    rows["width"], rows["height"] = sizes[:, 0], sizes[:, 1]
    lengths = 2 + (sizes[:, 0].astype(np.int64) + 2) * (sizes[:, 1].astype(np.int64) + 2)
    rows["start"] = lengths.cumsum() - lengths + 2
    return rows


def begin(path: Path, rows: np.ndarray) -> PoolFile:
    """A new file beside ``path`` under a name that nobody else has, its entries to be written.

    It takes up space as entries are written, so a full disk is an error of :func:`write`, never a
    fault of memory.
    """
    unique = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:12]}.part")
    first = -(-(HEAD.size + rows.nbytes) // PAGE) * PAGE
    descriptor = os.open(unique, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        lock(descriptor)
        os.truncate(descriptor, first + pool_bytes(rows))
        os.pwrite(descriptor, rows.tobytes(), HEAD.size)
        os.pwrite(descriptor, HEAD.pack(MAGIC, VERSION, len(rows), first, decoders(), bytes(32)), 0)
        return load(unique, sealed=False)
    except BaseException:
        unique.unlink()
        raise
    finally:
        os.close(descriptor)


def write(descriptor: int, file: PoolFile, row: np.void, words: Tensor) -> None:
    """Write an entry's words; its row is to follow. Errors: OSError, with the path: a full disk."""
    at = file.first + 4 * (int(row["start"]) - 2)
    view = words.numpy().data.cast("B")
    try:
        while view:
            done = os.pwrite(descriptor, view, at)
            view, at = view[done:], at + done
    except OSError as error:
        error.filename = str(file.path)
        raise


def write_row(descriptor: int, index: int, row: np.void) -> None:
    """Write what is known of an entry: after its words, which it makes count."""
    os.pwrite(descriptor, row.tobytes(), HEAD.size + ROW.itemsize * index)


def finish(file: PoolFile, path: Path, *, durable: bool) -> None:
    """Seal a file and give it its name, in one step; with ``durable``, after it is on the disk."""
    head = HEAD.pack(MAGIC, VERSION, len(file.rows), file.first, decoders(), bytes(32))
    descriptor = os.open(file.path, os.O_RDWR)
    try:
        os.pwrite(descriptor, head[: HEAD.size - 32] + _seal(head, file.rows), 0)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(file.path, path)
    if durable:
        _sync_folder(path.parent)


def load(path: Path, *, sealed: bool = True) -> PoolFile:
    """Map a pool file. Errors: DataError with the reason; FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock(descriptor)
        if not same(descriptor, path):
            raise FileNotFoundError(path)
        if not os.fstat(descriptor).st_size:  # what is empty cannot be mapped
            raise DataError(f"{path}: not a pool file")
        memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        count, first, seal = _read_head(path, memory)
        rows = np.frombuffer(memory, ROW, count, HEAD.size)
        if sealed and seal != _seal(memory[: HEAD.size], rows):
            raise DataError(f"{path}: its seal is not that of its rows; it was not finished")
        with warnings.catch_warnings():
            # torch has no read-only tensors; the memory itself is, so a write ends the process.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            words = torch.frombuffer(memory, dtype=torch.int32, offset=first)
    except BaseException:
        release([descriptor], path, os.getpid(), last_removes=False)
        raise
    return PoolFile(path, rows, words, seal, first, [descriptor], os.getpid())


def _read_head(path: Path, memory: mmap.mmap) -> tuple[int, int, bytes]:
    """Number of entries, the words' first byte, the seal."""
    if len(memory) < PAGE or memory[: len(MAGIC)] != MAGIC:
        raise DataError(f"{path}: not a pool file")
    _, version, count, first, made_by, seal = HEAD.unpack_from(memory)
    if version != VERSION:
        raise DataError(f"{path}: version {version}, this is fnpipe of version {VERSION}")
    if made_by != decoders():
        raise DataError(f"{path}: its photos were decoded by another version of Pillow")
    if not HEAD.size + ROW.itemsize * count <= first <= len(memory) - 8:
        raise DataError(f"{path}: cut short")
    rows = np.frombuffer(memory, ROW, count, HEAD.size)
    if first + pool_bytes(rows) != len(memory):
        raise DataError(f"{path}: {len(memory)} bytes, its rows say otherwise")
    return count, first, seal


def _seal(head: bytes, rows: np.ndarray) -> bytes:
    return hashlib.sha256(head[: HEAD.size - 32] + rows.tobytes()).digest()


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int, *, alone: bool = False, wait: bool = False) -> bool:
    """Share a file's lock, or have it ``alone``, if need be after a wait. False where it fails."""
    if fcntl is None:
        return False
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    try:
        fcntl.flock(descriptor, how if wait or not alone else how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Give a lock back."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def sweep(folder: Path) -> None:
    """Remove the pool files of a folder that no process holds: what killed ones left behind."""
    for item in os.scandir(folder):
        if item.name.endswith((".pool", ".part")):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(item.path, os.O_RDONLY)
                release([descriptor], Path(item.path), os.getpid(), last_removes=True)


def same(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the file that was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def turn(path: Path) -> Iterator[bool]:
    """Wait for the turn to build ``path``, which ends with whoever has it, however that ends.

    A POSIX record lock: forked children do not inherit it, and it works on network file systems.
    Yields False where there are no locks: then several may build at once, under unique names.
    """
    name = path.with_name(f".{path.name}.lock")
    with _one_thread:
        while True:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
            locked = _wait(descriptor)
            if not locked or same(descriptor, name):
                break
            os.close(descriptor)
        try:
            yield locked
        finally:
            with contextlib.suppress(FileNotFoundError):
                name.unlink()
            os.close(descriptor)


def _wait(descriptor: int) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
