"""How cost grows: with workers and batch size, with the data set, with ranks.

``python bench/scale.py [--json] [--out DIR] [--workers 0,1,2] [--ranks 2] [--quick] [--only PART]``

``speed`` is what a loader hands out with nobody to use it, cut by cut. ``growth`` is one photo set
repeated under fresh ids to ever more addresses, each in a process of its own: a batch of the plan
cut, of which nothing is rendered, and memory; CPU time, since neighbours on a shared machine do not
count there. ``ranks`` lets torchrun's launcher start one process
a GPU (NCCL), or processes on the CPU (gloo) where there are fewer GPUs than ranks, and compares
every sample with one rank's.
"""

import os
import pickle
import statistics
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import contract
import peers
import torch
import torch.distributed as dist
import xxhash
from contract import Row
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils import _pytree as pytree

import fnpipe as fp
from fnpipe import cuts
from fnpipe.data.bill import cores
from fnpipe.data.dataset import Dataset
from fnpipe.feed.addresses import Address
from fnpipe.feed.job import Job


BATCH, TURNS = 64, 5
GROWTH = {
    "batch": ("a batch through loader and worker, cut plan, nothing rendered", "ms"),
    "first": ("the first batch of an epoch, drawn here", "ms"),
    "order": ("the samples of 16 batches of an epoch's order", "ms"),
    "whole": ("for comparison: an epoch's whole order at once", "ms"),
    "worker": ("memory that a worker has for itself", "MB"),
    "both": ("memory of main process and worker, what they share counted once", "MB"),
    "boxes": ("index: names, sizes, boxes, the pool's table", "bytes/photo"),
    "outlines": ("index with polygons", "bytes/photo"),
    "state": ("state_dict", "bytes"),
    "fingerprint": ("the data set's fingerprint, once a run that asks for a state", "ms"),
}
"""What is measured of every size of data set."""


def photos(count: int, *, task: str = "detect") -> Dataset:
    """COCO's 128 usual photos, or scikit-image's, repeated to ``count`` under fresh ids."""
    root = peers.shared("coco")
    annotations, folder = root / "annotations" / "instances_train2017.json", root / "train2017"
    if not annotations.is_file():
        annotations, folder = peers.write_fallback(Path(tempfile.gettempdir()) / "fnpipe-scale")
    return peers.in_turns(fp.read_coco(annotations, folder, task=task), count)


def device_for(ranks: int) -> torch.device:
    """This process's GPU where there is one a rank, else the CPU."""
    if torch.cuda.device_count() < ranks:
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cuda", torch.cuda.current_device())


def open_loader(data: Dataset, cut: str, device: torch.device, options: Namespace) -> fp.Loader:
    """A loader of the usual recipe, its photos decoded once."""
    kind = "device" if cut == "plan" and device.type == "cuda" else "ram"
    return fp.Loader(
        data, peers.pipeline(options.size), batch_size=options.batch, seed=0, device=device,
        cut=cut, pool=fp.pool(data, kind, device=device, progress=False), drop_last=True,
        workers=options.count, worker_backend="eager" if options.quick else None,
        backend="eager" if options.quick else None,
    )  # fmt: skip


def endless(loader: fp.Loader) -> Iterator[fp.Batch]:
    """Batches, epoch after epoch."""
    while True:
        yield from loader


def rates(loader: fp.Loader, options: Namespace, *, reduce: bool = False) -> list[float]:
    """Images a second, turn by turn, once all that was made ahead is used up.

    A turn is a batch of every worker at least, since they finish in bursts. With ``reduce`` it is
    equally many steps on all ranks, which add up one number a step, as they would gradients.
    """
    batches, found = endless(loader), []
    least = options.reduced if reduce else max(options.count, 1)
    for turn in range(TURNS + 1):
        start, images, steps = time.perf_counter(), 0, 0
        while steps < least * (1 if turn else 3) or (
            not reduce and time.perf_counter() - start < options.turn
        ):
            batch = next(batches)
            images, steps = images + len(batch), steps + 1
            if reduce:
                total = batch.images.sum(dtype=torch.int64)
                dist.all_reduce(total)
        if loader.device.type == "cuda":
            torch.cuda.synchronize()
        if turn:  # the first starts workers, compiles, and uses up what was made ahead
            found.append(images / (time.perf_counter() - start))
    return found


def speed(options: Namespace) -> Iterator[Row]:
    """Images a second by workers at one batch size, then by batch size with all workers."""
    device, most = device_for(1), max(options.workers)
    cases = [(BATCH, workers) for workers in options.workers]
    cases += [(batch, most) for batch in options.batches if batch != BATCH]
    for batch, workers in cases:
        data = photos(max(2048, 4 * batch))
        case = f"loader alone, {options.size}, batch {batch}, {workers} workers, on {device.type}"
        for cut in ("plan", "source", "finished"):
            given = Namespace(**vars(options) | {"batch": batch, "count": workers})
            try:
                with open_loader(data, cut, device, given) as loader:
                    yield row(case, f"fnpipe/{cut}", rates(loader, given), "images/s")
            except Exception as error:
                yield Row(case, f"fnpipe/{cut}", None, "images/s", note=contract.reason(error))


@contextmanager
def unrendered() -> Iterator[None]:
    """Loaders that hand out parcels: the device does nothing."""
    complete, cuts.complete = cuts.complete, lambda parcel, *_, **__: parcel
    try:
        yield
    finally:
        cuts.complete = complete


def grown(count: int, options: Namespace) -> tuple[dict[str, list[float]], str]:
    """Every figure of :data:`GROWTH` at ``count`` addresses; run it in a process of its own.

    With them what the worker's memory gained on the way.
    """
    torch.set_num_threads(1)
    data = photos(count)
    made = fp.pool(data, "ram", progress=False)
    found = {
        "boxes": [index_bytes(data, made.sources)],
        "outlines": [index_bytes(photos(1024, task="segment"), made.sources)],
    }
    with unrendered(), fp.Loader(
        data, peers.pipeline(640), batch_size=BATCH, seed=0, cut="plan", pool=made, workers=1,
        start_method="fork", backend="eager", worker_backend="eager",
    ) as loader:  # fmt: skip
        batches, steps = endless(loader), options.steps // TURNS
        times([lambda: next(batches)] * steps)
        (worker,) = active_children()
        held, found["batch"] = memory(worker.pid, "Private_"), []
        for _ in range(TURNS):
            start = spent(worker.pid)
            own = sum(times([lambda: next(batches)] * steps))
            found["batch"].append((spent(worker.pid) - start + own) / steps)
        now = memory(worker.pid, "Private_")
        found["worker"] = [now]
        found["both"] = [memory("self", "Pss:") + memory(worker.pid, "Pss:")]
        found["fingerprint"] = times([loader.state_dict])
        found["state"] = [len(pickle.dumps(loader.state_dict()))]
        gained = f"{now - held:+.2f} MB in {TURNS * steps} batches"
        return found | orders(loader.job, count), gained


def orders(job: Job, count: int) -> dict[str, list[float]]:
    """Milliseconds to find an epoch's order, and to make its first batch; another epoch a turn."""
    epochs = range(1, 2 * TURNS)
    return {
        "order": times([lambda e=e: job.ids(Address(e, 0)) for e in epochs]),
        "first": times([lambda e=e: job.prepare(Address(100 + e, 0)) for e in epochs]),
        "whole": times([lambda: torch.randperm(count) for _ in epochs]),
    }


def times(calls: Sequence[Any]) -> list[float]:
    """Milliseconds of CPU that each call costs this process."""
    return [1e3 * contract.cpu_seconds(call, 1) for call in calls]


def spent(pid: int) -> float:
    """Milliseconds of CPU that another process has had, in steps of 10."""
    _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    user, system = map(int, fields.split()[11:13])
    return 1e3 * (user + system) / os.sysconf("SC_CLK_TCK")


def memory(pid: int | str, kind: str) -> float:
    """MB of a process: "Private_", that it alone has; "Pss:", with its part of what is shared."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024 / 1e6


def index_bytes(data: Dataset, sources: fp.Sources) -> float:
    """Bytes a photo of all that a process must have besides the pixels."""
    tables = data.path_bytes, data.path_offsets, data.sizes, data.image_ids, data.offsets
    places = sources.replace(words=torch.zeros(0))
    return sum(
        sum(leaf.nbytes for leaf in pytree.tree_leaves(value)) / len(held)
        for value, held in (((*tables, data.targets), data), (places, sources))
    )


def growth(options: Namespace) -> Iterator[Row]:
    """One row a figure and a size of data set."""
    every = {}
    for count in options.addresses:
        alone = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
        with alone as process:
            every[count] = process.submit(grown, count, options).result()
    for name, (case, unit) in GROWTH.items():
        for count, (found, gained) in every.items():
            who = "torch.randperm" if name == "whole" else "fnpipe"
            note = gained if name == "worker" else ""
            yield row(case, f"{who}/{count:,} photos", found[name], unit, note)


def as_rank(options: Namespace) -> tuple[list[list[str]], list[float]]:
    """What one rank does: digests of an epoch's first batches, then images a second.

    Returns the digests of all ranks' samples, batch by batch in order of ranks, and the rates of
    all ranks together.
    """
    torch.set_num_threads(1)
    device = device_for(options.ranks)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        cut = "plan" if device.type == "cuda" else "finished"
        with open_loader(photos(4096), cut, device, options) as loader:
            batches = endless(loader)
            own = [digests(next(batches)) for _ in range(options.compared)]
            batches.close()
            rate = torch.tensor(rates(loader, options, reduce=True), device=device)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        dist.all_reduce(rate)
        return [[*chain(*parts)] for parts in zip(*every, strict=True)], rate.tolist()
    finally:
        dist.destroy_process_group()


def digests(batch: fp.Batch) -> list[str]:
    """A digest a sample: its id, its pixels, its boxes and labels."""
    batch, found = batch.to("cpu"), []
    for i, image in enumerate(batch.images):
        own = batch.targets.owner == i
        digest = xxhash.xxh3_128(f"{batch.ids[i]}".encode())
        for part in (image, batch.boxes[own], batch.labels[own]):
            digest.update(part.contiguous().numpy())
        found.append(digest.hexdigest())
    return found


def ranks(options: Namespace) -> Iterator[Row]:
    """One rank, then so many: images a second in sum; their samples against one rank's."""
    alone: list[list[str]] = []
    workers = max(1, cores() // options.ranks - 1)
    enough = torch.cuda.device_count() >= options.ranks
    chosen = {"batch": BATCH, "count": workers, "reduced": 64 if enough else 6}
    given = Namespace(**vars(options) | chosen)
    where = "a GPU each, nccl" if enough else "the CPU, gloo"
    case = f"ranks of one host, {where}, {options.size}, batch {BATCH} in all"
    for world in sorted({1, options.ranks}):
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=world, run_id=f"scale-{world}",
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="spawn", max_restarts=0,
        )  # fmt: skip
        try:
            found, rate = elastic_launch(config, as_rank)(given)[0]
        except Exception as error:
            yield Row(case, f"fnpipe/{world} ranks", None, "images/s", note=contract.reason(error))
            return
        alone = alone or found
        differ = sum(a != b for a, b in zip(chain(*alone), chain(*found), strict=True))
        note = f"{workers} workers a rank; {differ} of {sum(map(len, alone))} samples differ"
        if differ:
            raise RuntimeError(f"{case}, {world} ranks: {note} from one rank's")
        yield row(case, f"fnpipe/{world} ranks", rate, "images/s", note)


def row(case: str, who: str, values: Sequence[float], unit: str, note: str = "") -> Row:
    """Median, and the distance between quartiles where there are several."""
    if len(values) == 1:
        return Row(case, who, values[0], unit, note=note)
    low, median, high = statistics.quantiles(values, n=4)
    return Row(case, who, median, unit, high - low, note)


PARTS = {"speed": speed, "growth": growth, "ranks": ranks}


def measure(options: Namespace) -> list[Row]:
    """Every part, or the one that is asked for."""
    torch.set_num_threads(1)
    if options.quick:
        options.workers, options.batches, options.addresses = [0, 1], [BATCH], [1000, 2000]
        options.size, options.turn, options.steps, options.compared = 64, 0.0, 10, 2
    options.size = options.size or (640 if torch.cuda.is_available() else 320)
    return [each for part in options.only for each in PARTS[part](options)]


def numbers(text: str) -> list[int]:
    """1,2,4 as a list."""
    return [int(part) for part in text.split(",")]


def add_options(parser: ArgumentParser) -> None:
    """How far to go."""
    workers = [n for n in (0, 1, 2, 4, 8, 16) if n <= cores()]
    parser.add_argument("--workers", type=numbers, default=workers, help="0,1,2,4")
    parser.add_argument("--batches", type=numbers, default=[8, BATCH, 256])
    parser.add_argument("--addresses", type=numbers, default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--size", type=int, help="of images; 640 on a GPU, 320 without")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds at least, five a case")
    parser.add_argument("--steps", type=int, default=300, help="batches a size of data set")
    parser.add_argument("--compared", type=int, default=8, help="batches compared between ranks")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--quick", action="store_true", help="seconds: to see that it runs")


if __name__ == "__main__":
    contract.main(
        __file__, measure, description=__doc__, against="fnpipe/1,000 photos", configure=add_options
    )
