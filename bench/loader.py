"""What a loader costs around the work: an epoch's first batch, and batches that take no work.

``python bench/loader.py [--json] [--out DIR] [--workers N]``. ``first batch`` is what the consumer
waits for after a pause as long as a batch takes to make (validation); a plain ``DataLoader`` with
persistent workers makes the same batches. ``no work`` is a batch that lies ready in the worker:
what is left is to get it across, against a bare ``DataLoader`` of one tensor of as many bytes.
"""

import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import Any

import contract
import peers
import torch
from contract import Row
from torch.utils.data import DataLoader, Dataset

import fnpipe as fp
from fnpipe.feed.addresses import Address
from fnpipe.feed.job import Job
from fnpipe.packing import packed


BATCH, SIZE, EPOCHS = 16, 320, 9
ROUNDS, EMPTY_BATCHES = 25, 60
RECIPE = fp.pipe(
    fp.mosaic(SIZE),
    fp.affine(translate=peers.TRANSLATE, scale=peers.SCALE),
    fp.hsv(hue=peers.HUE, saturation=peers.SATURATION, value=peers.VALUE),
    fp.flip(horizontal=peers.FLIP),
)
FIRST = f"first batch, mosaic + affine + hsv + flip, {SIZE}, batch {BATCH}"
EMPTY = f"no work, {SIZE}, batch {BATCH}"


class Plain(Dataset[Any]):
    """The same batches for a plain DataLoader, without addresses."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getitem__(self, step: int) -> Any:
        return packed(self._job.prepare(Address(0, step)))


class Constant(Dataset[torch.Tensor]):
    """As many bytes at every place, in new memory: torch shares the same one without a copy."""

    def __init__(self, size: int) -> None:
        self._bytes = torch.zeros(size, dtype=torch.uint8)

    def __getitem__(self, step: int) -> torch.Tensor:
        return self._bytes.clone()


def measure(options: Namespace) -> list[Row]:
    """First batches, then batches of no work."""
    torch.set_num_threads(1)
    photos = peers.read_photos()
    data = fp.read_coco(photos.annotations, photos.folder)
    loader = fp.Loader(
        data, RECIPE, batch_size=BATCH, seed=0, workers=options.workers, start_method="fork",
        worker_backend="eager", backend="eager", drop_last=True,
    )  # fmt: skip
    return [*first_batches(loader, options.workers), *empty_batches(loader, options.workers)]


def bare(dataset: Dataset[Any], steps: int, workers: int) -> DataLoader[Any]:
    """A DataLoader as one would write it, with workers that stay."""
    return DataLoader(
        dataset, batch_size=None, sampler=range(steps), num_workers=workers,
        persistent_workers=True, multiprocessing_context="fork",
    )  # fmt: skip


def first_batches(loader: fp.Loader, workers: int) -> list[Row]:
    """Milliseconds from asking for an epoch to its first batch, both in turns."""
    plain = bare(Plain(loader.job), len(loader), workers)
    start = time.perf_counter()
    loader.job.prepare(Address(0, 0))
    pause = time.perf_counter() - start
    found: dict[str, list[float]] = {"fnpipe/loader": [], "DataLoader": []}
    for epoch in range(EPOCHS):
        for who, batches in (("fnpipe/loader", loader), ("DataLoader", plain)):
            waited = first_wait(lambda it=batches: iter(it))
            time.sleep(pause)
            if epoch:  # workers start in the first
                found[who].append(1e3 * waited)
    loader.close()
    note = f"{workers} workers, a pause of {1e3 * pause:.0f} ms before it"
    return [row(FIRST, who, times, "ms", note) for who, times in found.items()]


def first_wait(begin: Callable[[], Iterator[Any]]) -> float:
    """Seconds until the first batch of an epoch, which is then run to its end."""
    start = time.perf_counter()
    batches = begin()
    next(batches)
    waited = time.perf_counter() - start
    for _ in batches:
        pass
    return waited


def empty_batches(loader: fp.Loader, workers: int) -> list[Row]:
    """Milliseconds a batch where workers have nothing to do but to send it."""
    parcel = loader.job.prepare(Address(0, 0))
    size = packed(parcel).buffer.numel()
    many = peers.in_turns(loader.job.data, EMPTY_BATCHES * BATCH)
    work, Job.prepare = Job.prepare, lambda *_, **__: parcel
    try:
        ours = fp.Loader(
            many, RECIPE, batch_size=BATCH, seed=0, workers=workers, start_method="fork",
            worker_backend="eager", backend="eager",
        )  # fmt: skip
        plain = bare(Constant(size), EMPTY_BATCHES, workers)
        found: dict[str, list[float]] = {"fnpipe/loader": [], "DataLoader": []}
        for turn in range(ROUNDS + 1):
            for who, batches in (("fnpipe/loader", ours), ("DataLoader", plain)):
                start = time.perf_counter()
                for _ in batches:
                    pass
                each = (time.perf_counter() - start) / EMPTY_BATCHES
                if turn:  # workers start in the first
                    found[who].append(1e3 * each)
        ours.close()
    finally:
        Job.prepare = work
    note = f"{workers} workers, {size / 1e6:.1f} MB a batch"
    return [row(EMPTY, who, times, "ms/batch", note) for who, times in found.items()]


def row(case: str, who: str, times: list[float], unit: str, note: str) -> Row:
    """Median and distance between quartiles."""
    low, median, high = statistics.quantiles(times, n=4)
    return Row(case, who, median, unit, high - low, note)


def add_options(parser: ArgumentParser) -> None:
    """How many workers."""
    parser.add_argument("--workers", type=int, default=2)


if __name__ == "__main__":
    contract.main(
        __file__, measure, description=__doc__, against="DataLoader", configure=add_options
    )
