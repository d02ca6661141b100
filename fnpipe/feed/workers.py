"""Persistent workers of a torch DataLoader, fed with addresses that do not end."""

import multiprocessing
import os
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import Dataset as TorchDataset

from fnpipe.feed.addresses import Address, Addresses
from fnpipe.feed.board import Board, Line
from fnpipe.feed.failures import Failure, Replaced, failure, replace_failing
from fnpipe.feed.job import Job
from fnpipe.feed.ranks import Share
from fnpipe.packing import Packed, packed
from fnpipe.types import LoaderError


class Sent(NamedTuple):
    """A parcel in one buffer, and the samples that were replaced in it."""

    packed: Packed
    replaced: tuple[Replaced, ...] = ()

    def pin_memory(self) -> "Sent":
        """The same in page-locked memory; torch's DataLoader calls it."""
        return self._replace(packed=self.packed.pin_memory())


class Parcels(TorchDataset[Any]):
    """What a worker makes of an address: a parcel, a failure, or None of an old stream's."""

    def __init__(self, job: Job, board: Board, on_error: str) -> None:
        self.job, self.board, self.on_error = job, board, on_error

    def __getitem__(self, address: Address) -> Sent | Failure | None:
        info = get_worker_info()
        line, wanted = self.board.line(info.id if info else 0), self.board.line(-1)["stream"]
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
    come up else, nobody could catch it, and the loader would wait for ever. Errors: LoaderError.
    """
    try:
        storage = torch.UntypedStorage._new_shared(count)
    except RuntimeError as error:
        shm = shutil.disk_usage("/dev/shm")
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise LoaderError(
            f"no {count:,} bytes of shared memory for a batch ({error}): /dev/shm has {shm.free:,} "
            f"bytes free of {shm.total:,}, and a process may open {files} files; lower workers, "
            "prefetch or batch_size, or raise the limit (docker run --shm-size, ulimit -n)"
        ) from error
    return torch.empty(0, dtype=dtype).set_(storage)  # type: ignore[call-overload]


class Workers:
    """What is made of consecutive addresses, in order; ``count`` 0 makes it on demand, here.

    Errors: LoaderError where a worker is gone or takes longer than ``timeout`` seconds. After any
    error no worker is left, and the next :meth:`begin` starts new ones.
    """

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
                "persistent_workers": True, "prefetch_factor": prefetch, "timeout": timeout,
                "multiprocessing_context": start_method,
            }  # fmt: skip
        self._parcels = Parcels(job, self.board, on_error)
        self._loader: DataLoader[Any] | None = None
        self._stream: Iterator[Any] | None = None
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
        self.board.line(-1)["stream"] = self._next.stream
        if self._loader is None:
            self._loader = DataLoader(
                self._parcels, batch_size=None, sampler=self._addresses,  # type: ignore[arg-type]
                **self._options,
            )  # fmt: skip
        with self._watch():
            self._stream = iter(self._loader)

    def take(self) -> Sent | Failure:
        """What is made of the next address; waits for it."""
        assert self._stream is not None
        with self._watch():
            taken = next(self._stream)
        self._taken += 1
        epoch, step = self.job.epochs.following(self._next.epoch, self._next.step)
        self._next = self._next._replace(epoch=epoch, step=step)
        return taken

    def ready(self) -> int:
        """How many batches in a row, from the next one on, are made already."""
        # Address i of a stream is worker i % count's.
        made = [self.board.done(w, self._next.stream) for w in range(self.count)]
        count = 0
        while self.count and made[(self._taken + count) % self.count] > (
            (self._taken + count) // self.count
        ):
            count += 1
        return count

    def close(self, *, kill: bool = False) -> None:
        """End all workers and forget what they made. Harmless when there are none."""
        stream, self._stream, self._loader = self._stream, None, None
        self.board.line(-1)["stream"] = -1
        if kill:
            pids = {self.board.line(w)["pid"] for w in range(self.count)}
            for child in multiprocessing.active_children():
                if child.pid in pids:
                    child.kill()
        if hasattr(stream, "_shutdown_workers"):
            stream._shutdown_workers()  # type: ignore[union-attr]

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """End the workers where anything goes wrong with them, and say what they were at."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            told = self._explain(error)
            self.close(kill=True)
            raise LoaderError(told) from error
        except BaseException:
            self.close(kill=True)
            raise

    def _explain(self, error: Exception) -> str:
        """An error of torch's DataLoader, with who was at what: those it names, or who was due."""
        named = set(re.findall(r"\d+", str(error)))
        own = {w: self.board.line(w) for w in range(self.count)}
        dead = {w: line for w, line in own.items() if str(line["pid"]) in named}
        due = {w: line for w, line in own.items() if w == self._taken % self.count}
        told = [self._at(w, line) for w, line in (dead or due).items()]
        where = f"waiting for epoch {self._next.epoch}, step {self._next.step}"
        return "; ".join([f"{where}: {error}", *told])

    def _at(self, worker: int, line: Line) -> str:
        told = f"worker {worker} (pid {line['pid']})"
        if not line["since"]:
            return f"{told} was at no batch"
        seconds = (monotonic_ns() - line["since"]) / 1e9
        told += f" was at epoch {line['epoch']}, step {line['step']} for {seconds:.1f} s"
        if line["sample"] >= 0:
            told += f", reading {self.job.data.path(line['sample'])}"
        ids = self.job.ids(Address(line["epoch"], line["step"], self._next.share))
        return f"{told}, samples {ids.tolist()}"
