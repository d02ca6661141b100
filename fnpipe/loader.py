"""Epochs of batches: addresses go to workers, parcels come back, the device does the rest.

A batch's address is (epoch, step). Which samples it holds, how they are drawn, everything follows
from the address, the data set, the recipe and the seed, so nothing has to be remembered: workers
can be ahead in the next epoch, a run can resume anywhere, and their number changes no byte.
"""

import pickle
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fnpipe import cuts
from fnpipe.data.dataset import Dataset
from fnpipe.explain import explain
from fnpipe.keys import key, permute
from fnpipe.packing import Packed, packed
from fnpipe.pipeline import Pipeline
from fnpipe.types import ArgumentError, Batch, Sources


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to make the parcel of any address. A value: it pickles."""

    data: Dataset
    pipeline: Pipeline
    batch_size: int
    seed: int
    cut: str
    backend: str
    shuffle: bool
    drop_last: bool
    pool: Any = None

    @property
    def steps(self) -> int:
        """Batches an epoch."""
        whole, rest = divmod(len(self.data), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def ids(self, epoch: int, step: int) -> Tensor:
        """The samples of a batch: a slice of the epoch's permutation, computed on the spot."""
        first = step * self.batch_size
        places = torch.arange(first, min(first + self.batch_size, len(self.data)))
        if not self.shuffle:
            return places
        return permute(places, len(self.data), seed=self.seed, epoch=epoch)

    def prepare(self, epoch: int, step: int) -> cuts.Parcel:
        """What the worker does of a batch: up to the cut."""
        at = key(seed=self.seed, epoch=epoch, sample=self.ids(epoch, step))
        parcel = cuts.draw(self.data, self.pipeline, at)
        return cuts.add_pixels(parcel, self.pipeline, self.cut, self.backend, self.data, self.pool)


class _Parcels(TorchDataset[Packed]):
    """Parcels by address, each in one buffer."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __getitem__(self, address: tuple[int, int]) -> Packed:
        return packed(self.job.prepare(*address))


class _Addresses:
    """A sampler of (epoch, step), from ``start`` on, without end."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.start: tuple[int, int] = (0, 0)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch, step = self.start
        while True:
            yield epoch, step
            epoch, step = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)


class Loader:
    """Batches of augmented samples, an epoch at a time.

    ``for batch in loader`` runs epoch 0, the next ``for`` epoch 1, and so on; workers already
    prepare the next epoch while the last steps of this one run. ``cut`` says what workers do and
    what is left to ``device`` (:mod:`fnpipe.cuts`); ``pool`` holds decoded photos, and for the cut
    ``"plan"`` holds them on the device. ``backend`` and ``worker_backend`` say how each side
    renders (:data:`fnpipe.backends.BACKENDS`); left out, the fastest that is there is taken, and
    :meth:`explain` says which and why. None of them changes a byte, nor does ``workers``.

    Errors: ArgumentError for an empty data set, an unknown cut or backend, a cut without the pool
    it needs, a recipe that cannot be sent to workers.
    """

    def __init__(
        self,
        data: Dataset,
        pipeline: Pipeline,
        *,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        cut: str = "finished",
        backend: str | None = None,
        worker_backend: str | None = None,
        pool: Any = None,
        workers: int = 0,
        start_method: str | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        prefetch: int = 2,
    ) -> None:
        self.device = torch.device(device)
        self.backends = cuts.choose_backends(pipeline, cut, self.device, worker_backend, backend)
        if len(data) == 0:
            raise ArgumentError(f"data wanted at least one photo, came an empty set ({data.root})")
        if batch_size < 1:
            raise ArgumentError(f"batch_size wanted >= 1, came {batch_size}")
        _check_pool(pool, data)
        self._pool = _device_pool(pool, self.device) if cut == "plan" else None
        self.job = Job(
            data, pipeline, batch_size, seed, cut, self.backends.worker, shuffle, drop_last,
            getattr(pool, "rest", None) if cut == "plan" else pool,
        )  # fmt: skip
        if self.job.steps == 0:
            raise ArgumentError(
                f"drop_last leaves no batch: {len(data)} photos, batch_size {batch_size}"
            )
        self.epoch = 0
        self._addresses = _Addresses(self.job.steps)
        if workers:
            _check_picklable(pipeline)
            if self.backends.worker == "package" and cut in ("finished", "warped"):
                # Built here once, so that workers only load it.
                self.job.prepare(0, 0)
        self._loader = DataLoader(
            _Parcels(self.job),
            batch_size=None,
            sampler=self._addresses,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=prefetch if workers else None,
            multiprocessing_context=start_method if workers else None,
            pin_memory=self.device.type == "cuda",
        )
        self._side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._parcels: Iterator[Packed] | None = None
        self._expected: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Batches an epoch."""
        return self.job.steps

    def set_epoch(self, epoch: int) -> None:
        """Go on with ``epoch``; not needed between epochs."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        if self._parcels is None or self._expected != (epoch, 0):
            self._addresses.start = (epoch, 0)
            self._parcels = iter(self._loader)
        self.epoch, self._expected = epoch + 1, None
        moved: deque[cuts.Parcel] = deque()
        for step in range(len(self)):
            # The next parcel is on its way to the device while this one is used.
            while len(moved) < 2 and step + len(moved) < len(self):
                moved.append(self._move(next(self._parcels)))
            if step + 1 == len(self):
                self._expected = (epoch + 1, 0)
            yield self._complete(moved.popleft())

    def _move(self, buffer: Packed) -> cuts.Parcel:
        """Copy a parcel to the device, on a stream of its own, without waiting for it."""
        if self._side is None:
            return buffer.unpack()
        with torch.cuda.stream(self._side):
            return buffer.to(self.device, non_blocking=True).unpack()

    def _complete(self, parcel: cuts.Parcel) -> Batch:
        if self._side is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_stream(self._side)
            # The copy's memory belongs to the side stream; it must not be reused before this
            # stream is done with it.
            parcel.plan.maps.record_stream(stream)
        return cuts.complete(
            parcel, self.job.pipeline, backend=self.backends.device, pool=self._pool
        )

    def explain(self) -> str:
        """What runs where, in which backend, and the bytes that cross."""
        return explain(self.job.pipeline, cut=self.job.cut, backends=self.backends)


def _check_pool(pool: Any, data: Dataset) -> None:
    """Errors: ArgumentError where a pool holds other photos than the data set, or other sizes."""
    own = getattr(pool, "data", None)
    if own is not None and not torch.equal(own.sizes, data.sizes):
        raise ArgumentError(
            f"pool holds {len(own)} photos in other sizes than data's {len(data)}: "
            "pass pool.data as data"
        )


def _device_pool(pool: Any, device: torch.device) -> Sources:
    """The sources of a pool on ``device``. Errors: ArgumentError where there are none."""
    sources = getattr(pool, "sources", None)
    if sources is None or sources.words.device.type != device.type:
        came = "none" if sources is None else f"one on {sources.words.device}"
        raise ArgumentError(
            f"cut 'plan' wanted a pool on {device}, came {came}: pool=fnpipe.pool(data, 'device')"
        )
    return sources


def _check_picklable(pipeline: Pipeline) -> None:
    """Errors: ArgumentError naming the stage that cannot be sent to a worker."""
    for s in pipeline.stages:
        try:
            pickle.dumps(s)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ArgumentError(
                f"stage {s!r} cannot be sent to workers: {error}; define its function with def at "
                "the top level of a module"
            ) from error
