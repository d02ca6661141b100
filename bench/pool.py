"""The pool: a reader's epoch with it and without, its build, its opening, and others' memory.

``python bench/pool.py [--json] [--out DIR] [--rounds 11] [--copies 4] [--workers N]``
"""

import os
import resource
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing import Process, active_children, get_context
from pathlib import Path
from typing import Any

import contract
import numpy as np
import peers
import torch
from contract import Contestant, Row
from PIL import Image

import fnpipe as fp
from fnpipe.data.bill import cores, place
from fnpipe.data.dataset import Dataset, pack_names
from fnpipe.data.decode import read_image
from fnpipe.data.pool import Pool, pool
from fnpipe.ops.windows import cut, gather
from fnpipe.types import Sources


SIZE, BATCH = 640, 4
WITH, IN_PLACE, WITHOUT = "fnpipe/with pool", "fnpipe/with pool, in place", "fnpipe/without"
READY, ROWS, WORKERS = 10_000, 200_000, 8


def shared(name: str) -> Path:
    """A folder of the usual photos. Errors: FileNotFoundError."""
    folder = peers.shared(name)
    if not folder.is_dir():
        raise FileNotFoundError(f"no photos at {folder}; set FNPIPE_DATA")
    return folder


def tiles() -> Dataset:
    """The four training photos of 1024 x 1024."""
    folder = shared("dota8")
    return fp.read_yolo(folder / "dota8.yaml", root=folder, task="obb")


def coco() -> Dataset:
    """The 128 training photos, about 576 x 488."""
    folder = shared("coco")
    return fp.read_coco(folder / "annotations" / "instances_train2017.json", folder / "train2017")


def reader(who: str, data: Dataset, folder: str) -> Contestant:
    """Read what the plans of an epoch see, batch after batch: every photo once an epoch.

    With and without end at the same words, those that go to the device; in place there is no copy.
    """
    train = fp.pipe(fp.letterbox(SIZE), fp.flip(horizontal=0.5))
    made = pool(data, "ram", folder=folder, progress=False)
    steps = count()

    def run() -> Sources:
        ids = (torch.arange(BATCH) + next(steps) * BATCH) % len(data)
        plan = train.draw(fp.key(seed=0, epoch=0, sample=ids), data)
        found = gather(plan, data.read) if who == WITHOUT else made.gather(plan)
        return found[0] if who == IN_PLACE else cut(*found)[0]

    return Contestant(who, run, BATCH)


def readers(case: str, data: Dataset, options: Namespace) -> list[Row]:
    """With a pool, with it in place, and without, on the same draws."""
    with tempfile.TemporaryDirectory() as folder:
        contestants = [
            contract.enter(who, partial(reader, who, data, folder))
            for who in (WITHOUT, WITH, IN_PLACE)
        ]
        return contract.compete(
            case, contestants, unit="ms/image", timer=contract.cpu_seconds, turn=0.2,
            rounds=options.rounds,
        )  # fmt: skip


def copies(data: Dataset, times: int, folder: Path) -> Dataset:
    """Every photo so many times, each under a name of its own."""
    many = data.subset(torch.arange(times * len(data)) % len(data))
    names = [f"{i}{data.path(i % len(data)).suffix}" for i in range(len(many))]
    for i, name in enumerate(names):
        os.symlink(data.path(i % len(data)), folder / name)
    letters, offsets = pack_names(names)
    return replace(many, root=folder, path_bytes=letters, path_offsets=offsets)


def load(path: Path) -> None:
    """Pillow decodes a photo and leaves the pixels where they come out."""
    with Image.open(path) as photo:
        photo.load()


def to_array(path: Path) -> np.ndarray:
    """The usual line."""
    with Image.open(path) as photo:
        return np.array(photo.convert("RGB"))


def decode(read: Callable[[Path], object], data: Dataset, share: range) -> None:
    """Decode a share of the photos and drop them."""
    torch.set_num_threads(1)
    for photo in share:
        read(data.path(photo))


def decode_all(read: Callable[[Path], object], data: Dataset, workers: int) -> None:
    """Decode every photo once, by so many processes."""
    shares = [range(i, len(data), workers) for i in range(workers)]
    running = [Process(target=decode, args=(read, data, share)) for share in shares]
    for process in running:
        process.start()
    for process in running:
        process.join()


def core_seconds(run: Callable[[], object], calls: int, *, memory: int = 0) -> float:
    """CPU seconds of this process and of those it starts; giving a pool back does not count.

    Nor does getting ``memory`` back from the host of a virtual machine, which takes what lies free
    for some seconds: it is touched before each call, whoever's turn it is.
    """

    def used() -> float:
        who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))

    total = 0.0
    for _ in range(calls):
        touch(memory)
        start = used()
        made = run()
        total += used() - start
        if isinstance(made, Pool):
            made.close()
    return total


def touch(size: int) -> None:
    """Write so many bytes to where pools in memory lie, and free them."""
    folder = place("ram").parent
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size >> 20):
            file.write(bytes(2**20))


DECODERS = {
    "bound/Pillow's load": (load, "pixels left inside Pillow, nothing read, checked or stored"),
    "pillow": (to_array, "np.array(photo.convert('RGB')), dropped"),
    "fnpipe/read_image": (read_image, "the reader without a pool, dropped"),
}


def builds(options: Namespace) -> list[Row]:
    """Build a pool in memory against decoding alone, in as many processes: images a core."""
    workers = options.workers
    with tempfile.TemporaryDirectory() as folder:
        data = copies(coco(), options.copies, Path(folder))
        memory = 4 * int((data.sizes + 2).prod(1).sum())

        def build() -> Pool:
            return pool(data, "ram", workers=workers, progress=False)

        case = f"build a pool in memory, {len(data)} photos, {workers} processes, CPU time"
        contestants = [
            Contestant("fnpipe/build", build, len(data)),
            *(
                Contestant(who, partial(decode_all, read, data, workers), len(data), note)
                for who, (read, note) in DECODERS.items()
            ),
        ]
        return contract.compete(
            case, contestants, unit="images/s", timer=partial(core_seconds, memory=memory),
            rounds=options.rounds,
        )  # fmt: skip


def openings(options: Namespace) -> list[Row]:
    """Open a ready pool on the disk: entries a second, all photos looked at for changes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = copies(tiny(folder), READY, folder)
        pool(data, "disk", folder=folder, progress=False)

        def run() -> object:
            return pool(data, "disk", folder=folder, progress=False)

        contestants = [Contestant("fnpipe/open", run, READY, note="entries of 8 x 8 pixels")]
        case = f"open a ready pool of {READY:,} entries"
        return contract.compete(case, contestants, unit="images/s", rounds=options.rounds)


def private(pid: int | str) -> int:
    """Bytes of memory that a process alone has."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def open_as_rank(data: Dataset, folder: str, answers: Any) -> None:
    """What a second rank does: ask for the pool, read all of it, tell what memory that took."""
    torch.zeros(2**20, dtype=torch.int32).max()
    before = private("self")
    pool(data, "ram", folder=folder, progress=False).sources.words.max()
    answers.put(private("self") - before)


def second_rank(case: str) -> list[Row]:
    """Memory of its own that another process takes for a pool which is there already."""
    data, context = coco(), get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        first = pool(data, "ram", folder=folder, progress=False)
        answers = context.Queue()
        rank = context.Process(target=open_as_rank, args=(data, folder, answers))
        rank.start()
        grown = answers.get()
        rank.join()
        note = f"{100 * grown / first.bytes:.2f} % of a pool of {first.bytes / 1e6:.1f} MB"
        first.close()
    return [Row(case, WITH, grown / 1e6, "MB", note=note)]


def workers_growth(case: str) -> list[Row]:
    """Memory of its own that a worker gains from its second batch to the epoch's end; the most."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = tiny(folder).subset(torch.zeros(ROWS, dtype=torch.int64))
        made = pool(data, "ram", folder=folder, progress=False)
        loader = fp.Loader(
            data, fp.pipe(fp.letterbox(8)), batch_size=1000, seed=0, pool=made, workers=WORKERS,
            start_method="fork", worker_backend="eager", prefetch=1,
        )  # fmt: skip
        batches = iter(loader)
        for _ in range(2 * WORKERS):
            next(batches)
        before = {child.pid: private(child.pid) for child in active_children()}
        for _ in batches:
            pass
        grown = max(private(pid) - held for pid, held in before.items())
        made.close()
    return [Row(case, WITH, grown / 1e6, "MB")]


def tiny(folder: Path) -> Dataset:
    """One photo of 8 x 8 pixels, with the boxes of one of COCO's."""
    Image.new("RGB", (8, 8)).save(folder / "photo.png")
    letters, offsets = pack_names(["photo.png"])
    return replace(
        coco().subset([0]), root=folder, sizes=torch.tensor([[8, 8]]), path_bytes=letters,
        path_offsets=offsets,
    )  # fmt: skip


def measure(options: Namespace) -> list[Row]:
    """Every case; one that lacks its photos says so."""
    torch.set_num_threads(1)
    cases = {
        "read 4 photos of 1024 x 1024": lambda case: readers(case, tiles(), options),
        "read 128 photos of about 576 x 488": lambda case: readers(case, coco(), options),
        "build": lambda case: builds(options),
        "open": lambda case: openings(options),
        "memory of its own that a second rank takes": second_rank,
        f"memory that each of {WORKERS} workers gains over {ROWS:,} photos": workers_growth,
    }
    rows = []
    for case, run in cases.items():
        try:
            rows += run(case)
        except FileNotFoundError as error:
            rows.append(Row(case, WITH, None, "ms/image", note=contract.reason(error)))
    return rows


def add_options(parser: ArgumentParser) -> None:
    """How much to do."""
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--copies", type=int, default=4, help="of each photo, to build a pool of")
    parser.add_argument("--workers", type=int, default=cores(), help="processes that build")


if __name__ == "__main__":
    contract.main(__file__, measure, description=__doc__, against=WITHOUT, configure=add_options)
