"""A data set as flat tables: where the photos are, how large, and every target in one `Targets`."""

import hashlib
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
from fnpipe.ops.annotate import take
from fnpipe.ops.points import gather_ragged
from fnpipe.ops.warp import pack_image
from fnpipe.types import ArgumentError, Image, Offsets, Sample, Sizes, Targets, Words


@dataclass(frozen=True)
class Report:
    """What a reader found and what it did about it, once, at read time.

    ``counts`` maps a problem's name to how often it was met; ``lines`` says where, one problem a
    line (file, row, what came, what was done), the first hundred of a kind.
    """

    counts: dict[str, int] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([*(f"{n} {kind}" for kind, n in self.counts.items()), *self.lines])


@dataclass(frozen=True, eq=False)
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

    def path(self, index: int) -> Path:
        """The file of photo ``index``; a negative index counts from the end."""
        index = range(len(self))[index]
        start, stop = self.path_offsets[index : index + 2].tolist()
        return self.root / os.fsdecode(self.path_bytes[start:stop].numpy().tobytes())

    def read(self, index: int) -> Image:
        """Photo ``index``, uint8 [3, h, w], upright, RGB. ``DataError`` names the file."""
        return read_image(self.path(index), pixel_limit=self.pixel_limit)

    def read_packed(
        self, index: int, *, path: str | None = None, contents: bytes | None = None
    ) -> tuple[Words, tuple[int, int]]:
        """``fnpipe.ops.warp.pack(read(index))`` in less time, and the photo's width, height.

        ``path`` and ``contents`` are its file's, where they are at hand. Of a subclass that reads
        otherwise, it is what that reads.
        """
        if type(self).read is not Dataset.read:
            return pack_image(self.read(index))
        return read_packed(
            path or self.path(index), contents=contents, pixel_limit=self.pixel_limit
        )

    def __getitem__(self, index: int) -> Sample:
        """Photo ``index`` with a copy of its targets (``owner`` all 0). Raises ``IndexError``."""
        if isinstance(index, slice):
            raise TypeError("a data set is indexed by one photo; a part of it is data.subset(...)")
        try:
            index = range(len(self))[index]
        except IndexError:
            raise IndexError(f"photo {index}: there are {len(self)}") from None
        start, stop = self.offsets[index : index + 2].tolist()
        targets = take(self.targets, torch.arange(start, stop))
        targets = targets.replace(owner=torch.zeros_like(targets.owner))
        return Sample(image=self.read(index), targets=targets, id=index, data=self)

    def subset(self, indices: Iterable[int] | Tensor) -> "Dataset":
        """The photos ``indices``, in that order, as a data set of its own.

        ``targets.ids`` count the rows of the new one; ``image_ids`` stay. Errors: ArgumentError for
        what is no integers: a mask is none either.
        """
        chosen = indices if isinstance(indices, Tensor) else torch.tensor([*indices])
        if chosen.numel() and (chosen.is_floating_point() or chosen.dtype == torch.bool):
            raise ArgumentError(
                f"indices wanted integers, came {chosen.dtype}; a mask's are mask.nonzero()[:, 0]"
            )
        chosen = torch.arange(len(self))[chosen.to(torch.int64)]
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


def check_dataset(data: Any) -> None:
    """Raise ``ArgumentError`` for anything else."""
    if not isinstance(data, Dataset):
        raise ArgumentError(
            f"data wanted a data set, as fnpipe.read_coco gives one, came {data!r:.80}"
        )


def pack_names(names: Iterable[str]) -> tuple[UInt8[Tensor, " c"], Offsets]:
    """File names as bytes and where each starts."""
    coded = [os.fsencode(name) for name in names]
    letters = torch.from_numpy(np.frombuffer(bytearray(b"".join(coded)), dtype=np.uint8))
    return letters, torch.tensor([0, *accumulate(map(len, coded))])
