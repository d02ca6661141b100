"""What to do about a sample that fails: find it, say where and how to see it again, or replace it.

A worker hands a failure over as a value, in the place of the batch. So it is raised when that batch
is asked for: not before, and not in an epoch that it does not belong to.
"""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fnpipe import cuts
from fnpipe.feed.addresses import Address
from fnpipe.feed.job import Job
from fnpipe.keys import Key, fold_in, key, partners
from fnpipe.ops.warp import join_sources
from fnpipe.ops.windows import gather
from fnpipe.pipeline import Pipeline
from fnpipe.stages.stage import Color
from fnpipe.types import ArgumentError, DataError, LoaderError, NumericsError


POLICIES = ("raise", "replace")
OURS = (ArgumentError, DataError, NumericsError, LoaderError)
"""Errors whose messages say all; of others the class is told, too."""
ATTEMPTS = 10
"""Replacements that are tried for a sample."""


class Replaced(NamedTuple):
    """A sample that failed, the one that took its place, and why."""

    epoch: int
    sample: int
    by: int
    why: str


@dataclass(frozen=True)
class Failure:
    """An error on its way to another process: its class, its message, and where it came from."""

    kind: type[Exception]
    message: str
    trace: str = ""

    def error(self) -> Exception:
        """The error to raise."""
        error = self.kind(self.message)
        if self.trace:
            error.add_note(f"In the worker:\n{self.trace}")
        return error


def failure(job: Job, address: Address, ids: Tensor, error: Exception, who: str) -> Failure:
    """``error`` with the sample that causes it, its stage, and the code that repeats it."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    kind = next((kind for kind in OURS if isinstance(error, kind)), LoaderError)
    epoch, step, *_ = address
    where = f"{who}, epoch {epoch}, step {step}"
    # What the machine lacks is no sample's fault.
    for sample in [] if isinstance(error, LoaderError) else ids.tolist():
        found = blame(job, address, sample)
        if found is not None:
            part, cause = found
            replay = (
                f"fnpipe.make_batch(data, {job.pipeline(epoch, step)!r}, [{sample}], "
                f"seed={job.epochs.seed}, epoch={epoch})"
            )
            return Failure(
                kind,
                f"{where}, sample {sample} ({job.data.path(sample)}), {part}: {_said(cause)}\n"
                f"to see it again: {replay}",
                trace,
            )
    return Failure(kind, f"{where}, samples {ids.tolist()}: {_said(error)}", trace)


def replace_failing(job: Job, address: Address, ids: Tensor) -> tuple[Tensor, tuple[Replaced, ...]]:
    """The samples with every one that fails replaced by one that does not, and which those were.

    What replaces a sample is drawn from its own key, so it is the same in every batch, worker and
    rank. Errors: DataError where ten in a row fail.
    """
    rows, replaced = ids.tolist(), []
    for place, sample in enumerate(rows):
        found = blame(job, address, sample)
        if found is None:
            continue
        at = key(seed=job.epochs.seed, epoch=address.epoch, sample=torch.tensor([sample]))
        candidates = partners(fold_in(at, "replace"), ATTEMPTS, len(job.data))[0].tolist()
        good = next((c for c in candidates if blame(job, address, c) is None), None)
        part, cause = found
        if good is None:
            raise DataError(f"{part}: {_said(cause)}; samples {candidates} in its place fail too")
        rows[place] = good
        why = f"{job.data.path(sample)}, {part}: {_said(cause)}"
        replaced.append(Replaced(address.epoch, sample, good, why))
    return torch.tensor(rows), tuple(replaced)


def blame(job: Job, address: Address, sample: int) -> tuple[str, Exception] | None:
    """The first part of the work that fails for one sample alone, and its error; None if none.

    Eagerly: a sample alone may have a size that no other has, and a package takes half a minute.
    """
    job, ids = replace(job, backend="eager"), torch.tensor([sample])
    try:
        job.prepare(address, ids=ids)
    except Exception as error:
        at = key(seed=job.epochs.seed, epoch=address.epoch, sample=ids)
        for part, attempt in _parts(job, job.pipeline(address.epoch, address.step), at):
            try:
                attempt()
            except Exception as cause:
                return part, cause
        return "packing", error
    return None


def _parts(job: Job, pipeline: Pipeline, at: Key) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The work on a sample in steps, each with its name; a step needs those before to succeed."""
    stages = pipeline.stages
    try:
        plan = pipeline.draw(at, job.data)
    except Exception:
        for count in range(1, len(stages) + 1):
            # Draws depend on names, not on what follows: they draw what they drew before.
            some = Pipeline(stages[:count])
            yield repr(stages[count - 1]), lambda some=some: some.draw(at, job.data)
        return
    yield "moving its targets", lambda: pipeline.annotate(plan, job.data)
    photos = plan.every_source
    for photo in photos[photos >= 0].unique().tolist():
        yield f"reading {job.data.path(photo)}", lambda photo=photo: job.data.read_packed(photo)
    sources, local = gather(plan, job.data.read_packed, join=join_sources)
    for count in range(1, len(stages) + 1):
        some = Pipeline(stages[:count])
        if isinstance(stages[count - 1], Color):
            part = local.replace(colors=local.colors[: len(some.colors)])
            yield repr(stages[count - 1]), lambda some=some, p=part: some.render(p, sources)
    yield (
        f"cut {job.cut!r}",
        lambda: cuts.add_pixels(
            cuts.draw(job.data, pipeline, at), pipeline, job.cut, job.backend, job.data, job.pool
        ),
    )


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, OURS) else f"{type(error).__name__}: {error}"
