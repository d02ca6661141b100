"""Epochs of batches: addresses go to workers, parcels come back, the device does the rest.

A batch's address is (epoch, step). Which samples it holds, how they are drawn, everything follows
from the address, the data set, the recipe and the seed, so nothing has to be remembered: workers
can be ahead in the next epoch, a run can resume anywhere, and neither their number nor that of
ranks changes a byte.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from time import monotonic_ns
from typing import Any

import torch

from fnpipe import cuts
from fnpipe.backends import Chosen
from fnpipe.data.dataset import Dataset, check_pool
from fnpipe.explain import explain
from fnpipe.feed.addresses import Epochs
from fnpipe.feed.arguments import check_numbers, check_parts, exactly
from fnpipe.feed.failures import POLICIES, Failure, Replaced
from fnpipe.feed.job import Job
from fnpipe.feed.parcels import Sent, batches_within, largest
from fnpipe.feed.pools import device_pool, for_workers, map_pool
from fnpipe.feed.ranks import share
from fnpipe.feed.state import VERSION, identity, position
from fnpipe.feed.stats import Stats, Tally
from fnpipe.feed.workers import Workers
from fnpipe.keys import check_seed
from fnpipe.packing import Packed
from fnpipe.pipeline import Pipeline
from fnpipe.schedules import Buckets, Schedule, values_of
from fnpipe.types import (
    ArgumentError,
    Batch,
    LoaderError,
    Sources,
    Targets,
    check_choice,
    check_whole,
)


Moved = tuple[cuts.Parcel, Any]
"""A parcel on its way to the device, and the event that says it is there; None without a copy."""


class Loader:
    """Batches of augmented samples, an epoch at a time.

    ``for batch in loader`` runs epoch 0, the next ``for`` epoch 1, and so on, whether or not the
    one before was run to its end; one iterator a loader at a time. Workers already prepare the
    next epoch while the last steps of this one run, validation and checkpoints included.

    What a batch is: ``pipeline``, or a :func:`fnpipe.schedule` or :func:`fnpipe.buckets` of them;
    ``batch_size`` samples over all ranks together, or a schedule of it; ``seed``; ``shuffle``;
    ``drop_last``; ``limit``, the most batches an epoch may have. Nothing else changes a byte:

    - ``cut`` says what workers do and what is left to ``device`` (:mod:`fnpipe.cuts`); ``pool``
      holds decoded photos, and for the cut ``"plan"`` holds them on the device. At ``"source"`` a
      GPU reads a pool in memory by itself; its pages are locked for that as long as it lives.
    - ``backend`` and ``worker_backend`` say how each side renders
      (:data:`fnpipe.backends.BACKENDS`); left out, the fastest that is there is taken, and
      :meth:`explain` says which and why.
    - ``rank`` and ``world_size`` say whose share of every batch is made; left out, they are
      torch.distributed's where it is initialised. All ranks make equally many steps; where a last
      batch has fewer samples than ranks, the rest of them get an empty batch.
    - ``workers`` processes, started by ``start_method``, each ``prefetch`` batches ahead; at most
      ``memory`` bytes of batches in all; ``ahead`` off, they stop at an epoch's end.
    - ``on_error``: ``"raise"`` an error with the sample, its stage and how to see it again when
      its batch is asked for; or ``"replace"`` the sample by another, drawn from its key, and tell
      in :attr:`replaced`. ``timeout``: seconds to wait for a batch, before LoaderError says which
      worker is at what.

    Errors: ArgumentError for an empty data set, an unknown cut, backend, policy or device, a cut
    without the pool it needs, a recipe that cannot be sent to workers, a number out of range.
    """

    def __init__(
        self,
        data: Dataset,
        pipeline: Pipeline | Schedule | Buckets,
        *,
        batch_size: int | Schedule,
        seed: int,
        device: torch.device | str = "cpu",
        cut: str = "finished",
        backend: str | None = None,
        worker_backend: str | None = None,
        pool: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        workers: int = 0,
        start_method: str | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        limit: int | None = None,
        prefetch: int = 2,
        memory: int | None = None,
        ahead: bool = True,
        on_error: str = "raise",
        timeout: float = 600.0,
    ) -> None:
        check_parts(data, pipeline, pool)
        check_numbers(
            workers=workers, prefetch=prefetch, memory=memory, ahead=ahead, timeout=timeout,
            start_method=start_method,
        )  # fmt: skip
        self.device: torch.device = exactly(device)
        self.backends: dict[Pipeline, Chosen] = {}
        for each in values_of(pipeline):  # a comprehension's frame would be named by a warning
            chosen = cuts.choose_backends(each, cut, self.device, worker_backend, backend)
            self.backends[each] = chosen
        epochs = Epochs(len(data), batch_size, check_seed(seed), shuffle, drop_last, limit)
        epochs.check()
        check_choice("on_error", on_error, POLICIES)
        check_pool(pool, data, cut=cut)
        self._pool = device_pool(pool, self.device) if cut == "plan" else None
        self._mapped = map_pool(pool, self.device, cut=cut)
        held = for_workers(pool, cut=cut, mapped=self._mapped is not None)
        worker = next(iter(self.backends.values())).worker
        self.job: Job = Job(data, pipeline, epochs, cut, worker, held)
        self._asked, self._share = (rank, world_size), share(rank, world_size)
        if workers:
            _make_ready(self.job)
        if memory is not None:
            prefetch = batches_within(self.job, memory, prefetch, max(workers, 1), self.device)
        self._workers = Workers(
            self.job, count=workers, start_method=start_method, prefetch=prefetch, ahead=ahead,
            device=self.device, on_error=on_error, timeout=timeout,
        )  # fmt: skip
        self._side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._start = self._consumed = (0, 0)
        self._turn = self._handed = 0
        self._tally = Tally(bound=workers * prefetch)
        self._identity: dict[str, Any] | None = None
        self._finish: Callable[..., Any] = cuts.complete
        self.replaced: list[Replaced] = []

    def __len__(self) -> int:
        """Batches of the epoch that the next iterator runs, from its beginning."""
        return self.job.epochs.steps(self.epoch)

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator runs."""
        return self._start[0]

    def set_epoch(self, epoch: int) -> None:
        """Go on with ``epoch``; not needed between epochs. Keeps a resumed position in it."""
        check_whole("epoch", epoch, 0)
        if epoch != self.epoch:
            self._start = self._consumed = (epoch, 0)

    def __iter__(self) -> Iterator[Batch]:
        return self._run(cuts.complete)

    def parcels(self) -> Iterator[cuts.Parcel]:
        """An epoch of parcels on the device, for ``fnpipe.complete`` inside a compiled step.

        Errors: ArgumentError where this rank has no sample of a batch.
        """
        return self._run(cuts.settler())

    def _run(self, finish: Callable[..., Any]) -> Iterator[Any]:
        """An epoch, whose parcels ``finish`` takes as :func:`fnpipe.cuts.complete` does."""
        self._finish = finish
        epoch, first = self._start
        self._turn += 1
        turn, steps = self._turn, self.job.epochs.steps(epoch)
        self._share = share(*self._asked)
        self._workers.begin(epoch, first, self._share)
        self._start, self._consumed = (epoch + 1, 0), (epoch, first)
        moved: deque[Failure | tuple[Sent, Moved]] = deque()
        for step in range(first, steps):
            if turn != self._turn:
                raise LoaderError(
                    f"epoch {epoch} was left at step {step}, when its loader was closed, resumed "
                    "or iterated anew; run one iterator at a time"
                )
            # No name here for the batch: it would outlive the consumer's.
            yield self._next(moved, epoch, step, last=step + 1 == steps)
            self._tally.consumed += monotonic_ns() - self._handed

    def _next(self, moved: deque[Any], epoch: int, step: int, *, last: bool) -> Any:
        """The next batch, and the position after it; after an error, the position of the error."""
        try:
            batch = self._batch(moved, epoch, step, last=last)
        except BaseException:
            self._start = epoch, step
            raise
        self._consumed = self.job.epochs.following(epoch, step)
        self._handed = monotonic_ns()
        return batch

    def _batch(self, moved: deque[Any], epoch: int, step: int, *, last: bool) -> Any:
        """The next batch; one more parcel may be on its way to the device meanwhile."""
        if not moved:
            moved.append(self._take())
        if self._side is not None and not last and self._workers.is_ready():
            moved.append(self._take())
        taken = moved.popleft()
        if isinstance(taken, Failure):
            raise taken.error()
        sent, parcel = taken
        start = monotonic_ns()
        batch = self._complete(parcel, self.job.pipeline(epoch, step))
        if not self._share.of(self.job.epochs.places(epoch, step)):
            batch = _none_of(batch)
        self.replaced.extend(sent.replaced)
        self._tally.batches += 1
        self._tally.bytes += sent.packed.buffer.numel()
        self._tally.completed += monotonic_ns() - start
        return batch

    def _take(self) -> Failure | tuple[Sent, Moved]:
        """The next parcel, on its way to the device."""
        self._tally.ready += self._workers.ready()
        start, made = monotonic_ns(), self._workers.is_ready()
        taken = self._workers.take()
        if not made:  # to receive what is made is work of this thread
            now = monotonic_ns()
            self._tally.waited += now - start
            start = now
        if isinstance(taken, Failure):
            return taken
        parcel = self._move(taken.packed)
        self._workers.give_back(taken, parcel[1])
        self._tally.completed += monotonic_ns() - start
        return taken, parcel

    def _move(self, buffer: Packed) -> Moved:
        """Copy a parcel to the device, on a stream of its own, without waiting for it."""
        if self._side is None:
            return buffer.unpack(), None
        # By number, and without a stream's context: torch takes 15 us more for either, of 160 a
        # batch. The device has one, since to choose a stream is to choose its device.
        with torch.cuda.device(self.device.index):
            stream = torch.cuda.current_stream(self.device.index)
            torch.cuda.set_stream(self._side)
            try:
                parcel = buffer.to(self.device, non_blocking=True).unpack()
                if self._mapped is not None:
                    parcel = cuts.fetch(parcel, self._mapped.memory)
            finally:
                torch.cuda.set_stream(stream)
        # An event, since the stream may be copying the next parcel when this one is wanted.
        return parcel, self._side.record_event()

    def _complete(self, moved: Moved, pipeline: Pipeline) -> Any:
        parcel, copied = moved
        if copied is not None:
            stream = torch.cuda.current_stream(self.device.index)
            stream.wait_event(copied)
            # Their memory belongs to the side stream; it must not be reused before this stream is
            # done with it.
            parcel.plan.maps.record_stream(stream)
            for windows in (parcel.sources, parcel.lacking):
                if isinstance(windows, Sources):
                    windows.words.record_stream(stream)
        backend = self.backends[pipeline].device
        return self._finish(parcel, pipeline, backend=backend, pool=self._pool)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is: batches that were handed out, whatever workers have made ahead.

        At an epoch's end it means the whole next one. An epoch that was left early counts as
        begun: the rest of it follows, unless :meth:`set_epoch` says otherwise.
        """
        epoch, step = self._consumed
        return {"version": VERSION, "epoch": epoch, "step": step, **self._identify()}

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Go on from a state: any workers, start method, cut, device or world size, equal bytes.

        Errors: ArgumentError where the state is of another version, data set, recipe, seed or
        (global) batch size, naming what differs; not ``strict``, only for version and batch size.
        """
        epoch, step = position(state, self._identify(), strict=strict)
        if step >= self.job.epochs.steps(epoch):
            epoch, step = epoch + 1, 0
        self._start = self._consumed = epoch, step
        self._turn += 1

    def _identify(self) -> dict[str, Any]:
        if self._identity is None:
            self._identity = identity(self.job)
        return self._identity

    def stats(self) -> Stats:
        """Figures since the loader was made, and who waits for whom."""
        return self._tally.stats(self._workers.board.seconds(), len(self.replaced))

    def close(self) -> None:
        """End the workers and free what they made. The loader can go on: it starts new ones."""
        self._turn += 1
        self._workers.close()

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, or one in another process: it goes on from here, by workers of its own."""
        return vars(self) | {"_workers": copy(self._workers), "_finish": cuts.complete}

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def explain(self) -> str:
        """What runs where, in which backend, and the bytes that cross; a table a pipeline."""
        lacking, mapped = getattr(self.job.pool, "lacking", 0.0), self._mapped is not None
        return "\n\n".join(
            explain(each, cut=self.job.cut, backends=backends, lacking=lacking, mapped=mapped)
            for each, backends in self.backends.items()
        )


def _none_of(batch: Batch | cuts.Parcel) -> Batch:
    """A batch of no image, like ``batch`` in all else: the share of a rank that has none."""
    if isinstance(batch, cuts.Parcel):
        raise ArgumentError("parcels: this rank has no sample of a batch; take drop_last=True")
    targets = batch.targets
    empty = Targets.empty(keypoints=targets.keypoints.shape[1], corners=targets.quads.shape[1])
    return batch.replace(
        images=batch.images[:0],
        targets=empty.to(batch.images.device),
        ids=batch.ids[:0],
        epochs=batch.epochs[:0],
        masks=None if batch.masks is None else batch.masks[:0],
    )


def _make_ready(job: Job) -> None:
    """Build what workers load. Errors: ArgumentError naming a stage that cannot be sent to them."""
    for s in (s for pipeline in values_of(job.recipe) for s in pipeline.stages):
        try:
            pickle.dumps(s)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ArgumentError(
                f"stage {s!r} cannot be sent to workers: {error}; define its function with def at "
                "the top level of a module"
            ) from error
    if job.backend == "package" and job.cut in ("finished", "warped"):
        largest(job)
