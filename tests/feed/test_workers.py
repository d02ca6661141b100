"""Workers that die, hang or run out of something: an error that says so, and nobody left behind."""

import gc
import multiprocessing
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.feed import slab, workers
from fnpipe.feed.addresses import Address
from fnpipe.types import DataError, LoaderError


PLAIN = fp.pipe(fp.resize(8), fp.flip(horizontal=0.5))


def load(data: Dataset, **options: Any) -> fp.Loader:
    given = {"batch_size": 2, "seed": 0, "worker_backend": "eager", "backend": "eager"}
    given |= {"workers": 2, "start_method": "fork"}
    return fp.Loader(data, options.pop("pipeline", PLAIN), **(given | options))


def children() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()}


def test_case_109_a_worker_that_is_killed_is_named_with_its_batch(data: Dataset):
    before = children()
    loader = load(data, pipeline=fp.pipe(fp.resize(8), sleepy(30.0)), batch_size=5)
    batches, pids = iter(loader), loader._workers.board.table[:, 0]
    loader._workers.begin(0, 0, loader._share)
    while not all(loader._workers.board.lines[w]["since"] for w in (0, 1)):
        time.sleep(0.01)
    pid = int(pids[1])
    os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(LoaderError) as caught:
        next(batches)
    assert time.monotonic() - start < 10
    second = loader.job.ids(Address(0, 1)).tolist()
    assert f"worker 1 (pid {pid}) died (SIGKILL: out of memory?) at epoch 0, step 1 after" in str(
        caught.value
    )
    assert str(caught.value).endswith(f"samples {second}")
    assert children() == before


def sleepy(seconds: float) -> Any:
    return fp.pointwise(sleep).drawn(name="sleepy", seconds=fp.uniform(seconds, seconds))


def sleep(r: Tensor, g: Tensor, b: Tensor, seconds: Tensor) -> Any:
    time.sleep(float(seconds.max()))
    return r, g, b


def test_after_a_dead_worker_the_run_goes_on_with_new_ones(data: Dataset):
    wanted = [batch.ids.tolist() for batch in load(data, workers=0)]
    with load(data) as loader:
        batches = iter(loader)
        seen = [next(batches).ids.tolist()]
        for child in multiprocessing.active_children():
            child.kill()
        with pytest.raises(LoaderError, match="died"):
            seen.extend(batch.ids.tolist() for batch in batches)
        seen.extend(batch.ids.tolist() for batch in loader)
    assert seen == wanted


def test_a_death_while_nobody_asks_waits_until_somebody_does(data: Dataset):
    with load(data, prefetch=1) as loader:
        list(loader)
        for child in multiprocessing.active_children():
            child.kill()
        time.sleep(0.5)  # validation: no error here
        with pytest.raises(LoaderError, match=r"^waiting for epoch 1, step \d: .*died \(SIGKILL"):
            list(loader)


def test_a_worker_that_hangs_is_named_within_the_timeout(data: Dataset):
    before, start = children(), time.monotonic()
    loader = load(data, pipeline=fp.pipe(fp.resize(8), sleepy(60.0)), timeout=3.0)
    with pytest.raises(LoaderError) as caught:
        next(iter(loader))
    assert 3 <= time.monotonic() - start < 13
    first = loader.job.ids(Address(0, 0)).tolist()
    message = str(caught.value)
    assert message.startswith("waiting for epoch 0, step 0: no batch came within 3 s; worker 0 (")
    assert re.search(r"was due at epoch 0, step 0 after \d\.\d s, samples", message)
    assert message.endswith(f"samples {first}")
    assert children() == before


def test_a_batch_may_take_longer_than_a_look_at_the_workers(data: Dataset):
    slow = fp.pipe(fp.resize(8), sleepy(2.5))
    with load(data, pipeline=slow, batch_size=10, workers=1) as loader:
        assert len(next(iter(loader))) == 10


def test_an_epoch_begun_anew_does_not_wait_for_what_was_ahead(data: Dataset):
    """Eight batches of 0.2 s are on order when the epoch is left; the next needs one of them."""
    slow = fp.pipe(fp.resize(8), sleepy(0.2))
    with load(data, pipeline=slow, batch_size=1, workers=1, prefetch=8) as loader:
        next(iter(loader))
        start = time.monotonic()
        next(iter(loader))
        assert time.monotonic() - start < 1.0


def test_a_slow_consumer_finds_a_bounded_number_of_batches(data: Dataset):
    with load(data, prefetch=3, batch_size=1) as loader:
        for _ in loader:
            time.sleep(0.05)
            assert loader._workers.ready() <= loader.stats().bound == 6
        assert loader.stats().ready > 1


# In processes of their own


class Outcome:
    """What became of a function in a process of its own: exit code, errors, children after it."""

    def __init__(self, function: Callable[..., None], *args: Any, folder: Path) -> None:
        self._errors = folder / "errors"
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=self._run, args=(function, *args))
        self.process.start()

    def _run(self, function: Callable[..., None], *args: Any) -> None:
        os.setsid()
        sys.stderr = self._errors.open("w", buffering=1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        function(*args)

    def finish(self) -> tuple[int | None, str]:
        """The exit code and what went to stderr; fails if a child is alive ten seconds later."""
        self.process.join(60)
        all_end(self.process.pid)
        return self.process.exitcode, self._errors.read_text()

    def members(self) -> list[int]:
        """The processes of its session that are alive."""
        return members(self.process.pid)


def members(session: int | None) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if os.getsid(process.pid) == session:
                found.append(process)
        except ProcessLookupError:
            continue
    return [p.pid for p in found if p.info["status"] != psutil.STATUS_ZOMBIE]


def all_end(session: int | None) -> None:
    """Fails if a process of a session is alive ten seconds later."""
    end = time.monotonic() + 10
    while members(session) and time.monotonic() < end:
        time.sleep(0.05)
    assert members(session) == []


def endless(data: Dataset, folder: Path) -> None:
    loader = load(data)
    while True:
        for _ in loader:
            (folder / "going").touch()


@pytest.mark.parametrize("whom", ["parent", "group"])
def test_case_109_an_interrupt_ends_all(data: Dataset, tmp_path: Path, whom: str):
    ran = Outcome(endless, data, tmp_path, folder=tmp_path)
    wait_for(tmp_path / "going")
    assert ran.process.pid is not None
    assert len(ran.members()) >= 3
    (os.kill if whom == "parent" else os.killpg)(ran.process.pid, signal.SIGINT)
    code, errors = ran.finish()
    assert code != 0
    assert "KeyboardInterrupt" in errors


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_case_109_workers_do_not_outlive_a_parent_that_is_killed(data: Dataset, tmp_path: Path):
    ran = Outcome(endless, data, tmp_path, folder=tmp_path)
    wait_for(tmp_path / "going")
    ran.process.kill()
    code, _ = ran.finish()
    assert code == -signal.SIGKILL


def fail(data: Dataset) -> None:
    (data.root / "3.png").write_bytes(b"")
    for _ in load(data):
        pass


def test_case_109_an_error_in_a_sample_ends_the_run(data: Dataset, tmp_path: Path):
    copy = object.__new__(Dataset)
    (tmp_path / "photos").mkdir()
    for path in data.root.iterdir():
        (tmp_path / "photos" / path.name).write_bytes(path.read_bytes())
    vars(copy).update(vars(data), root=tmp_path / "photos")
    code, errors = Outcome(fail, copy, folder=tmp_path).finish()
    assert code == 1
    assert f"sample 3 ({tmp_path / 'photos' / '3.png'})" in errors
    assert DataError.__name__ in errors


def stop_early(data: Dataset) -> None:
    loader = load(data, batch_size=1)
    for _ in loader:
        break


def stopped(data: Dataset, folder: Path) -> None:
    workers.POLL = 0.25
    loader = load(data, pipeline=fp.pipe(fp.resize(8), sleepy(0.5)), batch_size=5, timeout=4.0)
    for _ in range(6):
        for _ in loader:
            (folder / "going").touch()


def test_a_run_that_was_stopped_longer_than_the_timeout_goes_on(data: Dataset, tmp_path: Path):
    """By Ctrl-Z, or by a cluster for a more urgent one."""
    ran = Outcome(stopped, data, tmp_path, folder=tmp_path)
    wait_for(tmp_path / "going")
    assert ran.process.pid is not None
    time.sleep(0.7)
    os.killpg(ran.process.pid, signal.SIGSTOP)
    time.sleep(4.5)
    os.killpg(ran.process.pid, signal.SIGCONT)
    assert ran.finish() == (0, "")


def test_a_consumer_may_stop_early_and_end(data: Dataset, tmp_path: Path):
    assert Outcome(stop_early, data, folder=tmp_path).finish() == (0, "")


def keep_many(data: Dataset, count: int, files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    slab.SMALL = 0  # these photos are small
    loader = load(data, batch_size=1, workers=4)
    kept: list[Tensor] = []
    while len(kept) < count:
        kept.extend(batch.images for batch in loader)
    assert len({t.untyped_storage().data_ptr() for t in kept}) == len(kept)


def test_case_108_a_batch_is_one_file_handle(data: Dataset, tmp_path: Path):
    """64 batches of 22 tensors each, all alive, with 256 files open at most."""
    assert Outcome(keep_many, data, 64, 256, folder=tmp_path).finish() == (0, "")


def test_case_108_too_many_files_are_named(data: Dataset, tmp_path: Path):
    code, errors = Outcome(keep_many, data, 400, 256, folder=tmp_path).finish()
    assert code == 1
    assert "LoaderError" in errors
    assert "ulimit -n" in errors


def little_memory(data: Dataset, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for _ in load(data, pipeline=fp.pipe(fp.resize(256)), batch_size=10):
        pass


def test_case_108_too_little_shared_memory_is_named(data: Dataset, tmp_path: Path):
    """A limit on the size of files stands in for a small /dev/shm: the same calls fail."""
    code, errors = Outcome(little_memory, data, 100_000, folder=tmp_path).finish()
    assert code == 1
    assert "LoaderError: worker 0 (pid" in errors
    assert "bytes of shared memory for a batch" in errors
    assert "/dev/shm has" in errors
    assert "--shm-size" in errors
    for pid in re.findall(r"</torch_(\d+)_", errors):
        assert [*Path("/dev/shm").glob(f"torch_{pid}_*")] == []


def large_index(data: Dataset, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    many = data.subset(torch.arange(10).repeat(10_000))
    next(iter(load(many, start_method="spawn")))


def test_an_index_that_is_too_large_for_shared_memory_is_told_of(data: Dataset, tmp_path: Path):
    """64 MB are all that Docker gives, and the outlines of COCO take more."""
    ran = Outcome(large_index, data, 200_000, folder=tmp_path)
    code, errors = ran.finish()
    assert code == 1
    assert "LoaderError: 2 workers cannot be started (unable to " in errors
    assert "/dev/shm has" in errors
    assert [*Path("/dev/shm").glob(f"torch_{ran.process.pid}_*")] == []


def test_without_workers_no_shared_memory_is_wanted(data: Dataset, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise RuntimeError("unable to open shared memory object: Read-only file system")

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", refuse)
    monkeypatch.setattr(Tensor, "share_memory_", refuse)
    assert len([*load(data, workers=0)]) == 5
    with pytest.raises(LoaderError, match=r"bytes of shared memory .* Read-only file system"):
        load(data, workers=1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_that_cannot_be_started_are_told_of(data: Dataset, monkeypatch: pytest.MonkeyPatch):
    """The first of them, which could, is not left behind."""
    fork, calls, before = os.fork, iter([True, False]), children()

    def limited() -> int:
        if next(calls):
            return fork()
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", limited)
    with pytest.raises(LoaderError) as caught:
        next(iter(load(data)))
    told = str(caught.value)
    assert told.startswith(
        "2 workers cannot be started ([Errno 11] Resource temporarily unavailable): /dev/shm has "
    )
    assert children() == before
    del caught
    gc.collect()  # torch's half of an iterator tells that it cannot be ended; it need not be


def test_gone_workers_leave_no_batch_in_memory(data: Dataset):
    torch.manual_seed(0)
    before = {*Path("/dev/shm").iterdir()}
    loader = load(data, prefetch=4)
    next(iter(loader))
    loader.close()
    assert {path for path in Path("/dev/shm").iterdir() if "torch" in path.name} <= before


def test_case_109_workers_by_forkserver_do_not_outlive_a_parent_that_is_killed(
    data: Dataset, tmp_path: Path
):
    """Their own parent is the server, which lives as long as they do."""
    script = tmp_path / "endless.py"
    script.write_text(FORKSERVER)
    (tmp_path / "data").write_bytes(pickle.dumps(data))
    with subprocess.Popen([sys.executable, script, tmp_path], start_new_session=True) as running:
        wait_for(tmp_path / "going")
        running.kill()
    all_end(running.pid)


FORKSERVER = """
import pathlib, pickle, sys
import fnpipe as fp

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    data = pickle.loads((folder / "data").read_bytes())
    loader = fp.Loader(
        data, fp.pipe(fp.resize(8)), batch_size=2, seed=0, workers=1, worker_backend="eager",
        start_method="forkserver",
    )
    while True:
        for _ in loader:
            (folder / "going").touch()
"""


def digest(batches: Iterable[fp.Batch]) -> list[str]:
    torch.set_num_threads(1)  # a forked child has none of its parent's
    return [repr((batch.ids.tolist(), int(batch.images.sum()))) for batch in batches]


def in_child(function: Callable[..., Any], *args: Any, daemon: bool = False) -> Any:
    """What a function gives, or raises, in a forked process."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def run() -> None:
        try:
            results.put(function(*args))
        except Exception as error:
            results.put(f"{type(error).__name__}: {error}")

    process = context.Process(target=run, daemon=daemon)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return results.get()


def test_a_forked_child_leaves_the_workers_to_its_parent(data: Dataset):
    wanted = digest(load(data, workers=0, batch_size=1))
    with load(data, batch_size=1) as loader:
        batches = iter(loader)
        seen = digest([next(batches)])
        loader.set_epoch(0)
        assert in_child(lambda: digest(loader)) == wanted  # by workers of its own
        assert in_child(loader.close) is None
        assert in_child(next, batches) == (
            "LoaderError: epoch 0 was left at step 1: its workers were closed, or are those of the "
            "process that this one was forked from; iterate anew"
        )
        assert seen + digest(batches) == wanted


def fork_and_exit(data: Dataset) -> None:
    batches = iter(load(data, batch_size=1))
    next(batches)
    child = os.fork()
    if not child:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert len([*batches]) == 9


def test_the_end_of_a_forked_child_is_not_that_of_the_workers(data: Dataset, tmp_path: Path):
    assert Outcome(fork_and_exit, data, folder=tmp_path).finish() == (0, "")


def test_a_daemonic_process_is_told_to_take_no_workers(data: Dataset):
    assert in_child(lambda: digest(load(data)), daemon=True) == (
        "ArgumentError: workers wanted 0 in a daemonic process, which may not start others: "
        "came 2; a worker of another DataLoader or of a Pool is one"
    )
    alone = load(data, workers=0)
    assert in_child(lambda: len(digest(alone)), daemon=True) == 5


@pytest.mark.parametrize("options", [{}, {"workers": 0}, {"ahead": False}])
def test_the_users_random_numbers_are_left_alone(data: Dataset, options: dict[str, Any]):
    """A run that is resumed, or has another number of workers, drops out the same units."""
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    with load(data, **options) as loader:
        assert len([*loader, *loader]) == 10
    assert torch.equal(torch.rand(3), wanted)
