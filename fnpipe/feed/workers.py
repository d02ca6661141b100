"""Persistent workers of a torch DataLoader, fed with addresses that do not end."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from threading import Thread
from time import monotonic_ns, sleep
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data._utils import signal_handling

from fnpipe import packing
from fnpipe.feed.addresses import Address, Addresses
from fnpipe.feed.board import Board, Line
from fnpipe.feed.failures import Failure, Replaced, failure, replace_failing
from fnpipe.feed.job import Job
from fnpipe.feed.ranks import Share
from fnpipe.packing import Packed, packed
from fnpipe.types import LoaderError


POLL = 2.0
"""Seconds after which a loader that waits looks whether its workers are alive."""
GRACE = 5.0
"""Seconds that the clearing up after dead workers may take before it is left to a thread."""


class Sent(NamedTuple):
    """A parcel in one buffer, and the samples that were replaced in it."""

    packed: Packed
    replaced: tuple[Replaced, ...] = ()

    def pin_memory(self) -> "Sent":
        """The same in page-locked memory; torch's DataLoader calls it."""
        return self._replace(packed=self.packed.pin_memory())


class Parcels(TorchDataset[Any]):
    """What a worker makes of an address: a parcel, a failure, or None of an old stream's."""

    job: Job
    board: Board
    on_error: str

    def __init__(self, job: Job, board: Board, on_error: str) -> None:
        self.job, self.board, self.on_error = job, board, on_error

    def __getitem__(self, address: Address) -> Sent | Failure | None:
        info = get_worker_info()
        line, wanted = self.board.lines[info.id if info else 0], self.board.lines[-1]["stream"]
        if address.stream != wanted:
            return None
        if line["stream"] != address.stream:
            line["stream"], line["done"] = address.stream, 0
        line["pid"], line["epoch"], line["step"] = os.getpid(), address.epoch, address.step
        line["sample"], line["since"] = -1, monotonic_ns()
        who = f"worker {info.id} (pid {os.getpid()})" if info else "no worker"
        sent = self._send(address, line, info.num_workers if info else 1, who)
        line["since"] = 0
        line["done"] += 1
        return sent

    def _send(self, address: Address, line: Line, stride: int, who: str) -> Sent | Failure:
        ids, replaced = self.job.ids(address, stride=stride), ()
        empty = shared_memory if get_worker_info() else torch.empty
        try:
            try:
                parcel = self.job.prepare(address, ids=ids, line=line)
            except Exception:
                if self.on_error == "raise":
                    raise
                ids, replaced = replace_failing(self.job, address, ids)
                parcel = self.job.prepare(address, ids=ids, line=line)
            start = monotonic_ns()
            sent = Sent(packed(parcel, empty=empty), replaced)
            line.spend("pack", start)
        except Exception as error:
            return failure(self.job, address, ids, error, who)
        return sent


def shared_memory(count: int, *, dtype: torch.dtype) -> Tensor:
    """Memory that another process can see.

    A worker that writes there at once saves the copy that sending any other tensor takes. It also
    learns that there is no more of it as an error, here; in the thread that sends, where it would
    come up else, nobody could catch it, and the loader would wait for ever.
    What is sent whole anyway (:data:`fnpipe.packing.SMALL`) needs none. Errors: LoaderError.
    """
    if count <= packing.SMALL:
        return torch.empty(count, dtype=dtype)
    try:
        storage = torch.UntypedStorage._new_shared(count)
    except RuntimeError as error:
        raise LoaderError(
            f"no {count:,} bytes of shared memory for a batch ({error}): {_limits()}; lower "
            "workers, prefetch or batch_size, or raise the limit (docker run --shm-size, ulimit -n)"
        ) from error
    return torch.empty(0, dtype=dtype).set_(storage)  # type: ignore[call-overload]


def _limits() -> str:
    """How much shared memory and how many files there are to be had."""
    if not Path("/dev/shm").is_dir():
        return "this system does not say what is left of it"
    import resource  # there is none on Windows

    shm, (files, _) = shutil.disk_usage("/dev/shm"), resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"/dev/shm has {shm.free:,} bytes free of {shm.total:,}, and a process may open {files} "
        "files"
    )


class Workers:
    """What is made of consecutive addresses, in order; ``count`` 0 makes it on demand, here.

    Errors: LoaderError where a worker is gone, or gives nothing for ``timeout`` seconds. After any
    error no worker is left, and the next :meth:`begin` starts new ones.
    """

    job: Job
    count: int
    timeout: float
    board: Board

    def __init__(
        self,
        job: Job,
        *,
        count: int,
        start_method: str | None,
        prefetch: int,
        ahead: bool,
        pin: bool,
        on_error: str,
        timeout: float,
    ) -> None:
        self.job, self.count, self.timeout = job, count, timeout
        self.board = Board(max(count, 1))
        self._addresses = Addresses(job.epochs, ahead)
        self._options: dict[str, Any] = {"num_workers": count, "pin_memory": pin}
        if count:
            self._options |= {
                "persistent_workers": True, "prefetch_factor": prefetch,
                "timeout": timeout / ceil(timeout / POLL), "multiprocessing_context": start_method,
            }  # fmt: skip
        self._parcels = Parcels(job, self.board, on_error)
        self._loader: DataLoader[Any] | None = None
        self._stream: Iterator[Any] | None = None
        self._processes: set[Any] = set()
        self._next = Address(0, 0)
        self._taken = 0

    def begin(self, epoch: int, step: int, share: Share) -> None:
        """Go on at an address. Where that is the next one anyway, nothing is made anew."""
        if self._stream is not None and self._next[:3] == (epoch, step, share):
            if self._addresses.ahead or step > 0:
                return
        # Workers pass over what is still asked for by the stream before: none of it is wanted.
        self._next = Address(epoch, step, share, self._next.stream + 1)
        self._addresses.start, self._taken = self._next, 0
        self.board.lines[-1]["stream"] = self._next.stream
        if self._loader is not None:
            self._rest()
            try:
                self._stream = iter(self._loader)
                return
            except (RuntimeError, OSError):
                # One of them is gone, and with it nothing that is wanted: start others.
                self.close(kill=True)
                self.board.lines[-1]["stream"] = self._next.stream
        self._start()

    def _start(self) -> None:
        self._loader = DataLoader(
            self._parcels, batch_size=None, sampler=self._addresses,  # type: ignore[arg-type]
            **self._options,
        )  # fmt: skip
        others = set(multiprocessing.active_children())
        stream = self._stream = iter(self._loader)
        self._processes = set(multiprocessing.active_children()) - others
        # Torch would raise for a dead worker anywhere in the consumer's code, which may be
        # validating meanwhile. Here the error waits for its batch; take() looks after them.
        if getattr(stream, "_worker_pids_set", False):
            signal_handling._remove_worker_pids(id(stream))  # pyright: ignore
            stream._worker_pids_set = False  # type: ignore[attr-defined]

    def _rest(self) -> None:
        """Wait until every worker has finished the batch that it is at."""
        end = monotonic_ns() + self.timeout * 1e9
        while any(self.board.lines[w]["since"] for w in range(self.count)):
            if monotonic_ns() > end or not all(p.is_alive() for p in self._processes):
                return
            sleep(1e-3)

    def take(self) -> Sent | Failure:
        """What is made of the next address; waits for it."""
        assert self._stream is not None
        end = monotonic_ns() + self.timeout * 1e9
        try:
            taken = self._poll()
            while taken is None:
                if monotonic_ns() > end:
                    raise TimeoutError(f"no batch came within {self.timeout:g} s")
                taken = self._poll()
        except (RuntimeError, OSError) as error:
            told = self._explain(error)
            self.close(kill=True)
            raise LoaderError(told) from error
        except BaseException:
            self.close(kill=True)
            raise
        self._taken += 1
        epoch, step = self.job.epochs.following(self._next.epoch, self._next.step)
        self._next = self._next._replace(epoch=epoch, step=step)
        return taken

    def _poll(self) -> Sent | Failure | None:
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
        self.board.lines[-1]["stream"] = -1
        for process in self._processes if kill else ():
            process.kill()
        if hasattr(stream, "_shutdown_workers"):
            # A process that was killed while it held a queue's lock would keep torch waiting.
            end = Thread(target=stream._shutdown_workers, daemon=True)  # type: ignore[union-attr]
            end.start()
            end.join(GRACE if kill else None)
        self._processes = set()
        self.board.clear()

    def _explain(self, error: Exception) -> str:
        """An error of torch's DataLoader, with who was at what: the dead, or who was due."""
        own = {self.board.lines[w]["pid"]: w for w in range(self.count)}
        for process in self._processes:
            process.join(0.05)  # a broken connection may be known before the death that broke it
        dead = [p for p in self._processes if not p.is_alive()]
        told = [self._at(own[p.pid], f"died ({_cause(p.exitcode)})") for p in dead if p.pid in own]
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


def _cause(code: int | None) -> str:
    """An exit code in words."""
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    hints = {"SIGKILL": ": out of memory?", "SIGBUS": ": /dev/shm full?"}
    return f"{name}{hints.get(name, '')}"
