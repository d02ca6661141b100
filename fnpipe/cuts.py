"""Where a batch is cut in two: what workers send, and what the device makes of it.

=============  ====================================  ===========================================
cut            a worker sends                        the device does
=============  ====================================  ===========================================
``finished``   finished images                       nothing
``warped``     float32 planes                        colour, quantise, dtype, layout
``source``     the windows of photos a plan sees     everything on pixels
``plan``       the plan                              everything on pixels, from a pool it holds
=============  ====================================  ===========================================

The bytes of a batch are the same for all of them.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Shaped
from torch import Tensor

from fnpipe.backends import CUTS, NO_COMPILER, NO_TRITON, Chosen, best, check_backend, warper
from fnpipe.data.dataset import as_rows, check_dataset, check_host, check_pool
from fnpipe.data.pool import Rest
from fnpipe.keys import Key, key
from fnpipe.ops import windows
from fnpipe.ops.layers import rasterized
from fnpipe.ops.warp import join_sources
from fnpipe.ops.windows import gather
from fnpipe.pipeline import Photos, Pipeline
from fnpipe.schedules import Schedule
from fnpipe.stages.foreign import foreign_stages
from fnpipe.types import (
    ArgumentError,
    Batch,
    Empty,
    Masks,
    Movable,
    Plan,
    Rings,
    Sources,
    Targets,
    Words,
    check_choice,
    map_tensors,
    value,
)


@runtime_checkable
class Reader(Protocol):
    """A pool, as far as a worker needs it: the photos of a plan, and the plan that finds them."""

    def gather(self, plan: Plan) -> tuple[Sources, Plan]: ...


@dataclass(frozen=True)
class Mapped:
    """A pool in the host's memory that the device reads itself: workers say which windows."""

    sources: Sources


@value
class Parcel(Movable):
    """What a worker sends of a batch: the plan, the targets, and at most one kind of pixels."""

    plan: Plan
    targets: Targets
    images: Shaped[Tensor, "b 3 h w"] | None = None
    planes: Float32[Tensor, "b 3 h w"] | None = None
    sources: Sources | None = None
    masks: Masks | None = None
    lacking: Sources | windows.Windows | None = None
    """Windows of the photos that the pool on the device does not hold."""
    seen: windows.Windows | None = None
    """Where in the host's pool the sources lie, which are still to be fetched."""


def choose_backends(
    pipeline: Pipeline, cut: str, device: torch.device, worker: str | None, late: str | None
) -> Chosen:
    """The backends named, or the fastest that are there; warns of eager for want of a compiler.

    Errors: ArgumentError.
    """
    check_choice("cut", cut, CUTS)
    _check_foreign(pipeline, cut)
    recipe = pipeline.recipe((1, 1))
    here, why_here = best(torch.device("cpu"), recipe)
    there, why_there = best(device, recipe)
    if there == "package" and cut == "warped":
        there, why_there = "eager", "no package of the colour pass alone"
    if worker is not None:
        here, why_here = worker, "asked for"
    if late is not None:
        there, why_there = late, "asked for"
    why = why_here if cut in ("finished", "warped") else why_there
    if why.startswith((NO_COMPILER, NO_TRITON)):
        warnings.warn(f"images take 30 times as long as they could, or more: {why}", stacklevel=3)
    check_backend(here, part="warp" if cut == "warped" else "render")
    check_backend(there, part="paint" if cut == "warped" else "render")
    return Chosen(here, there, f"workers: {why_here}; device: {why_there}")


def draw(data: Photos, pipeline: Pipeline, at: Key) -> Parcel:
    """The plan and the targets of a batch: all that the cut ``plan`` sends."""
    plan = pipeline.draw(at, data)
    return Parcel(plan, pipeline.annotate(plan, data))


def add_pixels(
    parcel: Parcel,
    pipeline: Pipeline,
    cut: str,
    backend: str,
    data: Photos,
    pool: Reader | Rest | Mapped | None,
    *,
    empty: Empty = torch.empty,
) -> Parcel:
    """A worker's part of the pixels. ``pool`` saves decoding photos anew.

    ``empty(count, dtype=...)`` gives the memory for windows and for what a package makes.
    """
    plan = parcel.plan
    _check_foreign(pipeline, cut)
    if isinstance(pool, Mapped):
        seen, plan = windows.measure(pool.sources, plan)
        return parcel.replace(plan=plan, seen=seen)
    if isinstance(pool, Rest):
        seen, plan, alone = pool.measure(plan)
        if seen is None:
            return parcel.replace(plan=plan)
        if not pool.copies:
            return parcel.replace(plan=plan, **{"seen" if alone else "lacking": seen})
        sources = windows.fetch(seen, pool.host.sources.words, empty=empty)
        return parcel.replace(plan=plan, **{"sources" if alone else "lacking": sources})
    if cut == "plan":
        return parcel
    sources, local = _fetch(plan, data) if pool is None else pool.gather(plan)
    if cut == "source":
        sources, local = windows.cut(sources, local, empty=empty)
        return parcel.replace(sources=sources, plan=local)
    recipe = pipeline.recipe(plan.size)
    parcel = parcel.replace(plan=plan.replace(overs=()))  # what lies on top is in the pixels
    if cut == "warped":
        memory = {"empty": empty} if backend == "package" else {}
        return parcel.replace(planes=warper(recipe, backend)(sources, local, **memory))
    images = pipeline.render(local, sources, backend=backend, empty=empty)
    return parcel.replace(images=images, masks=make_masks(parcel, pipeline, backend))


def _fetch(plan: Plan, data: Photos) -> tuple[Sources, Plan]:
    """The photos of a plan; packed while they are decoded, by a data set that can."""
    packed = getattr(data, "read_packed", None)
    if packed is None:
        return gather(plan, data.read)
    return gather(plan, packed, join=join_sources)


def _check_foreign(pipeline: Pipeline, cut: str) -> None:
    """Errors: ArgumentError where code of others would have to run on the device."""
    others = foreign_stages(pipeline.colors)
    if others and cut != "finished":
        raise ArgumentError(
            f"cut {cut!r}: {others[0][1]!r} runs in workers alone; take cut='finished'"
        )


def complete(
    parcel: Parcel, pipeline: Pipeline, *, backend: str = "eager", pool: Sources | None = None
) -> Batch:
    """The device's part: the batch of a parcel, wherever its tensors are.

    A parcel can be finished on the host, too, to look at it; that changes nothing of what the
    device would make of it. ``pool`` are the sources that a plan alone counts in. Inside a compiled
    step it takes a settled parcel (:func:`fnpipe.cuts.settle`) and puts one call into the graph.
    Errors: ArgumentError for a plan without its pool, and in a step for what is not settled.
    """
    if torch.compiler.is_compiling():
        _check_settled(parcel, pipeline)
    plan, images = parcel.plan, parcel.images
    if parcel.planes is not None:
        images = pipeline.paint(parcel.planes, plan.colors, backend=backend)
    elif images is None:
        images = pipeline.render(plan, _sources(parcel, pool), backend=backend)
    masks = make_masks(parcel, pipeline, backend) if parcel.masks is None else parcel.masks
    return Batch(images, parcel.targets, plan.ids, plan.epochs, masks)


def fetch(parcel: Parcel, pool: Words) -> Parcel:
    """The parcel with its windows copied from the words of a pool that its device can read."""
    found: dict[str, Sources] = {}
    if parcel.seen is not None:
        found["sources"] = windows.fetch(parcel.seen, pool)
    if isinstance(parcel.lacking, windows.Windows):
        found["lacking"] = windows.fetch(parcel.lacking, pool)
    return parcel.replace(seen=None, **found)


def settle(
    parcel: Parcel, pipeline: Pipeline, *, backend: str = "eager", pool: Sources | None = None
) -> Parcel:
    """The parcel with all done that a compiled step cannot do; :func:`complete` does the rest.

    That is whatever changes the pool, or grows with the number of targets: windows are landed, the
    rings of layers rasterised, masks made. The pool is in it afterwards, so a parcel is all that a
    step needs. Errors: ArgumentError for a plan without its pool.
    """
    late = parcel.images is None and parcel.planes is None
    return parcel.replace(
        plan=rasterized(parcel.plan),
        sources=_sources(parcel, pool) if late else None,
        lacking=None,
        seen=None,
        masks=make_masks(parcel, pipeline, backend) if parcel.masks is None else parcel.masks,
    )


def settler() -> Callable[..., Parcel]:
    """:func:`settle`, which tells Dynamo of its first parcel what changes from batch to batch.

    The first compilation leaves these sizes open; else they would be the cause of a second.
    A pool stays where it is: CUDA graphs would copy it, every step, to a place of their own.
    """
    fresh = True

    def run(parcel: Parcel, pipeline: Pipeline, **how: Any) -> Parcel:
        nonlocal fresh
        settled = settle(parcel, pipeline, **how)
        if fresh:
            many: list[Any] = [settled.targets, settled.masks]
            if how.get("pool") is not None:
                map_tensors(_stay, how["pool"])
            elif settled.sources is not None:
                many.append(settled.sources.words)
            map_tensors(_open, many)
        fresh = False
        return settled

    return run


def _open(t: Tensor) -> Tensor:
    torch._dynamo.maybe_mark_dynamic(t, 0)
    return t


def _stay(t: Tensor) -> Tensor:
    torch._dynamo.mark_static_address(t)
    return t


def _sources(parcel: Parcel, pool: Sources | None) -> Sources:
    """What a parcel's plan counts in."""
    if parcel.seen is not None and pool is not None:
        parcel = fetch(parcel, pool.words)
    sources = parcel.sources if parcel.sources is not None else pool
    if sources is None:
        raise ArgumentError("complete: a parcel of a plan alone wants the pool it counts in")
    if isinstance(parcel.lacking, windows.Windows):
        raise ArgumentError("complete: windows beside a plan wait for fnpipe.cuts.fetch")
    return sources if parcel.lacking is None else windows.land(sources, parcel.lacking)


def _check_settled(parcel: Parcel, pipeline: Pipeline) -> None:
    """Errors: ArgumentError for what is left to do that a compiled step cannot do."""
    left = []
    if parcel.seen is not None:
        left.append("windows to fetch from the pool")
    if parcel.lacking is not None:
        left.append("windows to land in the pool")
    if any(isinstance(over.cover, Rings) for over in parcel.plan.overs):
        left.append("rings of layers")
    if pipeline.masking is not None and parcel.masks is None:
        left.append("masks")
    if left:
        raise ArgumentError(
            f"complete: a compiled step cannot do {' and '.join(left)}: call fnpipe.cuts.settle "
            "before the step, or take Loader.parcels()"
        )


def make_masks(parcel: Parcel, pipeline: Pipeline, backend: str) -> Masks | None:
    """What the pipeline's ``masks`` make of the targets, where they are; None without that stage.

    On a GPU by Triton, unless ``backend`` is eager; on the host as a package where that is one.
    The bits are the same.
    """
    if pipeline.masking is None:
        return None
    plan, targets = parcel.plan, parcel.targets
    if targets.boxes.is_cuda:
        impl = "torch" if backend == "eager" else "triton"
    else:
        impl = "package" if backend == "package" else "torch"
    return pipeline.masking.rasterize(targets, len(plan), plan.size, impl=impl)


def _check_parts(data: Any, pipeline: Any) -> None:
    """Errors: ArgumentError for another kind of value, and where ``check_host`` has one."""
    check_host()
    if not isinstance(pipeline, Pipeline):
        one = "; its .at(epoch) is one" * isinstance(pipeline, Schedule)
        raise ArgumentError(f"pipeline wanted fnpipe.pipe(...), came {pipeline!r:.80}{one}")
    if not isinstance(data, Photos):
        check_dataset(data)


def make_batch(
    data: Any,
    pipeline: Pipeline,
    ids: Any,
    *,
    seed: int,
    epoch: int = 0,
    backend: str = "eager",
    pool: Reader | None = None,
) -> Batch:
    """The batch of samples ``ids`` (a sequence or a tensor [b]), here and now, on the CPU.

    Errors: ArgumentError for ids that are no photos of ``data``, for a pool of others, and for a
    schedule: one of its pipelines is wanted.
    """
    _check_parts(data, pipeline)
    check_pool(pool, data)
    rows = as_rows("ids", ids)
    if len(rows) == 0 or not (0 <= int(rows.min()) and int(rows.max()) < len(data)):
        raise ArgumentError(f"ids wanted samples in [0, {len(data)}), came {rows.tolist()}")
    parcel = draw(data, pipeline, key(seed=seed, epoch=epoch, sample=rows))
    return complete(add_pixels(parcel, pipeline, "finished", backend, data, pool), pipeline)
