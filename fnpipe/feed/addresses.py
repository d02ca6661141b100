"""Where a batch is: (epoch, step). Everything else about it follows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from fnpipe.feed.ranks import Share
from fnpipe.keys import permute
from fnpipe.schedules import Schedule, value_at, values_of
from fnpipe.types import ArgumentError, check_flag, check_whole


GROUP = 16
"""Batches whose samples are looked up in one go: 64 positions cost 0.9 ms, 1024 cost 1.6."""


class Address(NamedTuple):
    """A rank's share of the batch at (epoch, step).

    ``stream`` counts how often the stream of addresses was begun anew: workers need not make what
    is asked for by an older one.
    """

    epoch: int
    step: int
    share: Share = Share()
    stream: int = 0


@dataclass(frozen=True)
class Epochs:
    """How ``count`` samples fall into batches, epoch by epoch. A value: it knows no position.

    ``batch_size`` counts the samples of all ranks together; ``limit`` the batches an epoch may
    have, None for as many as there are.
    """

    count: int
    batch_size: int | Schedule
    seed: int
    shuffle: bool = True
    drop_last: bool = False
    limit: int | None = None

    def size(self, epoch: int) -> int:
        """Samples a batch, over all ranks; the last batch of an epoch may have fewer."""
        return value_at(self.batch_size, seed=self.seed, epoch=epoch, step=0)

    def steps(self, epoch: int) -> int:
        """Batches of an epoch."""
        whole, rest = divmod(self.count, self.size(epoch))
        steps = whole + (1 if rest and not self.drop_last else 0)
        return steps if self.limit is None else min(steps, self.limit)

    def places(self, epoch: int, step: int) -> range:
        """The positions in the epoch's order that a batch holds."""
        size = self.size(epoch)
        return range(step * size, min((step + 1) * size, self.count))

    def ids(self, address: Address, *, stride: int = 1) -> Int64[Tensor, " b"]:
        """The samples of a rank's share.

        ``stride``: how many steps later the next call will be. It changes nothing but the time.
        """
        epoch, step, share, _ = address
        if not self.shuffle:
            own = share.of(self.places(epoch, step))
            return torch.arange(own.start, own.stop)
        first = step - step // stride % GROUP * stride
        steps = range(first, min(first + GROUP * stride, self.steps(epoch)), stride)
        return _shuffled(self, epoch, share, steps)[steps.index(step)]

    def following(self, epoch: int, step: int) -> tuple[int, int]:
        """The batch after this one."""
        return (epoch, step + 1) if step + 1 < self.steps(epoch) else (epoch + 1, 0)

    def check(self) -> None:
        """Errors: ArgumentError where an epoch would have no batch."""
        check_flag("shuffle", self.shuffle)
        check_flag("drop_last", self.drop_last)
        for size in values_of(self.batch_size):
            check_whole("batch_size", size, 1)
            if self.drop_last and self.count < size:
                raise ArgumentError(
                    f"drop_last leaves no batch: {self.count} photos, batch_size {size}"
                )
        if self.limit is not None:
            check_whole("limit", self.limit, 1)


@lru_cache(maxsize=4)
def _shuffled(epochs: Epochs, epoch: int, share: Share, steps: range) -> tuple[Tensor, ...]:
    """The samples of several batches: they cost by the number of operations, not of samples.

    A permutation is 100 Philox rounds in a row, each five operators, whatever their length.
    """
    parts = [share.of(epochs.places(epoch, step)) for step in steps]
    places = torch.cat([torch.arange(part.start, part.stop) for part in parts])
    mixed = permute(places, epochs.count, seed=epochs.seed, epoch=epoch)
    return mixed.split([len(part) for part in parts])


@dataclass
class Addresses:
    """A sampler for torch's DataLoader: addresses from ``start`` on, without end.

    With ``ahead`` off they end with the epoch, so that workers rest until the next one is begun.
    """

    epochs: Epochs
    ahead: bool = True
    start: Address = field(default_factory=lambda: Address(0, 0))

    def __iter__(self) -> Iterator[Address]:
        at = self.start
        while self.ahead or at.epoch == self.start.epoch:
            yield at
            epoch, step = self.epochs.following(at.epoch, at.step)
            at = at._replace(epoch=epoch, step=step)
