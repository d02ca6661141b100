"""What a pool costs, before anything is allocated: bytes, time, and what there is of each."""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fnpipe.data.dataset import Dataset
from fnpipe.data.pool_build import entries
from fnpipe.data.pool_file import pool_bytes
from fnpipe.data.prepare import prepare
from fnpipe.types import DataError


KINDS = ("ram", "disk", "device")
TRIED = 16
"""Photos at most that are decoded to tell how long all will take."""


@dataclass(frozen=True)
class Bill:
    """What a pool of a data set costs. ``str()`` of it is a table.

    ``bytes`` is what every kind takes: four a pixel, a border of one pixel, eight more a photo.
    ``rgb_bytes`` is three a pixel, for comparison. ``seconds`` is an estimate for this machine's
    ``cores``, from a few photos. ``free`` holds the bytes that a kind may take, None without a GPU.
    """

    photos: int
    files: int
    bytes: int
    rgb_bytes: int
    seconds: float
    cores: int
    free: dict[str, int | None]

    def __str__(self) -> str:
        lines = [
            f"{self.photos:,} photos in {self.files:,} files",
            f"{size(self.bytes)} as a pool ({size(self.rgb_bytes)} as plain RGB)",
            f"about {self.seconds:,.0f} s to build on {self.cores} cores",
        ]
        for kind, free in self.free.items():
            fits = "not here" if free is None else f"{size(free)} free"
            if free is not None and free < self.bytes:
                fits += f", {size(self.bytes - free)} short"
            lines.append(f"  {kind:6}  {fits}")
        return "\n".join(lines)


def bill(data: Dataset, *, longest: int | None = None, folder: Path | str | None = None) -> Bill:
    """What :func:`fnpipe.data.pool.pool` of ``data`` costs, and what is free for each kind.

    ``longest`` prepares the photos, ``folder`` is where a pool on disk would lie. Decodes a few
    photos to estimate the time; allocates nothing else.
    """
    if longest is not None:
        data = prepare(data, longest=longest)
    wanted = entries(data)
    tried = wanted.photos[:: -(-len(wanted.photos) // TRIED) or 1]
    start = time.perf_counter()
    for photo in tried:
        try:
            data.read_packed(photo)
        except DataError:  # an estimate leaves it to the pool to say so
            continue
    each = (time.perf_counter() - start) / max(1, len(tried))
    pixels = data.sizes[wanted.photos].prod(-1).sum()
    return Bill(
        photos=len(data),
        files=len(wanted.photos),
        bytes=pool_bytes(wanted.rows),
        rgb_bytes=3 * int(pixels),
        seconds=each * len(wanted.photos) / cores(),
        cores=cores(),
        free={kind: free_bytes(kind, place(kind, folder=folder)) for kind in KINDS},
    )


def free_bytes(kind: str, where: Path, *, device: torch.device | str = "cuda") -> int | None:
    """Bytes that a pool of ``kind`` in the folder ``where`` may take now; None without a device."""
    if kind == "device" and torch.device(device).type != "cpu":
        return torch.cuda.mem_get_info(device)[0] if torch.cuda.is_available() else None
    there = next(folder for folder in (where, *where.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    return free if kind == "disk" else min(_available(), free)


def place(kind: str, *, folder: Path | str | None = None) -> Path:
    """Where the file of a pool lies, made or not: in ``folder``, or in the usual one.

    On the disk that is ``$XDG_CACHE_HOME/fnpipe/pools``. Pools in memory lie in a folder of the
    user's own in ``/dev/shm``, or in the temporary folder where there is no such place.
    """
    if kind == "disk":
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return Path(folder) if folder is not None else Path(cache) / "fnpipe" / "pools"
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    return Path(shared if folder is None else folder) / f"fnpipe-{user()}"


def user() -> int:
    """The number of the user, 0 where there is none."""
    return os.getuid() if hasattr(os, "getuid") else 0


def _available() -> int:
    """Bytes of memory that can be had without swapping."""
    try:
        with open("/proc/meminfo") as lines:
            table = dict(line.split(":") for line in lines)
        return 1024 * int(table["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cores() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def size(count: int) -> str:
    """Bytes for people: 1.2 GB."""
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count:,} bytes"
