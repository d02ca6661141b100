"""One complete training, timed: what a run of ``bench/fit.py`` does in its process."""

import hashlib
import importlib
import json
import os
import resource
import tempfile
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import arms
import torch
from arms import Input, Ready, Task
from detector import Truth
from torch import Tensor
from torch.utils import _pytree as pytree


CLASSES = 84
"""80, and four that no photo has: with the box's four numbers a multiple of 8 channels."""
MODELS = {"nano": "detector", "torchvision": "ssdlite"}
"""Modules with a class ``Step``."""
VALIDATION = 64
"""Photos that are validated on, each epoch: all that there are."""
QUEUE = 2
"""Steps that may wait on the device: more would hide from the clock who waits for whom."""


@dataclass
class Clock:
    """Where the seconds of a fit go: waits for batches, the host's work on them, and the steps."""

    cuda: bool
    work: float = 0.0
    waits: list[float] = field(default_factory=list)
    epochs: list[list[Any]] = field(default_factory=list)
    """Of every step of every epoch, where it began and ended."""
    queue: deque[Any] = field(default_factory=deque)

    def batches(self, source: Input) -> Iterator[Ready]:
        """An epoch's batches, on the device; the first wait includes starting workers.

        What a loader does itself while it is asked, moving and launching, is work, not waiting.
        """
        self.epochs.append([])
        start, worked = time.perf_counter(), source.worked()
        for raw in source.epoch():
            came, more = time.perf_counter(), source.worked() - worked
            self.waits.append(came - start - more)
            ready = source.ready(raw)
            self.work += more + time.perf_counter() - came
            yield ready
            if len(self.queue) >= QUEUE:
                self.queue.popleft().synchronize()
            start, worked = time.perf_counter(), source.worked()

    def mark(self) -> Any:
        """Now, on the device's own clock where it has one. To wait for it takes no core."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def step(self, begin: Any, end: Any) -> None:
        """A step lay between these marks."""
        self.epochs[-1].append((begin, end))
        if self.cuda:
            self.queue.append(end)

    def in_steps(self) -> float:
        """Seconds of all steps; the device must have come to the last."""
        return sum(self.seconds(*both) for steps in self.epochs for both in steps)

    def between_steps(self) -> float:
        """Seconds from a step's end to the next one's beginning, in all epochs.

        A device makes images in that time, or waits for what to make them of.
        """
        pairs = (both for steps in self.epochs for both in pairwise(steps))
        return sum(self.seconds(end, begin) for (_, end), (begin, _) in pairs)

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks."""
        return 1e-3 * begin.elapsed_time(end) if self.cuda else end - begin


def run(options: Namespace) -> dict[str, Any]:
    """The figures of one run, by name. Errors: whatever breaks."""
    began = time.perf_counter()
    if options.cores:
        pin(options.cores)
    be_deterministic()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # the other cores are for workers; and sums do not depend on them
    task = Task(
        options.records, options.batch, options.size, options.workers, device(),
        backend=options.backend,
    )  # fmt: skip
    task = arms.task_of(options.arm, task)
    if not task.steps:
        raise ValueError(f"records wanted at least a batch of {task.batch}, came {task.records}")
    model = importlib.import_module(MODELS[options.model])
    steps = options.epochs * task.steps
    step = model.Step(CLASSES, task.batch, task.size, steps, task.device, seed=0)
    held = arms.validation(task, VALIDATION)
    step.validate(*held)
    modelled = time.perf_counter()
    source = arms.ARMS[options.arm](task)
    synchronize(task.device)
    if task.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    ready = time.perf_counter()
    found = {"set-up": ready - began, "set-up of the input": ready - modelled}
    found |= fit(step, source, held, options.epochs, task)
    found |= {"arm": options.arm, "note": source.note, "stream": arms.stream_of(options.arm)}
    return found


def fit(
    step: Any, source: Input, held: tuple[Tensor, Truth], epochs: int, task: Task
) -> dict[str, Any]:
    """Train, validate and save, between two looks at the clock."""
    clock, metrics = Clock(step.cuda), []
    burnt, start = cpu_seconds(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(epochs):
            for ready in clock.batches(source):
                begin = clock.mark()
                step(*ready)
                clock.step(begin, clock.mark())
            metrics.append(step.validate(*held))
            step.check()
            torch.save(step.state() | {"input": source.state()}, Path(folder) / "last.pt")
        synchronize(task.device)
        seconds = time.perf_counter() - start
    source.close()
    losses = step.losses.tolist()
    if (count := sum(map(len, clock.epochs))) != len(losses):
        raise RuntimeError(f"wanted {len(losses)} steps, came {count}")
    first, last = (losses[: task.steps], losses[-task.steps :])
    waited, inside = sum(clock.waits), clock.in_steps()
    return {
        "seconds": seconds,
        "images/s": len(losses) * task.batch / seconds,
        "input wait": 100 * waited / seconds,
        "input wait after the first batch": 100 * share(waited, seconds, clock.waits[0]),
        "between steps": 100 * clock.between_steps() / inside,
        "outside the step": 100 * (1 - inside / seconds),
        "a step": 1e3 * inside / len(losses),
        "host's work a step": 1e3 * clock.work / len(losses),
        "CPU": cpu_seconds() - burnt,
        "GPU memory": torch.cuda.max_memory_allocated() / 1e9 if step.cuda else None,
        "loss of the first epoch": sum(first) / task.steps,
        "loss of the last epoch": sum(last) / task.steps,
        "objects hit": 100 * metrics[-1][1],
        "metrics": metrics,
        "hashes": hashes(step.state(), metrics),
    }


def share(waited: float, seconds: float, first: float) -> float:
    """Of the time after the first batch came, which was worth ``first``, how much was waited."""
    return (waited - first) / max(seconds - first, 1e-9)


def hashes(state: dict[str, Any], metrics: list[tuple[float, float]]) -> dict[str, str]:
    """SHA-256 of each kind of state, tensors and numbers, in order; of metrics as they print."""
    found = {kind: digest(values) for kind, values in state.items()}
    return found | {"metrics": hashlib.sha256(json.dumps(metrics).encode()).hexdigest()}


def digest(values: Any) -> str:
    """SHA-256 of a tree: its structure, and the bytes of its tensors with dtype and shape."""
    leaves, structure = pytree.tree_flatten(values)
    made = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            made.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            leaf = leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        made.update(leaf if isinstance(leaf, bytes) else repr(leaf).encode())
    return made.hexdigest()


def be_deterministic() -> None:
    """Equal input trains to equal bytes, or an operator raises."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    # Else every new tensor is filled with NaN first, a write of all its memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def pin(cores: int) -> None:
    """Use the first ``cores`` cores and no others. Errors: ValueError where there are fewer."""
    allowed = sorted(os.sched_getaffinity(0))
    if cores > len(allowed):
        raise ValueError(f"cores wanted at most {len(allowed)}, came {cores}")
    os.sched_setaffinity(0, allowed[:cores])
    torch.set_num_threads(cores)


def device() -> torch.device:
    """The GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cpu_seconds() -> float:
    """Seconds of CPU of this process and of its children that have ended."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, whose))
