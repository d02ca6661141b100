"""Persistent workers of a torch DataLoader, fed with addresses that do not end."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from math import ceil
from threading import Thread
from time import monotonic_ns, sleep
from typing import Any
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from fnpipe.data.processes import check_main
from fnpipe.feed.addresses import Address, Addresses
from fnpipe.feed.board import Board
from fnpipe.feed.failures import Failure
from fnpipe.feed.job import Job
from fnpipe.feed.parcels import Left, Parcels, Sent
from fnpipe.feed.ranks import Share
from fnpipe.feed.slab import Slab, forget_name, limits
from fnpipe.packing import Packed
from fnpipe.types import ArgumentError, LoaderError


POLL = 2.0
"""Seconds after which a loader that waits looks whether its workers are alive."""
GRACE = 5.0
"""Seconds that the clearing up after dead workers may take before it is left to a thread."""


class Workers:
    """Parcels of consecutive addresses, in order; with ``count`` 0 they are made here, on demand.

    Errors: LoaderError where a worker is gone, or gives nothing for ``timeout`` seconds. After any
    error no worker is left, and the next :meth:`begin` starts new ones.
    """

    job: Job
    count: int
    timeout: float
    device: torch.device
    board: Board

    def __init__(
        self,
        job: Job,
        *,
        count: int,
        start_method: str | None,
        prefetch: int,
        ahead: bool,
        device: torch.device,
        on_error: str,
        timeout: float,
    ) -> None:
        self.job, self.count, self.timeout, self.device = job, count, timeout, device
        self._addresses = Addresses(job.epochs, ahead)
        # What workers make lies in locked pages anyway, without a thread that copies it there.
        pin = device.type == "cuda" and not count
        self._options: dict[str, Any] = {"num_workers": count, "pin_memory": pin}
        if count:
            self._options |= {
                "persistent_workers": True, "prefetch_factor": prefetch,
                "timeout": timeout / ceil(timeout / POLL), "multiprocessing_context": start_method,
            }  # fmt: skip
        self._places = prefetch + 1  # one more may be on its way to the device
        self._on_error = on_error
        self._next = Address(0, 0)
        self._taken = 0
        self._be_alone()

    def _be_alone(self) -> None:
        """Without workers, and without memory that any of them sees."""
        self.board = Board(self.count)
        self._parcels = Parcels(self.job, self.board, self._on_error)
        self._loader: DataLoader[Any] | None = None
        self._stream: Iterator[Any] | None = None
        self._processes: set[Any] = set()

    def __getstate__(self) -> dict[str, Any]:
        shared = ("board", "_parcels", "_loader", "_stream", "_processes")
        return {name: given for name, given in vars(self).items() if name not in shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._be_alone()

    def begin(self, epoch: int, step: int, share: Share) -> None:
        """Go on at an address. Where that is the next one anyway, nothing is made anew."""
        if any(process.exitcode == 0 for process in self._processes):
            self.close(kill=True)  # a notebook's interrupt goes to the whole group, and ends them
        if self._stream is not None and self._next[:3] == (epoch, step, share):
            if self._addresses.ahead or step > 0:
                return
        try:
            self._anew(epoch, step, share)
        except BaseException:  # an interrupt: what has begun in part would give others' batches
            self.close(kill=True)
            raise

    def _anew(self, epoch: int, step: int, share: Share) -> None:
        # Workers pass over what is still asked for by the stream before: none of it is wanted.
        self._next = Address(epoch, step, share, self._next.stream + 1)
        self._addresses.start, self._taken = self._next, 0
        self.board.lines[-1]["stream"] = self._next.stream
        if self._loader is not None:
            self._rest()
            if self._parcels.slab is not None:
                self._parcels.slab.clear()
            try:
                self._stream = iter(self._loader)
                return
            except (RuntimeError, OSError):
                # One of them is gone, and with it nothing that is wanted: start others.
                self.close(kill=True)
                self.board.lines[-1]["stream"] = self._next.stream
        self._start()

    def _start(self) -> None:
        if self.count:
            check_main()
        if self.count and multiprocessing.current_process().daemon:
            raise ArgumentError(
                "workers wanted 0 in a daemonic process, which may not start others: came "
                f"{self.count}; a worker of another DataLoader or of a Pool is one"
            )
        on_gpu = self.device.type == "cuda"
        slab = Slab(self.count, self._places, segments=on_gpu) if self.count else None
        self._parcels.slab = slab
        self._loader = DataLoader(
            self._parcels, batch_size=None, sampler=self._addresses,  # type: ignore[arg-type]
            generator=torch.Generator(),  # it draws a seed, from the user's numbers else
            worker_init_fn=_end_with_loader, **self._options,
        )  # fmt: skip
        others = set(multiprocessing.active_children())
        try:
            stream = self._stream = iter(self._loader)
        except (RuntimeError, OSError) as error:  # by "spawn" an index goes to shared memory first
            forget_name(error)
            told = f"{self.count} workers cannot be started ({error}): {limits()}"
            raise LoaderError(told) from error
        finally:
            self._processes = set(multiprocessing.active_children()) - others
        if self.count:
            _started.add(self)
        _unwatch(stream)
        if slab is not None and on_gpu:
            with torch.cuda.device(self.device.index):
                slab.lock_pages()

    def _rest(self) -> None:
        """Wait until every worker has finished the batch that it is at."""
        end = monotonic_ns() + self.timeout * 1e9
        while any(self.board.lines[w]["since"] for w in range(self.count)):
            if monotonic_ns() > end or not all(p.is_alive() for p in self._processes):
                return
            sleep(1e-3)

    def take(self) -> Sent | Failure:
        """What is made of the next address; waits for it."""
        if self._stream is None:
            raise LoaderError(
                f"epoch {self._next.epoch} was left at step {self._next.step}: its workers were "
                "closed, or are those of the process that this one was forked from; iterate anew"
            )
        try:
            taken = self._wait()
            self._taken += 1
            epoch, step = self.job.epochs.following(self._next.epoch, self._next.step)
            self._next = self._next._replace(epoch=epoch, step=step)
        except BaseException:
            self.close(kill=True)
            raise
        return self._find(taken) if isinstance(taken, Left) else taken

    def _wait(self) -> Sent | Left | Failure:
        try:
            # Looks are counted: a clock goes on while Ctrl-Z, or a cluster, has stopped all.
            for _ in range(ceil(self.timeout / POLL)):
                taken = self._poll()
                if taken is not None:
                    return taken
            raise TimeoutError(f"no batch came within {self.timeout:g} s")
        except (RuntimeError, OSError) as error:
            raise LoaderError(self._explain(error)) from error

    def _find(self, left: Left) -> Sent:
        """A parcel that lies in the slab; on the host a copy of it, since batches are kept."""
        slab = self._parcels.slab
        assert slab is not None
        if left.segment is not None:
            with torch.cuda.device(self.device.index):
                slab.learn(left.worker, left.place, left.segment)
        buffer = slab.view(left.worker, left.place, left.size)
        place = left.worker, left.place
        if self.device.type != "cuda":
            buffer, place = buffer.clone(), None
            slab.free(left.worker, left.place)
        return Sent(Packed(buffer, left.slots, left.form), left.replaced, place)

    def give_back(self, sent: Sent, copied: Any) -> None:
        """The event ``copied`` ends the last use of a parcel's buffer."""
        if sent.place is not None and self._parcels.slab is not None:
            self._parcels.slab.free(*sent.place, after=copied)

    def _poll(self) -> Sent | Left | Failure | None:
        """The next batch, or None where it takes longer and all workers are alive."""
        try:
            return next(self._stream)  # type: ignore[arg-type]
        except RuntimeError as error:
            if "timed out after" in str(error):
                return None
            raise

    def ready(self) -> int:
        """How many batches are made and not taken yet, in any order."""
        return self.board.done(self._next.stream) - self._taken if self.count else 0

    def is_ready(self) -> bool:
        """Whether the next batch is made."""
        if not self.count:
            return False
        turn, worker = divmod(self._taken, self.count)  # address i of a stream is i % count's
        line = self.board.lines[worker]
        return line["stream"] == self._next.stream and line["done"] > turn

    def close(self, *, kill: bool = False) -> None:
        """End all workers and forget what they made. Harmless when there are none."""
        stream, self._stream, self._loader = self._stream, None, None
        killed, self._processes = self._processes if kill else set(), set()
        self.board.lines[-1]["stream"] = -1
        _unwatch(stream)
        for process in killed:
            process.kill()
        if killed or hasattr(stream, "_shutdown_workers"):
            # A process that was killed while it held a queue's lock would keep torch waiting.
            end = Thread(target=_end, args=(stream, killed), daemon=True)
            end.start()
            end.join(GRACE if kill else None)
        if self._parcels.slab is not None:
            self._parcels.slab.clear()
            self._parcels.slab = None
        self.board.clear()

    def forget(self) -> None:
        """In a forked child: workers and their memory are the parent's, which goes on with them."""
        if self._stream is not None:  # else torch, and Python at its exit, would end them here
            self._stream._shutdown = True  # type: ignore[attr-defined]
            multiprocessing.process._children -= self._processes  # pyright: ignore
        self._be_alone()

    def _explain(self, error: Exception) -> str:
        """An error of torch's DataLoader, with who was at what: the dead, or who was due."""
        own = {self.board.lines[w]["pid"]: w for w in range(self.count)}
        for process in self._processes:
            process.join(0.05)  # a broken connection may be known before the death that broke it
        dead = [p for p in self._processes if not p.is_alive()]
        told = [self._at(own[p.pid], f"died ({_cause(p.exitcode)})") for p in dead if p.pid in own]
        told += [
            f"a worker (pid {p.pid}) died ({_cause(p.exitcode)}) before its first batch: its own "
            "error is on stderr; functions typed into a notebook reach workers by "
            "start_method='fork' alone, those of a module always"
            for p in dead if p.pid not in own
        ]  # fmt: skip
        due = self._taken % self.count if self.count else None
        if not dead and due is not None:
            told = [self._at(due, "was due")]
        where = f"waiting for epoch {self._next.epoch}, step {self._next.step}"
        return "; ".join([f"{where}: {error}", *told])

    def _at(self, worker: int, what: str) -> str:
        line = self.board.lines[worker]
        told = f"worker {worker} (pid {line['pid']}) {what}"
        if not line["since"]:
            return f"{told} between batches"
        seconds = (monotonic_ns() - line["since"]) / 1e9
        told += f" at epoch {line['epoch']}, step {line['step']} after {seconds:.1f} s"
        if line["sample"] >= 0:
            told += f", reading {self.job.data.path(line['sample'])}"
        ids = self.job.ids(Address(line["epoch"], line["step"], self._next.share))
        return f"{told}, samples {ids.tolist()}"


_started: WeakSet[Workers] = WeakSet()


def _forget_all() -> None:
    for workers in _started:
        workers.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _unwatch(stream: Any) -> None:
    """Torch would raise for a dead worker anywhere in the consumer's code, which may be validating.

    Here the error waits for its batch: take() looks after them.
    """
    if getattr(stream, "_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(stream))  # pyright: ignore
        stream._worker_pids_set = False


def _end(stream: Any, killed: set[Any]) -> None:
    if hasattr(stream, "_shutdown_workers"):
        stream._shutdown_workers()
    for process in killed:
        process.join()


def _end_with_loader(_: int) -> None:
    """End this worker with the loader's process, however that ends.

    Torch looks after the process that forked the worker. By "forkserver" that is the server, which
    lives as long as its workers do: both outlived a killed loader for ever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _cause(code: int | None) -> str:
    """An exit code in words."""
    if code is None or code >= 0:
        return f"exit code {code}{': interrupted?' * (code == 0)}"
    name = signal.Signals(-code).name
    hints = {"SIGKILL": ": out of memory?", "SIGBUS": ": /dev/shm full?"}
    return f"{name}{hints.get(name, '')}"
