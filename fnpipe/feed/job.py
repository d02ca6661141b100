"""The work behind an address: from (epoch, step) to a parcel."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from fnpipe import cuts
from fnpipe.data.dataset import Dataset
from fnpipe.feed.addresses import Address, Epochs
from fnpipe.feed.board import Line
from fnpipe.keys import key
from fnpipe.pipeline import Pipeline
from fnpipe.schedules import value_at
from fnpipe.types import Empty, Image, Plan, Sources, Words


Photo = TypeVar("Photo")


@dataclass(frozen=True)
class Job:
    """All that a worker needs to make the parcel of any address. A value: it pickles.

    ``recipe`` is a pipeline, or a schedule or buckets of them.
    """

    data: Dataset
    recipe: Any
    epochs: Epochs
    cut: str
    backend: str
    pool: Any = None

    def pipeline(self, epoch: int, step: int) -> Pipeline:
        """The pipeline of a batch."""
        return value_at(self.recipe, seed=self.epochs.seed, epoch=epoch, step=step)

    def ids(self, address: Address, *, stride: int = 1) -> Int64[Tensor, " b"]:
        """The samples that are made for an address.

        Those of the rank's share; where it has none, the batch's first as a pattern: the loader
        hands out none of it.
        """
        own = self.epochs.ids(address, stride=stride)
        if len(own):
            return own
        return self.epochs.ids(address._replace(share=address.share._replace(rank=0)))

    def draw(self, address: Address, ids: Int64[Tensor, " b"] | None = None) -> cuts.Parcel:
        """The plan and targets of an address's samples, or of others."""
        rows = self.ids(address) if ids is None else ids
        at = key(seed=self.epochs.seed, epoch=address.epoch, sample=rows)
        return cuts.draw(self.data, self.pipeline(address.epoch, address.step), at)

    def prepare(
        self,
        address: Address,
        *,
        ids: Int64[Tensor, " b"] | None = None,
        line: Line | None = None,
        drawn: Callable[[], cuts.Parcel] | None = None,
        empty: Empty = torch.empty,
    ) -> cuts.Parcel:
        """A worker's part of a batch: all up to the cut.

        ``ids`` are its samples, where they are not the address's; ``line`` takes the times;
        ``drawn`` has its plan, where that is not drawn here; ``empty`` gives the memory for
        pixels.
        """
        line = line or Line()
        pipeline = self.pipeline(address.epoch, address.step)
        start = monotonic_ns()
        parcel = self.draw(address, ids) if drawn is None else drawn()
        start, read = line.spend("draw", start), line["read"]
        timed = isinstance(self.pool, cuts.Reader)  # what a pool lacks is cut out, not gathered
        pool = _TimedPool(self.pool, line) if timed else self.pool
        photos = _TimedPhotos(self.data, line)
        parcel = cuts.add_pixels(
            parcel, pipeline, self.cut, self.backend, photos, pool, empty=empty
        )
        line.spend("render", start + line["read"] - read)
        return parcel


class _TimedPhotos:
    """A data set that notes which photo it reads, and for how long."""

    def __init__(self, data: Dataset, line: Line) -> None:
        self._data, self._line = data, line
        self.sizes, self.targets, self.offsets = data.sizes, data.targets, data.offsets
        self.keypoint_flip = data.keypoint_flip

    def read(self, index: int) -> Image:
        return self._timed(self._data.read, index)

    def read_packed(self, index: int) -> tuple[Words, tuple[int, int]]:
        return self._timed(self._data.read_packed, index)

    def _timed(self, read: Callable[[int], Photo], index: int) -> Photo:
        start, self._line["sample"] = monotonic_ns(), index
        photo = read(index)
        self._line.spend("read", start)
        self._line["sample"] = -1
        return photo


class _TimedPool:
    """A pool that notes how long it takes."""

    def __init__(self, pool: cuts.Reader, line: Line) -> None:
        self._pool, self._line = pool, line

    def gather(self, plan: Plan) -> tuple[Sources, Plan]:
        start = monotonic_ns()
        found = self._pool.gather(plan)
        self._line.spend("read", start)
        return found
