"""Where the file of a pool lies, what of a data set it holds, and whether there is room for it."""

import os
from bisect import bisect_right
from dataclasses import dataclass, replace
from hashlib import blake2s
from pathlib import Path

import numpy as np
import torch

from fnpipe.data.bill import free_bytes, size, user
from fnpipe.data.dataset import Dataset, reading
from fnpipe.data.pool_build import Entries
from fnpipe.data.pool_file import length, pool_bytes
from fnpipe.types import ArgumentError


@dataclass(frozen=True)
class Order:
    """What :func:`pool` was asked for."""

    data: Dataset
    kind: str
    limit: int | None
    overflow: str
    unreadable: str
    device: torch.device
    folder: Path
    keep: bool
    workers: int
    progress: bool


def first_rank() -> bool:
    """Whether this is the first of the processes of a host that train together.

    That is torchrun's ``LOCAL_RANK`` 0, set long before ranks are initialised; without it, rank 0.
    """
    if "LOCAL_RANK" in os.environ:
        return os.environ["LOCAL_RANK"] == "0"
    distributed = torch.distributed
    ranks = distributed.is_available() and distributed.is_initialized()
    return not ranks or distributed.get_rank() == 0


def own_folder(folder: Path) -> Path:
    """The folder, made if need be. Errors: ArgumentError where it cannot be made, and where one for
    memory is another user's.

    Such a folder lies where everybody may write; what is in it is believed, or removed.
    """
    try:
        folder = folder.expanduser()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # a container's user may have no home
        raise ArgumentError(f"no folder for pools at {folder} ({error}); pass folder=") from error
    if folder.name == f"fnpipe-{user()}" and folder.stat().st_uid != user():
        raise ArgumentError(f"{folder} belongs to another user; pass a folder of your own")
    return folder


def fitting(order: Order, wanted: Entries) -> Entries:
    """The entries that fit into the limit. Errors: ArgumentError where not all do and must."""
    count = prefix(order, wanted.rows)
    if count == len(wanted.rows) or order.kind == "device":
        return wanted
    return replace(wanted, photos=wanted.photos[:count], rows=wanted.rows[:count])


def prefix(order: Order, rows: np.ndarray) -> int:
    """How many entries the limit has room for. Errors: ArgumentError where not all and must."""
    if order.limit is None or pool_bytes(rows) <= order.limit:
        return len(rows)
    ends = [4 * (int(row["start"]) - 2 + length(row)) for row in rows]
    count = bisect_right(ends, order.limit - 4 * room(order, rows))
    if order.overflow == "raise" or count == 0:
        raise ArgumentError(
            f"a pool of {len(ends):,} photos takes {pool_bytes(rows):,} bytes, limit is "
            f"{order.limit:,}; shrink them by longest=, or hold the first {count:,} by "
            "overflow='prefix'"
        )
    return count


def room(order: Order, rows: np.ndarray) -> int:
    """Words that a part of a pool on a device leaves for the windows of photos it does not hold.

    As many as 256 of the largest photos have, which is 64 mosaics, but an eighth of the limit at
    most; none where windows do not go there.
    """
    if order.kind != "device" or order.limit is None or order.overflow != "prefix":
        return 0
    return min(order.limit // 32, 256 * max(map(length, rows), default=0))


def check_room(order: Order, wanted: Entries) -> None:
    """Errors: ArgumentError, with the numbers, where a pool does not fit into what is free."""
    for kind in dict.fromkeys(["disk" if order.keep else "ram", order.kind]):
        needed = pool_bytes(wanted.rows)
        if kind == "device" and order.limit is not None:
            needed = min(needed, order.limit)
        free = free_bytes(kind, order.folder, device=order.device)
        if free is None:
            raise ArgumentError(f"kind='device': no device {order.device} here")
        if needed > free:
            where = order.device if kind == "device" else order.folder
            raise ArgumentError(
                f"a pool of {len(wanted.rows):,} photos takes {needed:,} bytes ({size(needed)}), "
                f"{where} has {free:,} free; shrink them by longest=, hold a part by limit= and "
                "overflow='prefix', or choose another kind"
            )


def file_name(order: Order, wanted: Entries) -> str:
    """A file name for the photos of an order, whatever is in them now."""
    data = order.data
    digest = blake2s(digest_size=10)
    for part in (
        os.fsencode(data.root.resolve()),
        data.path_bytes.numpy().tobytes(),
        data.path_offsets.numpy().tobytes(),
        repr((reading(data) or None, len(wanted.rows))).encode(),
    ):
        digest.update(part)
    return f"{data.root.name[:32]}-{digest.hexdigest()}.pool"
