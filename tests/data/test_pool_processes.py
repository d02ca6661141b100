"""Processes: one copy a host, by any start method, and given back with the last of them."""

import faulthandler
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from PIL import Image

import fnpipe as fp
from fnpipe.data.coco import read_coco
from fnpipe.data.pool import Pool, pool
from fnpipe.types import ArgumentError, DataError


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_writing_to_a_pool_ends_the_process(write_photos, make_pool, kind: str):
    """Not by an exception: the memory is mapped for reading, and torch knows no such tensors."""
    made = make_pool(write_photos(2), kind)
    before = digest(made)

    def write() -> None:
        faulthandler.disable()  # pytest's, which would tell of it at length
        made.sources.words.zero_()

    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGSEGV
    assert digest(made) == before


def digest(made: Pool) -> str:
    return sha256(made.sources.words.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize(("kind", "method"), [("ram", "spawn"), ("disk", "fork")])
def test_it_goes_to_workers_by_its_name(write_photos, make_pool, kind: str, method: str):
    data = write_photos(12)
    made = make_pool(data, kind)
    assert len(pickle.dumps(made)) < 20_000 < made.bytes
    train = fp.pipe(fp.mosaic(24), fp.affine(scale=0.5), fp.hsv(hue=0.1), fp.flip(horizontal=0.5))
    options = {"batch_size": 5, "seed": 3, "worker_backend": "eager"}
    workers = {"workers": 2 if method == "fork" else 1, "start_method": method}
    cached = fp.Loader(data, train, **options, **workers, pool=made)  # type: ignore
    plain = fp.Loader(data, train, **options)  # type: ignore
    before = digest(made)
    for _ in range(2):
        for ours, theirs in zip(cached, plain, strict=True):
            assert torch.equal(ours.images, theirs.images)
            assert torch.equal(ours.boxes, theirs.boxes)
    assert digest(made) == before


def test_a_pool_that_is_gone_or_another_cannot_be_opened(write_photos, make_pool):
    made = make_pool(write_photos(2), "ram")
    sent = pickle.dumps(made)
    Image.new("RGB", tuple(made.data.sizes[1].tolist())).save(made.data.root / "1.png")
    other = made.rebuild()
    with pytest.raises(DataError, match="built anew before this process could open it"):
        pickle.loads(sent)
    made.close()
    other.close()
    with pytest.raises(DataError, match="closed before this process could open it"):
        pickle.loads(sent)
    with pytest.raises(ArgumentError, match="a pool on a device cannot be sent"):
        pickle.dumps(make_pool(write_photos(2), "device"))


def test_memory_is_given_back_with_the_last_that_holds_it(
    write_photos, make_pool, tmp_path: Path, pool_files, assert_holds
):
    data = write_photos(3)
    first, second = make_pool(data, "ram"), make_pool(data, "ram")
    assert first.file.path == second.file.path
    first.close()
    assert len(pool_files()) == 1
    second.close()
    assert pool_files() == []
    assert_holds(second, data)  # tensors that look into it keep it
    on_device = make_pool(data, "device", folder=tmp_path / "pools")
    assert_holds(on_device, data)
    assert len(pool_files()) == 1  # on the disk, where the next run finds it


def test_what_a_killed_process_leaves_in_memory_is_swept(write_photos, make_pool, pool_files):
    killed = multiprocessing.get_context("fork").Process(
        target=lambda: (make_pool(write_photos(3), "ram"), os.kill(os.getpid(), signal.SIGKILL))
    )
    killed.start()
    killed.join()
    left = pool_files()
    assert len(left) == 1
    made = make_pool(write_photos(3, folder="others"), "ram")
    assert pool_files() == [made.file.path.name] != left


def private(pid: int | str) -> int:
    """Bytes of memory that process ``pid`` alone has."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


RANK = """
import sys, torch
from fnpipe.data.coco import read_coco
from fnpipe.data.pool import pool
def private():
    with open("/proc/self/smaps_rollup") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
annotations, images, folder = sys.argv[1:]
data = read_coco(annotations, images)
torch.zeros(2**20, dtype=torch.int32).max()
before = private()
made = pool(data, "ram", folder=folder, progress=False)
made.sources.words.max()
print(made.file.path.name, made.bytes, private() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_case_96_a_second_rank_takes_no_memory_of_its_own(
    shared_data: Path, tmp_path: Path, pool_files
):
    images, folder = shared_data / "coco" / "train2017", tmp_path / "pools"
    annotations = shared_data / "coco" / "annotations" / "instances_train2017.json"
    first = pool(read_coco(annotations, images), "ram", folder=folder, progress=False)
    first.sources.words.max()
    command = [sys.executable, "-c", RANK, str(annotations), str(images), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, count, grown = done.stdout.split()
    assert name == first.file.path.name
    assert int(count) == first.bytes > 100_000_000
    assert int(grown) < 0.05 * first.bytes
    assert len(pool_files()) == 1


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_case_94_workers_of_a_large_index_keep_their_memory(write_photos, make_pool):
    """200,000 photos, a box each, of four files: an epoch of plans by eight workers."""
    few, count = write_photos(4), 200_000
    data = few.subset(torch.arange(count) % 4)
    made = make_pool(data, "device")
    loader = fp.Loader(
        data, fp.pipe(fp.letterbox(8)), batch_size=2000, seed=0, cut="plan", pool=made, workers=8,
        start_method="fork", backend="eager", prefetch=1,
    )  # fmt: skip
    batches = iter(loader)
    for _ in range(8):
        next(batches)
    workers = [child.pid for child in multiprocessing.active_children()]
    before = {pid: private(pid) for pid in workers if pid}
    seen = sum(len(batch) for batch in batches)
    assert seen == count - 8 * 2000
    assert len(before) == 8
    assert max(private(pid) - held for pid, held in before.items()) < 16 * 2**20
