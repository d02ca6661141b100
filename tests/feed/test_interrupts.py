"""An interrupt may come at any line, as in a notebook; the next batches are the right ones."""

import gc
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.types import LoaderError


PLAIN = fp.pipe(fp.resize(8), fp.flip(horizontal=0.5))
few_cores = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning",
    "ignore:.*multi-threaded.*fork:DeprecationWarning",
)


def load(data: Dataset, **options: Any) -> fp.Loader:
    given = {"batch_size": 3, "seed": 0, "worker_backend": "eager", "backend": "eager"}
    return fp.Loader(data, PLAIN, **(given | options))


def ids(batches: Iterator[fp.Batch] | fp.Loader) -> list[list[int]]:
    return [batch.ids.tolist() for batch in batches]


FUNCTIONS = ("_run", "_next", "begin", "_anew", "_start", "_rest", "take", "_wait", "_poll")


class Interrupt:
    """A trace that interrupts at the n-th line of those functions."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        own = frame.f_globals.get("__name__") in ("fnpipe.loader", "fnpipe.feed.workers")
        return self.line if own and frame.f_code.co_name in FUNCTIONS else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.left -= event == "line"
        if event == "line" and self.left == 0:
            raise KeyboardInterrupt
        return self.line


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_at_any_line_changes_no_batch_after_it(data: Dataset, begun: bool):
    """Of a first epoch, and of a second one whose first was left early."""
    whole, before = load(data), sys.gettrace()
    wanted = [ids(whole), ids(whole)][begun]
    for count in itertools.count(1):
        loader, trace, seen = load(data), Interrupt(count), []
        if begun:
            next(iter(loader))
        epoch, batches = loader.epoch, iter(loader)
        try:
            sys.settrace(trace)
            for _ in range(2):
                seen.append(next(batches))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert ids(iter(seen)) == wanted[: len(seen)]
        state = loader.state_dict()
        step = state["step"] if state["epoch"] == epoch and (seen or not begun) else 0
        loader.load_state_dict(state | {"epoch": epoch, "step": step})
        assert ids(loader) == wanted[step:], count
        if trace.left > 0:
            return


@few_cores
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_workers_start_leaves_none(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
):
    """Which takes seconds by "spawn". A notebook keeps the traceback, and all that is in it."""
    fork, calls = os.fork, iter([True, False])
    before = {*multiprocessing.active_children()}

    def interrupted() -> int:
        if next(calls):
            return fork()
        raise KeyboardInterrupt

    loader = load(data, workers=2, start_method="fork")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", interrupted)
        with pytest.raises(KeyboardInterrupt) as kept:
            next(iter(loader))
    assert {*multiprocessing.active_children()} == before
    del kept
    gc.collect()  # torch's half of an iterator tells that it cannot be ended; it need not be
    with loader:
        assert ids(loader) == ids(load(data))
        assert len({*multiprocessing.active_children()} - before) == 2


@few_cores
def test_workers_that_were_interrupted_alone_are_started_again(data: Dataset):
    """A notebook interrupts the whole group: while it validates, say, between two epochs."""
    whole, before = load(data), {*multiprocessing.active_children()}
    wanted = [ids(whole), ids(whole)]
    with load(data, workers=2, start_method="fork") as loader:
        assert ids(loader) == wanted[0]
        for worker in {*multiprocessing.active_children()} - before:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGINT)
            worker.join()
        assert ids(loader) == wanted[1]


@few_cores
def test_workers_that_were_interrupted_within_an_epoch_are_told_of(data: Dataset):
    before = {*multiprocessing.active_children()}
    with load(data, workers=1, start_method="fork", batch_size=1, prefetch=1) as loader:
        batches = iter(loader)
        next(batches)
        (worker,) = {*multiprocessing.active_children()} - before
        os.kill(worker.pid or 0, signal.SIGINT)
        worker.join()
        with pytest.raises(LoaderError, match=r"died \(exit code 0: interrupted\?\)"):
            list(batches)
