"""A data set as flat tables: where the photos are, how large, and every target in one `Targets`."""

import hashlib
import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from fnpipe.data.decode import PIXEL_LIMIT, read_image, read_packed
from fnpipe.digests import plain
from fnpipe.ops.annotate import take
from fnpipe.ops.ragged import gather_ragged
from fnpipe.ops.warp import pack_image
from fnpipe.types import ArgumentError, DataError, Image, Offsets, Sample, Sizes, Targets, Words


TASKS = ("detect", "segment", "pose", "obb")
"""What instances may carry beside a box: nothing, rings, keypoints, or a quad."""


class Changed(DataError):
    """A photo is not the one that the data set was read from."""


@dataclass(frozen=True)
class Report:
    """What a reader found and what it did about it, once, at read time.

    ``counts`` maps a problem's name to how often it was met; ``lines`` says where, one problem a
    line (file, row, what came, what was done), the first hundred of a kind, or with ``rows="drop"``
    all.
    """

    counts: dict[str, int] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([*(f"{n} {kind}" for kind, n in self.counts.items()), *self.lines])


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Photos and their targets, in flat tensors that workers share without copying.

    ``targets.owner`` is the photo's row; the instances of photo ``i`` are rows ``offsets[i]`` up to
    ``offsets[i + 1]``. ``sizes`` are the decoded, upright width and height. ``path_bytes`` and
    ``path_offsets`` hold the file names, relative to ``root``, as the file system spells them.
    ``names[label]`` is a class's name and ``categories[label]`` its id in the file it came from.
    ``keypoint_flip[k]`` is the keypoint that takes k's place in a mirrored image, or empty.
    ``report`` says what was mended, left out or looked odd.
    """

    root: Path
    path_bytes: UInt8[Tensor, " c"]
    path_offsets: Offsets
    sizes: Sizes
    image_ids: Int64[Tensor, " photos"]
    targets: Targets
    offsets: Offsets
    names: tuple[str, ...]
    categories: tuple[int, ...]
    keypoint_flip: tuple[int, ...] = ()
    task: str = "detect"
    report: Report = field(default_factory=Report)
    pixel_limit: int = PIXEL_LIMIT

    def __len__(self) -> int:
        return self.sizes.shape[0]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}, task {self.task!r}: {len(self)} photos, {len(self.targets)} "
            f"instances of {len(self.names)} classes, in {self.root}>"
        )

    def _row(self, index: int) -> int:
        """The row of photo ``index``. Errors: IndexError, and TypeError for what is no integer."""
        try:
            return range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"photo {index}: there are {len(self)}") from None
        except TypeError:
            raise TypeError(
                f"a data set is indexed by one photo, came {index!r:.80}; a part of it is "
                "data.subset(...)"
            ) from None

    def path(self, index: int) -> Path:
        """The file of photo ``index``; a negative index counts from the end."""
        index = self._row(index)
        start, stop = self.path_offsets[index : index + 2].tolist()
        return self.root / os.fsdecode(self.path_bytes[start:stop].numpy().tobytes())

    def read(self, index: int) -> Image:
        """Photo ``index``, uint8 [3, h, w], upright, RGB.

        Errors: DataError, which names the file, also where it has another size than in ``sizes``.
        """
        image = read_image(self.path(index), pixel_limit=self.pixel_limit)
        self._check_size(index, (image.shape[2], image.shape[1]))
        return image

    def read_packed(
        self, index: int, *, path: str | None = None, contents: bytes | None = None
    ) -> tuple[Words, tuple[int, int]]:
        """``fnpipe.ops.warp.pack(read(index))`` in less time, and the photo's width, height.

        ``path`` and ``contents`` are its file's, where they are at hand. Of a subclass that reads
        otherwise, it is what that reads.
        """
        if type(self).read is not Dataset.read:
            words, size = pack_image(self.read(index))
        else:
            words, size = read_packed(
                path or self.path(index), contents=contents, pixel_limit=self.pixel_limit
            )
        self._check_size(index, size)
        return words, size

    def _check_size(self, index: int, size: tuple[int, int]) -> None:
        """Errors: Changed where a photo has another width, height than all else counts on."""
        width, height = self.sizes[index].tolist()
        if size != (width, height):
            raise Changed(
                f"{self.path(index)}: {size[0]} x {size[1]} pixels, the data set says "
                f"{width} x {height}; read the data set anew"
            )

    def __getitem__(self, index: int) -> Sample:
        """Photo ``index`` with a copy of its targets (``owner`` all 0). Raises ``IndexError``."""
        index = self._row(index)
        start, stop = self.offsets[index : index + 2].tolist()
        targets = take(self.targets, torch.arange(start, stop))
        targets = targets.replace(owner=torch.zeros_like(targets.owner))
        return Sample(image=self.read(index), targets=targets, id=index, data=self)

    def subset(self, indices: Iterable[int] | Tensor) -> "Dataset":
        """The photos ``indices``, in that order, as a data set of its own.

        ``targets.ids`` count the rows of the new one; ``image_ids`` stay. Errors: ArgumentError for
        what is no integers, as a mask is none; IndexError for photos that there are not.
        """
        wanted = as_rows("indices", indices)
        beyond = wanted[(wanted < -len(self)) | (wanted >= len(self))]
        if len(beyond):
            raise IndexError(f"photo {int(beyond[0])}: there are {len(self)}")
        chosen = torch.arange(len(self))[wanted]
        rows, offsets = gather_ragged(self.offsets, chosen)
        letters, path_offsets = gather_ragged(self.path_offsets, chosen)
        owner = torch.repeat_interleave(torch.arange(len(chosen)), offsets.diff())
        return replace(
            self,
            path_bytes=self.path_bytes[letters],
            path_offsets=path_offsets,
            sizes=self.sizes[chosen],
            image_ids=self.image_ids[chosen],
            targets=take(self.targets, rows).replace(owner=owner, ids=torch.arange(len(rows))),
            offsets=offsets,
        )

    def fingerprint(self) -> str:
        """SHA-256, in hex, of all but the pixels: file names, sizes, targets, classes, task.

        Two data sets of equal fingerprint train alike if their files do. ``root`` and ``report``
        are left out, so that a copy elsewhere has the same.
        """
        digest = hashlib.sha256()
        targets, rings = self.targets, self.targets.rings
        for tensor in (
            *(self.path_bytes, self.path_offsets, self.sizes, self.image_ids, self.offsets),
            *(targets.boxes, targets.labels, targets.ignore, targets.visible),
            *(targets.keypoints, targets.quads),
            *(rings.points, rings.ring_offsets, rings.instance_offsets),
        ):
            digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        words = (self.names, self.categories, self.keypoint_flip, self.task)
        digest.update(repr(words).encode())
        return digest.hexdigest()


def reading(data: Dataset) -> str:
    """How a subclass reads photos in a way of its own: its name, and the fields that it adds.

    Empty where it reads files as they are.
    """
    kind = type(data)
    if kind.read is Dataset.read:
        return ""
    added = {n: _content(v) for n, v in vars(data).items() if n not in Dataset.__dataclass_fields__}
    return f"{kind.__module__}.{kind.__qualname__}{added!r}"


def _content(value: Any) -> Any:
    return value.fingerprint() if isinstance(value, Dataset) else plain(value)


def check_pool(pool: Any, data: Any, *, cut: str = "finished") -> None:
    """Errors: ArgumentError where a pool holds other photos than ``data``, or in other order.

    And where the host would read a pool that lies on a GPU alone: at every ``cut`` but the plan's.
    """
    whole = None if getattr(pool, "rest", None) is not None else getattr(pool, "sources", None)
    if cut != "plan" and whole is not None and whole.words.is_cuda:
        raise ArgumentError(
            f"pool wanted one that the host can read, came one on {whole.words.device}: "
            "fnpipe.pool(data, 'ram'), or for a loader cut='plan'"
        )
    own = getattr(pool, "data", None)
    known = isinstance(own, Dataset)
    if known and not (isinstance(data, Dataset) and _same_photos(own, data)):
        raise ArgumentError(
            f"pool holds {len(own)} photos that are not data's {len(data)}, or are read in another "
            "way or size: pass pool.data as data"
        )


def _same_photos(data: Dataset, other: Dataset) -> bool:
    """Whether row by row two data sets read the same files, in the same way, to the same sizes."""
    if data is other:
        return True
    if reading(data) != reading(other) or not torch.equal(data.sizes, other.sizes):
        return False
    here, there = (replace(each, root=each.root.resolve()) for each in (data, other))
    tables = ("path_offsets", "path_bytes")
    if here.root == there.root and all(
        torch.equal(getattr(here, name), getattr(there, name)) for name in tables
    ):
        return True
    return all(here.path(i) == there.path(i) for i in range(len(here)))


def as_rows(name: str, given: Any) -> Int64[Tensor, " n"]:
    """An argument as row numbers. Errors: ArgumentError for what is no integers, as a mask is."""
    several = isinstance(given, Iterable) and not isinstance(given, Tensor)
    try:
        rows = torch.as_tensor([*given] if several else given)
    except (RuntimeError, TypeError, ValueError):
        rows = torch.full((1,), torch.nan)
    if rows.numel() and rows.dtype == torch.bool:
        raise ArgumentError(
            f"{name} wanted integers, came torch.bool; of a mask take mask.nonzero().flatten()"
        )
    if rows.numel() and rows.is_floating_point():
        raise ArgumentError(f"{name} wanted integers, came {given!r:.80}")
    return rows.to(torch.int64).reshape(-1)


def check_host() -> None:
    """Errors: ArgumentError where torch makes tensors elsewhere than on the host, unasked."""
    device = torch.get_default_device()
    if device.type != "cpu":
        raise ArgumentError(
            f"torch's default device wanted cpu, came {device}: photos and plans are made on the "
            "host, and a loader's device= says where batches go; torch.set_default_device('cpu')"
        )


def check_dataset(data: Any) -> None:
    """Raise ``ArgumentError`` for anything else, and where :func:`check_host` does."""
    check_host()
    if not isinstance(data, Dataset):
        raise ArgumentError(
            f"data wanted a data set, as fnpipe.read_coco gives one, came {data!r:.80}"
        )


def lacks_outlines(data: Dataset) -> bool:
    """Whether there are instances and not one has a ring: they were read as boxes."""
    return len(data.targets) > 0 and not len(data.targets.rings.points)


def pack_names(names: Iterable[str]) -> tuple[UInt8[Tensor, " c"], Offsets]:
    """File names as bytes and where each starts."""
    coded = [os.fsencode(name) for name in names]
    letters = torch.from_numpy(np.frombuffer(bytearray(b"".join(coded)), dtype=np.uint8))
    return letters, torch.tensor([0, *accumulate(map(len, coded))])
