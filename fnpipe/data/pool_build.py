"""Fill a pool's file: what an older one has is copied, the rest decoded, by several processes."""

import contextlib
import hashlib
import multiprocessing
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from tqdm import tqdm

from fnpipe.data.dataset import Dataset
from fnpipe.data.pool_file import (
    DONE,
    PENDING,
    UNREADABLE,
    PoolFile,
    begin,
    finish,
    lay_out,
    load,
    lock,
    turn,
    write,
    write_row,
)
from fnpipe.ops.warp import pack
from fnpipe.types import DataError


WORTH_A_PROCESS = 16
"""Photos that take as long to decode as a forked process takes to start, with room to spare."""
PLACE = ["start", "width", "height"]
STATUS = ["length", "modified", "changed"]


class Changed(DataError):
    """A photo is not what the data set was read from."""


@dataclass(frozen=True, eq=False)
class Entries:
    """The distinct files of a data set, in order of first appearance.

    Entry ``e`` is photo ``photos[e]``, and photo ``i`` is entry ``entry[i]``. ``rows`` say where
    each lies in the pool's file and what its own file is like now.
    """

    photos: list[int]
    entry: Int64[Tensor, " photos"]
    rows: np.ndarray


def entries(data: Dataset) -> Entries:
    """List a data set's distinct files and look at each. A missing one has length -1."""
    letters, root = data.path_bytes.numpy().tobytes(), os.fsencode(data.root)
    paths = [letters[start:stop] for start, stop in pairwise(data.path_offsets.tolist())]
    first: dict[bytes, int] = {}
    photos = [
        i for i, path in enumerate(paths) if first.setdefault(path, len(first)) == len(first) - 1
    ]
    order = {path: e for e, path in enumerate(first)}
    rows = lay_out(data.sizes.numpy()[photos])
    found = np.array([status(os.path.join(root, path)) for path in first], np.int64).reshape(-1, 3)
    for column, name in enumerate(STATUS):
        rows[name] = found[:, column]
    return Entries(photos, torch.tensor([order[path] for path in paths]), rows)
