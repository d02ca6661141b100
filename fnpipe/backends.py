"""Four ways to run one definition, with the same bytes: eager, compiled, package, triton.

A :class:`Recipe` is all that a rendering depends on besides tensors. ``renderer(recipe, backend)``
returns ``(sources, plan) -> images``; it is cached, so a pipeline compiles once a process. Every
compiled backend checks itself against eager on its first batch (the canary) and refuses to go on
where a bit differs.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fnpipe import numerics
from fnpipe.ops.render import Color, paint, render, warp
from fnpipe.ops.render import finish as finish_planes
from fnpipe.types import ArgumentError, Finish, Plan, Sources


BACKENDS = ("eager", "compiled", "package", "triton")
Render = Callable[[Sources, Plan], Tensor]


@dataclass(frozen=True)
class Recipe:
    """What a pipeline computes from pixels, without its tensors."""

    chain: tuple[Color, ...]
    finish: Finish
    size: tuple[int, int]
    projective: bool = False


def check_backend(name: str) -> None:
    """Errors: ArgumentError naming the allowed values."""
    if name not in BACKENDS:
        raise ArgumentError(f"backend wanted one of {', '.join(BACKENDS)}, came {name!r}")


def flatten(sources: Sources, plan: Plan) -> list[Tensor]:
    """The tensors that a rendering reads, in the order :func:`_flat` takes them."""
    return [
        sources.words, sources.offsets, sources.sizes,
        plan.sources, plan.maps, plan.splits, plan.mirror, *plan.colors,
    ]  # fmt: skip


def _rebuild(recipe: Recipe, tensors: tuple[Tensor, ...]) -> tuple[Sources, Plan]:
    words, offsets, sizes, rows, maps, splits, mirror, *colors = tensors
    unused = rows[:, 0]
    plan = Plan(
        ids=unused, epochs=unused, sources=rows, maps=maps, forward=maps, splits=splits,
        mirror=mirror, colors=tuple(colors), size=recipe.size, projective=recipe.projective,
    )  # fmt: skip
    return Sources(words, offsets, sizes), plan


def _flat(recipe: Recipe) -> Callable[..., Tensor]:
    """The rendering as a function of tensors alone: what compilers want."""

    def render_flat(*tensors: Tensor) -> Tensor:
        sources, plan = _rebuild(recipe, tensors)
        return render(sources, plan, recipe.chain, recipe.finish)

    return render_flat


def one(plan: Plan, index: int) -> Plan:
    """The plan of one image of a batch."""
    from fnpipe.types import map_tensors

    return map_tensors(lambda t: t[index : index + 1], plan)


def renderer(recipe: Recipe, backend: str) -> Render:
    """``(sources, plan) -> images`` [b, 3, h, w] by ``backend``. Errors: ArgumentError."""
    check_backend(backend)
    if backend == "eager":
        return lambda sources, plan: render(sources, plan, recipe.chain, recipe.finish)
    return _checked(recipe, backend)


@cache
def _checked(recipe: Recipe, backend: str) -> Render:
    """A backend that compares its first image with eager's, once a device."""
    run = {"compiled": _compiled, "package": _packaged, "triton": _triton}[backend](recipe)
    seen: set[torch.device] = set()

    def checked(sources: Sources, plan: Plan) -> Tensor:
        images = run(sources, plan)
        device = plan.maps.device
        if device not in seen and len(plan):
            expected = render(sources, one(plan, 0), recipe.chain, recipe.finish)
            numerics.refuse_difference(f"backend {backend!r}", expected, images[:1])
            seen.add(device)
        return images

    return checked


def _compiled(recipe: Recipe) -> Render:
    run = numerics.compiled(_flat(recipe))
    return lambda sources, plan: run(*flatten(sources, plan))


def _triton(recipe: Recipe) -> Render:
    from fnpipe.ops.render_triton import render_fused

    return lambda sources, plan: render_fused(sources, plan, recipe.chain, recipe.finish)


def _packaged(recipe: Recipe) -> Render:
    """One image a call: its photos and its output stay in a core's cache; batch size is free."""
    loaded: dict[tuple[int, ...], Callable[..., Tensor]] = {}

    def run(sources: Sources, plan: Plan) -> Tensor:
        if plan.maps.device.type != "cpu":
            raise ArgumentError(f"backend 'package' runs on the CPU, came {plan.maps.device}")
        images = []
        for index in range(len(plan)):
            single = one(plan, index)
            rows = single.sources.clamp(min=0)[0]
            local = Sources(sources.words, sources.offsets[rows], sources.sizes[rows])
            here = torch.arange(len(rows))
            single = single.replace(sources=torch.where(single.sources < 0, -1, here))
            tensors = flatten(local, single)
            shape = tuple(plan.splits.shape[1:]) + tuple(p.shape[1] for p in plan.colors)
            if shape not in loaded:
                loaded[shape] = _load_package(recipe, tensors)
            images.append(loaded[shape](*tensors))
        return torch.cat(images)

    return run


def _load_package(recipe: Recipe, tensors: list[Tensor]) -> Callable[..., Tensor]:
    example = [torch.zeros(1024, dtype=torch.int32), *tensors[1:]]
    words = {0: torch.export.Dim("words", min=16, max=2**40)}
    shapes = [words, *({} for _ in tensors[1:])]
    constants = (recipe.finish, recipe.size, recipe.projective)
    functions = (*recipe.chain, render, paint, warp, finish_planes, *_helpers())
    key = f"{numerics.sources_digest(*functions)} {constants!r}"
    return numerics.package(_flat(recipe), example, key=key, dynamic_shapes=shapes)


def _helpers() -> tuple[Callable[..., Any], ...]:
    from fnpipe.ops import pixel, warp

    return tuple(fn for m in (pixel, warp) for _, fn in inspect.getmembers(m, inspect.isfunction))


def readable(recipe: Recipe) -> str | None:
    """Why Triton cannot take this recipe, or None where it can."""
    from fnpipe.ops.reread import Unreadable, reread

    try:
        for fn in recipe.chain:
            reread(fn)
    except Unreadable as reason:
        return str(reason)
    return None
