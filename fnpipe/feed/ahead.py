"""Plans of several batches in one go: drawing costs by the number of operations, not of samples."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fnpipe import cuts
from fnpipe.feed.addresses import Address
from fnpipe.feed.job import Job
from fnpipe.stages.stage import Layer, role
from fnpipe.types import Rings, Targets, map_tensors


SAMPLES = 512
"""Samples that are drawn together at most. Mosaics with boxes cost 0.28 ms each in a batch of 16,
0.088 in one of 64, 0.043 in one of 256, 0.036 in one of 512, 0.034 in one of 1024."""


class Drawing:
    """A worker's plans: of the batch that is due, and of its next ones, drawn ahead.

    Each batch is what it would be alone: a sample's draw depends on its key, not on its company.
    The first is drawn alone, since somebody waits for it, and then twice as many each time.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._drawn: dict[Address, cuts.Parcel] = {}
        self._most = 0

    def take(self, address: Address, *, stride: int) -> cuts.Parcel:
        """The plan and targets of a batch; the worker's next one is ``stride`` steps later."""
        if address not in self._drawn:
            self._drawn = self._together(address, stride)
        return self._drawn.pop(address)

    def _together(self, address: Address, stride: int) -> dict[Address, cuts.Parcel]:
        group = dict(self._group(address, stride))
        self._most = min(SAMPLES, 2 * max(self._most, sum(map(len, group.values()))))
        if len(group) > 1:
            # What fails in a later batch is its own to tell, when it is due.
            with suppress(Exception):
                whole = self._job.draw(address, torch.cat([*group.values()]))
                parts = split(whole, [len(ids) for ids in group.values()])
                return dict(zip(group, parts, strict=True))
        return {address: self._job.draw(address, group[address])}

    def _group(self, address: Address, stride: int) -> Iterator[tuple[Address, Tensor]]:
        """The batches that are drawn together, of one epoch and pipeline, and their samples."""
        pipeline = self._job.pipeline(address.epoch, address.step)
        layers = any(role(s) is Layer for s in pipeline.stages)  # they cost by the sample
        count = 0
        for step in range(address.step, self._job.epochs.steps(address.epoch), stride):
            at = address._replace(step=step)
            ids = self._job.ids(at, stride=stride)
            count += len(ids)
            alike = self._job.pipeline(at.epoch, step) is pipeline
            if step > address.step and (layers or count > self._most or not alike):
                return
            yield at, ids


def split(parcel: cuts.Parcel, counts: Sequence[int]) -> list[cuts.Parcel]:
    """A parcel of a plan without layers, as parcels of so many images each, in order."""
    ends = [0, *accumulate(counts)]
    rows = torch.searchsorted(parcel.targets.owner, torch.tensor(ends)).tolist()
    parts = []
    for images, instances in zip(pairwise(ends), pairwise(rows), strict=True):
        targets = _part(parcel.targets, *instances)
        targets = targets.replace(owner=targets.owner - images[0])
        parts.append(cuts.Parcel(map_tensors(_between(*images), parcel.plan), targets))
    return parts


def _part(targets: Targets, first: int, last: int) -> Targets:
    """Instances ``first`` up to ``last``."""
    rings = targets.rings
    instances = rings.instance_offsets[first : last + 1]
    offsets = rings.ring_offsets[int(instances[0]) : int(instances[-1]) + 1]
    own = Rings(
        points=rings.points[int(offsets[0]) : int(offsets[-1])],
        ring_offsets=offsets - offsets[0],
        instance_offsets=instances - instances[0],
    )
    bare = targets.replace(rings=Rings.empty(0))
    return map_tensors(_between(first, last), bare).replace(rings=own)


def _between(first: int, last: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[first:last]
