"""Four ways to run one definition, with the same bytes: eager, compiled, package, triton.

A :class:`Recipe` is all that pixels depend on besides tensors. Three parts of the work can be asked
for: :func:`renderer` makes images of a plan, :func:`warper` stops before the colour, and
:func:`painter` goes on from there. Each is cached, so a pipeline compiles once a process, and each
compares its first image with eager's (the canary) and refuses to go on where a bit differs.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fnpipe import numerics
from fnpipe.digests import sources_digest
from fnpipe.ops import pixel, render, warp
from fnpipe.ops.layers import rasterized
from fnpipe.ops.render import Color, Planes, Tiles
from fnpipe.types import ArgumentError, Empty, Finish, Over, Plan, Sources, check_choice
from fnpipe.values import map_tensors


BACKENDS = ("eager", "compiled", "package", "triton")
PARTS: dict[str, tuple[str, ...]] = {
    "render": BACKENDS,
    "warp": ("eager", "compiled", "package"),
    "paint": ("eager", "compiled", "triton"),
}
"""Which backends can do which part."""
NO_COMPILER = "no C++ compiler to build a package with (Debian: apt-get install g++)"
NO_TRITON = "Triton cannot be imported"
CUTS = ("finished", "warped", "source", "plan")
"""Where a batch may be cut between workers and device (:mod:`fnpipe.cuts`)."""
Run = Callable[..., Tensor]


@dataclass(frozen=True)
class Recipe:
    """What a pipeline computes from pixels, without its tensors."""

    chain: tuple[Color, ...]
    finish: Finish
    size: tuple[int, int]
    projective: bool = False
    layers: int = 0
    """How many pictures may lie on top."""


@dataclass(frozen=True)
class Chosen:
    """Who renders: ``worker`` before the cut, ``device`` after it, and why each was chosen."""

    worker: str
    device: str
    why: str = ""


def renderer(recipe: Recipe, backend: str) -> Run:
    """``(sources, plan) -> images`` [b, 3, h, w]. Errors: ArgumentError for an unknown backend.

    A package also takes ``empty``, which gives the memory for them.
    """
    return _part("render", recipe, backend)


def warper(recipe: Recipe, backend: str) -> Run:
    """``(sources, plan) -> planes`` [b, 3, h, w], float32 codes before the colour stages.

    A package also takes ``empty``, which gives the memory for them.
    """
    return _part("warp", recipe, backend)


def painter(recipe: Recipe, backend: str) -> Callable[[Tensor, tuple[Tensor, ...]], Tensor]:
    """``(planes, colors) -> images`` [b, 3, h, w]: colour stages, quantise, dtype, layout."""
    return _part("paint", recipe, backend)


def check_backend(backend: str, *, part: str = "render") -> None:
    """Errors: ArgumentError naming the allowed values."""
    check_choice(f"backend (to {part})", backend, PARTS[part])


def best(device: torch.device, recipe: Recipe) -> tuple[str, str]:
    """The fastest backend for a device, and why: what a loader takes when it is not told."""
    if device.type == "cuda":
        if (reason := unreadable(recipe)) is None:
            return "triton", "one kernel"
        # Inductor wants Triton, too.
        return "eager" if reason.startswith(NO_TRITON) else "compiled", reason
    if numerics.compiler() is not None:
        return "package", "built once for this processor"
    return "eager", NO_COMPILER


def unreadable(recipe: Recipe) -> str | None:
    """Why Triton cannot take a recipe, or None where it can."""
    try:
        from fnpipe.ops.reread import Unreadable, reread
    except ImportError as error:
        return f"{NO_TRITON} ({error})"
    try:
        for fn in recipe.chain:
            reread(fn)
    except Unreadable as error:
        return str(error)
    return None


@cache
def _part(part: str, recipe: Recipe, backend: str) -> Run:
    check_backend(backend, part=part)
    define = {"render": _render, "warp": _warp, "paint": _paint}[part](recipe)
    if backend == "eager":
        return define
    build = {"compiled": _compiled, "package": _packaged, "triton": _triton}[backend]
    return _canary(define, build(part, recipe), f"backend {backend!r} ({part})")


def _render(recipe: Recipe) -> Run:
    return lambda sources, plan: render.render(sources, plan, recipe.chain, recipe.finish)


def _warp(recipe: Recipe) -> Run:
    return lambda sources, plan: torch.stack(render.warp(sources, plan), 1)


def _paint(recipe: Recipe) -> Run:
    def run(planes: Tensor, colors: tuple[Tensor, ...]) -> Tensor:
        red, green, blue = planes.unbind(1)
        return render.finish(render.paint((red, green, blue), colors, recipe.chain), recipe.finish)

    return run


def _canary(define: Run, run: Run, who: str) -> Run:
    """``run``, which compares the first image of its first batch on a device with ``define``'s."""
    seen: set[torch.device] = set()

    def checked(first: Any, second: Any, **memory: Any) -> Tensor:
        if isinstance(second, Plan):
            second = rasterized(second)  # once, and so that every tensor is of as many images
        out = run(first, second, **memory)
        if out.device not in seen and len(out):
            pixels = first[:1] if isinstance(first, Tensor) else first
            expected = define(pixels, map_tensors(lambda t: t[:1], second))
            numerics.refuse_difference(who, expected, out[:1])
            seen.add(out.device)
        return out

    return checked


def _triton(part: str, recipe: Recipe) -> Run:
    if part == "paint":
        from fnpipe.ops.pixel_triton import paint_fused

        return lambda planes, colors: paint_fused(planes, colors, recipe.chain, recipe.finish)
    from fnpipe.ops.render_triton import render_fused

    return lambda sources, plan: render_fused(sources, plan, recipe.chain, recipe.finish)


def flatten(sources: Sources, plan: Plan) -> list[Tensor]:
    """The tensors that a look-up reads, in the order :func:`_look` takes them.

    On the CPU colours are repeated for every row. Read once an image, they leave nothing of rows in
    the colour pass; Inductor then makes it a loop of its own over all pixels, and 5 MB of sums an
    image go to memory and back: 5.3 ms an image against 4.1.
    """
    tensors: list[Any] = [sources.words, *_picture(sources, plan)]
    for over in plan.overs:
        tensors += [over.cover, over.weight, *_picture(sources, over.plan)]
    colors = plan.colors
    if not plan.maps.is_cuda:
        colors = [c[..., None].expand(*c.shape, plan.size[0]).contiguous() for c in colors]
    return [*tensors, *colors]


def _picture(sources: Sources, plan: Plan) -> list[Tensor]:
    """The tensors of one picture, without what lies on top."""
    return [plan.maps, plan.splits, plan.mirror, *render.find(sources, plan)]


def _look(recipe: Recipe, tensors: Sequence[Tensor]) -> tuple[Planes, tuple[Tensor, ...]]:
    """The planes that :func:`flatten`'s tensors describe, and the colours among them."""
    words, *rest = tensors
    tiles, plan = _rebuild(recipe, rest[:5])
    every, overs, rest = [tiles], [], rest[5:]
    for _ in range(recipe.layers):
        cover, weight, *picture = rest[:7]
        tiles, above = _rebuild(recipe, picture)
        # What is left empty is for targets alone.
        overs.append(Over(above, cover, weight, torch.zeros(0, 2, dtype=torch.int64)))
        every.append(tiles)
        rest = rest[7:]
    plan = plan.replace(overs=tuple(overs))
    return render.look_all(words, tuple(every), plan), tuple(rest)


def _rebuild(recipe: Recipe, tensors: Sequence[Tensor]) -> tuple[Tiles, Plan]:
    """One picture of :func:`_picture`'s tensors."""
    maps, splits, mirror, start, numbers = tensors
    tiles = Tiles(start, *numbers.unbind(-1))
    unused = tiles.start[:, 0]  # and so is what is made of it: no compiler keeps it
    plan = Plan(
        ids=unused, epochs=unused, sources=tiles.start, maps=maps, forward=maps.double(),
        splits=splits, mirror=mirror, colors=(), size=recipe.size, projective=recipe.projective,
    )  # fmt: skip
    return tiles, plan


def _flat(part: str, recipe: Recipe) -> Run:
    """A part as a function of tensors alone: what compilers want."""

    def whole(*tensors: Tensor) -> Tensor:
        return _by_words(render.paint(*_look(recipe, tensors), recipe.chain), recipe.finish)

    def paint(planes: Tensor, *colors: Tensor) -> Tensor:
        red, green, blue = planes.unbind(1)
        return _by_words(render.paint((red, green, blue), colors, recipe.chain), recipe.finish)

    def warp(*tensors: Tensor) -> Tensor:
        return torch.stack(_look(recipe, tensors)[0], 1)

    return {"render": whole, "paint": paint, "warp": warp}[part]


def _by_words(planes: Planes, how: Finish) -> Tensor:
    """:func:`fnpipe.ops.render.finish` by way of memory: one word a pixel, then spread out.

    Of three planes that are stacked Inductor makes one loop over channels, and computes every pixel
    three times: a batch of 64 takes an H200 1.2 ms for the colours alone, and 0.30 ms so. Inductor
    writes to memory what it is to see with strides.
    """
    words = render.to_words(planes)
    return render.from_words(words.as_strided(words.shape, words.stride()), how)


def _compiled(part: str, recipe: Recipe) -> Run:
    """One graph for any batch."""
    compiled = _marked(numerics.compiled(_flat(part, recipe)))

    def run(first: Any, second: Any) -> Tensor:
        return compiled(*([first, *second] if part == "paint" else flatten(first, second)))

    return run


def _marked(compiled: Run) -> Run:
    """``compiled`` for any batch: calls that may compile are marked, the first and those of one.

    Others are not: it costs the host 10 us a tensor.
    """
    fresh = True

    def run(*tensors: Tensor) -> Tensor:
        nonlocal fresh
        one = len(tensors[-1]) == 1
        if not (fresh or one):
            return compiled(*tensors)
        fresh = fresh and one
        with numerics.any_batch(tensors):
            return compiled(*tensors)

    return run


def _packaged(part: str, recipe: Recipe) -> Run:
    """One image a call: its photos and its output stay in a core's cache; batch size is free.

    An image with nothing on top goes through a package that looks once.
    """
    loaded: dict[tuple[tuple[int, ...], ...], Run] = {}

    def load(one: Recipe, tensors: list[Tensor]) -> tuple[Run, list[tuple[Tensor, ...]]]:
        words, *numbers = tensors
        shapes = tuple(tuple(t.shape[1:]) for t in numbers)
        if shapes not in loaded:
            loaded[shapes] = _load_package(part, one, [words, *(t[:1] for t in numbers)])
        return loaded[shapes], list(zip(*(t.split(1) for t in numbers), strict=True))

    def run(sources: Sources, plan: Plan, *, empty: Empty = torch.empty) -> Tensor:
        if plan.maps.device.type != "cpu":
            raise ArgumentError(f"backend 'package' runs on the CPU, came {plan.maps.device}")
        out = _room(part, recipe, len(plan), empty)
        bare = plan.replace(overs=())
        fills = [load(replace(recipe, layers=0), [*flatten(sources, bare), *out.unbind(1)])]
        which = [0] * len(plan)
        if plan.overs:
            fills.append(load(recipe, [*flatten(sources, plan), *out.unbind(1)]))
            which = torch.stack([over.active for over in plan.overs]).any(0).int().tolist()
        for image, choice in enumerate(which):
            fill, rows = fills[choice]
            fill(sources.words, *rows[image])
        return out

    return run


def _room(part: str, recipe: Recipe, count: int, empty: Empty) -> Tensor:
    """Room for ``count`` images, [b, 3, h, w]: a package writes each into its place."""
    (height, width), finish = recipe.size, recipe.finish
    dtype = torch.float32 if part == "warp" else finish.dtype
    flat = empty(count * 3 * height * width, dtype=dtype)
    if part == "render" and finish.channels_last:
        return flat.view(count, height, width, 3).permute(0, 3, 1, 2)
    return flat.view(count, 3, height, width)


def _fill(part: str, recipe: Recipe) -> Callable[..., None]:
    """A part as a function of tensors, the last of which are the three planes that it writes.

    A copy of the batch, 0.2 ms an image, is saved, and stacking the planes.
    """

    def fill(*tensors: Tensor) -> None:
        planes, colors = _look(recipe, tensors[:-3])
        if part == "render":
            planes = render.to_planes(render.paint(planes, colors, recipe.chain), recipe.finish)
        for out, plane in zip(tensors[-3:], planes, strict=True):
            out.copy_(plane)

    fill.__name__ = part
    return fill


def _load_package(part: str, recipe: Recipe, tensors: list[Tensor]) -> Run:
    # Channels-last planes lie in each other's gaps; of inputs that share memory AOTInductor would
    # make one, and fails at that.
    planes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in tensors[-3:]]
    example = [torch.zeros(1024, dtype=torch.int32), *tensors[1:-3], *planes]
    words = {0: torch.export.Dim("words", min=16, max=2**40)}
    functions = [fn for m in (pixel, warp, render) for _, fn in inspect.getmembers(m, _own(m))]
    digest = sources_digest(*recipe.chain, *functions, _fill)
    return numerics.package(
        _fill(part, recipe),
        example,
        key=f"{digest} {recipe.finish!r} {recipe.size} {recipe.projective} {recipe.layers}",
        dynamic_shapes=[words, *({} for _ in tensors[1:])],
    )


def _own(module: Any) -> Callable[[Any], bool]:
    return lambda x: inspect.isfunction(x) and x.__module__ == module.__name__
