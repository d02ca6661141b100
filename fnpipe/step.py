"""Pixels inside a user's compiled step: one opaque call in its graph, whichever backend makes them.

Dynamo may not look inside. It would compile the definitions with the step's options, without the
switches that bytes depend on (:mod:`fnpipe.numerics`), and it cannot read a Triton kernel whose
functions are a pipeline's. So a graph holds an operator that is told a pipeline by name and finds
it when it runs. All that the graph needs to know of its result are constants beside the name:
compiled code is kept on disk, where another process's pipeline has the same name.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fnpipe.types import ArgumentError, Finish, Over, Plan, Rings, Sources


@runtime_checkable
class Renders(Protocol):
    """What a pipeline does outside a compiled step."""

    def render(self, plan: Plan, sources: Sources, *, backend: str) -> Tensor: ...
    def paint(self, planes: Tensor, colors: tuple[Tensor, ...], *, backend: str) -> Tensor: ...


Size = int | torch.SymInt


class Bound(NamedTuple):
    """A pipeline as a graph knows it. A name is a string: of a number Dynamo makes a variable."""

    name: str
    dtype: torch.dtype
    channels_last: bool


_PIPELINES: WeakValueDictionary[str, Any] = WeakValueDictionary()
_NUMBERS = itertools.count()


def bind(pipeline: Renders, finish: Finish) -> Bound:
    """A name for ``pipeline``, good in this process for as long as the pipeline lives."""
    name = str(next(_NUMBERS))
    _PIPELINES[name] = pipeline
    return Bound(name, finish.dtype, finish.channels_last)


def _find(name: str) -> Renders:
    """The pipeline of a name. Errors: ArgumentError where it is gone."""
    found = _PIPELINES.get(name)
    if found is None:
        raise ArgumentError(
            "a compiled step calls a pipeline that is gone; keep it as long as the step"
        )
    return found


def render(bound: Bound, plan: Plan, sources: Sources, backend: str) -> Tensor:
    """``Pipeline.render`` while a step is traced."""
    tensors = [sources.words, sources.offsets, sources.sizes, sources.origins, sources.strides]
    tensors += _picture(plan)
    for over in plan.overs:
        if isinstance(over.cover, Rings):
            raise ArgumentError(
                "render: a compiled step wants bits for the rings of what lies on top: call "
                "fnpipe.cuts.settle before the step, or take Loader.parcels()"
            )
        tensors += [*_picture(over.plan), over.cover, over.weight]
    return torch.ops.fnpipe.render(
        [*tensors, *plan.colors], bound.name, backend, len(plan.overs), plan.projective,
        plan.size[0], plan.size[1], bound.dtype, bound.channels_last,
    )  # fmt: skip


def paint(bound: Bound, planes: Tensor, colors: tuple[Tensor, ...], backend: str) -> Tensor:
    """``Pipeline.paint`` while a step is traced."""
    return torch.ops.fnpipe.paint(
        [planes, *colors], bound.name, backend, bound.dtype, bound.channels_last
    )


def _picture(plan: Plan) -> list[Tensor]:
    """What a renderer reads of a plan, but for what lies on top and colours."""
    return [plan.sources, plan.maps, plan.splits, plan.mirror]


def _plan(tensors: Sequence[Tensor], size: tuple[int, int], projective: bool) -> Plan:
    """The plan of :func:`_picture`'s tensors."""
    sources, maps, splits, mirror = tensors
    return Plan(
        ids=sources[:, 0], epochs=sources[:, 0], sources=sources, maps=maps,
        forward=torch.empty_like(maps, dtype=torch.float64),  # for targets: never read here
        splits=splits, mirror=mirror, colors=(), size=size, projective=projective,
    )  # fmt: skip


def _render(
    tensors: list[Tensor], pipeline: str, backend: str, layers: int, projective: bool,
    height: int, width: int, dtype: torch.dtype, channels_last: bool,
) -> Tensor:  # fmt: skip
    sources, plan = Sources(*tensors[:5]), _plan(tensors[5:9], (height, width), projective)
    rest, overs = tensors[9:], []
    for _ in range(layers):
        (*picture, cover, weight), rest = rest[:6], rest[6:]
        none = torch.zeros(0, 2, dtype=torch.int64)
        overs.append(Over(_plan(picture, plan.size, projective), cover, weight, none))
    plan = plan.replace(colors=tuple(rest), overs=tuple(overs))
    return _find(pipeline).render(plan, sources, backend=backend)


def _fake_render(tensors, pipeline, backend, layers, projective, height, width, *how):  # type: ignore
    return _images(tensors[6], tensors[6].shape[0], height, width, *how)


def _paint(
    tensors: list[Tensor], pipeline: str, backend: str, dtype: torch.dtype, channels_last: bool
) -> Tensor:
    planes, *colors = tensors
    return _find(pipeline).paint(planes, tuple(colors), backend=backend)


def _fake_paint(tensors, pipeline, backend, *how):  # type: ignore
    count, _, height, width = tensors[0].shape
    return _images(tensors[0], count, height, width, *how)


def _images(
    like: Tensor, count: Size, height: Size, width: Size, dtype: torch.dtype, channels_last: bool
) -> Tensor:
    """Finished images on the device of ``like``, as every backend lays them out."""
    if channels_last:
        return like.new_empty(count, height, width, 3, dtype=dtype).permute(0, 3, 1, 2)
    return like.new_empty(count, 3, height, width, dtype=dtype)


# torch.library.custom_op does the same for 2 ms more of fnpipe's import and 10 us more a call.
_LIBRARY = torch.library.Library("fnpipe", "FRAGMENT")
_HOW = "ScalarType dtype, bool channels_last) -> Tensor"
_LIBRARY.define(
    "render(Tensor[] tensors, str pipeline, str backend, int layers, bool projective, "
    f"SymInt height, SymInt width, {_HOW}"
)
_LIBRARY.define(f"paint(Tensor[] tensors, str pipeline, str backend, {_HOW}")
for _name, _real, _fake in (("render", _render, _fake_render), ("paint", _paint, _fake_paint)):
    _LIBRARY.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fnpipe::{_name}", _fake, lib=_LIBRARY)
