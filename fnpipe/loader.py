"""Epochs of batches: addresses go to workers, parcels come back, the device does the rest.

A batch's address is (epoch, step). Which samples it holds, how they are drawn, everything follows
from the address, the data set, the recipe and the seed, so nothing has to be remembered: workers
can be ahead in the next epoch, a run can resume anywhere, and their number changes no byte.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float32, Shaped
from torch import Tensor
from torch.utils.data import DataLoader

from fnpipe.backends import check_backend
from fnpipe.data.dataset import Dataset
from fnpipe.keys import key, permute
from fnpipe.ops.render import finish, paint, warp
from fnpipe.packing import Packed, packed
from fnpipe.pipeline import Pipeline, gather
from fnpipe.types import ArgumentError, Batch, Movable, Plan, Targets, value


CUTS = ("finished", "warped")


@value
class Parcel(Movable):
    """What a worker sends: finished images or warped planes, the targets, and the plan."""

    plan: Plan
    targets: Targets
    images: Shaped[Tensor, "b 3 h w"] | None = None
    planes: Float32[Tensor, "b 3 h w"] | None = None


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

    def prepare(self, epoch: int, step: int) -> Parcel:
        """What the worker does of a batch: up to the cut."""
        return make_parcel(
            self.data, self.pipeline, self.ids(epoch, step),
            seed=self.seed, epoch=epoch, cut=self.cut, backend=self.backend,
        )  # fmt: skip


def make_parcel(
    data: Dataset, pipeline: Pipeline, ids: Tensor, *, seed: int, epoch: int, cut: str, backend: str
) -> Parcel:
    """Draw, annotate, and render up to the cut."""
    plan = pipeline.draw(key(seed=seed, epoch=epoch, sample=ids), data)
    targets = pipeline.annotate(plan, data)
    sources, local = gather(plan, data.read)
    if cut == "warped":
        return Parcel(plan, targets, planes=torch.stack(warp(sources, local), 1))
    return Parcel(plan, targets, images=pipeline.render(local, sources, backend=backend))


def complete(parcel: Parcel, pipeline: Pipeline) -> Batch:
    """What the device does of a batch: from the cut on."""
    images = parcel.images
    if images is None:
        assert parcel.planes is not None
        recipe = pipeline.recipe(parcel.plan.size)
        red, green, blue = parcel.planes.unbind(1)
        planes = paint((red, green, blue), parcel.plan.colors, recipe.chain)
        images = finish(planes, recipe.finish)
    return Batch(images, parcel.targets, parcel.plan.ids, parcel.plan.epochs)


def make_batch(
    data: Dataset,
    pipeline: Pipeline,
    ids: Any,
    *,
    seed: int,
    epoch: int = 0,
    backend: str = "eager",
) -> Batch:
    """The batch of samples ``ids`` (a sequence or a tensor [b]), here and now, on the CPU."""
    rows = torch.as_tensor(ids, dtype=torch.int64).reshape(-1)
    if len(rows) and not (0 <= int(rows.min()) and int(rows.max()) < len(data)):
        raise ArgumentError(
            f"ids wanted samples in [0, {len(data)}), came {int(rows.min())} to {int(rows.max())}"
        )
    parcel = make_parcel(
        data, pipeline, rows, seed=seed, epoch=epoch, cut="finished", backend=backend
    )
    return complete(parcel, pipeline)


class _Parcels(torch.utils.data.Dataset[Packed]):
    """Parcels by address."""

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
    prepare the next epoch while the last steps of this one run. ``cut`` says what workers do
    (``"finished"``: all; ``"warped"``: up to the resample, colour on ``device``), ``backend`` how
    they render (:data:`fnpipe.backends.BACKENDS`). Neither changes a byte, nor does ``workers``.

    Errors: ArgumentError for an empty data set, an unknown cut or backend, a recipe that cannot be
    sent to workers.
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
        backend: str = "eager",
        workers: int = 0,
        start_method: str | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        prefetch: int = 2,
    ) -> None:
        if cut not in CUTS:
            raise ArgumentError(f"cut wanted one of {', '.join(CUTS)}, came {cut!r}")
        check_backend(backend)
        if len(data) == 0:
            raise ArgumentError(f"data wanted at least one photo, came an empty set ({data.root})")
        if batch_size < 1:
            raise ArgumentError(f"batch_size wanted >= 1, came {batch_size}")
        self.job = Job(data, pipeline, batch_size, seed, cut, backend, shuffle, drop_last)
        if self.job.steps == 0:
            raise ArgumentError(
                f"drop_last leaves no batch: {len(data)} photos, batch_size {batch_size}"
            )
        self.device = torch.device(device)
        self.epoch = 0
        self._addresses = _Addresses(self.job.steps)
        if workers:
            _check_picklable(self.job)
            if backend == "package":
                # Built here once, so that workers only load it.
                make_batch(data, pipeline, [0], seed=seed, backend=backend)
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
        self._stream: Iterator[Packed] | None = None
        self._expected: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Batches an epoch."""
        return self.job.steps

    def set_epoch(self, epoch: int) -> None:
        """Go on with ``epoch``; not needed between epochs."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        if self._stream is None or self._expected != (epoch, 0):
            self._addresses.start = (epoch, 0)
            self._stream = iter(self._loader)
        self.epoch = epoch + 1
        for step in range(len(self)):
            self._expected = None
            parcel = next(self._stream).to(self.device, non_blocking=True).unpack()
            last = step + 1 == len(self)
            self._expected = (epoch + 1, 0) if last else None
            yield complete(parcel, self.job.pipeline)

    def explain(self) -> str:
        """What runs where, in which backend, and the bytes that cross."""
        return self.job.pipeline.explain()


def _check_picklable(job: Job) -> None:
    """Errors: ArgumentError naming the stage that cannot be sent to a worker."""
    for s in job.pipeline.stages:
        try:
            pickle.dumps(s)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ArgumentError(
                f"stage {s!r} cannot be sent to workers: {error}; define its function with def at "
                "the top level of a module"
            ) from error
