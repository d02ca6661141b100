"""Stages composed into a value: draw a plan, render it, annotate it, or push one sample through."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from fnpipe.backends import Recipe, renderer
from fnpipe.explain import explain
from fnpipe.keys import Key, fold_in
from fnpipe.ops.annotate import annotate
from fnpipe.ops.maps import compose, invert, mirror
from fnpipe.ops.render import finish as finish_planes
from fnpipe.ops.warp import STEPS, pack
from fnpipe.stages.finish import finish, keep
from fnpipe.stages.masks import masks
from fnpipe.stages.stage import Color, Foreign, Geometry, Layout, Mirror, Placed
from fnpipe.types import (
    ArgumentError,
    Finish,
    Image,
    Maps,
    Offsets,
    Plan,
    Sample,
    Sizes,
    Sources,
    Targets,
)


@runtime_checkable
class Photos(Protocol):
    """What a pipeline needs of a data set: sizes to draw with, targets to move, pixels to read."""

    @property
    def sizes(self) -> Sizes: ...
    @property
    def targets(self) -> Targets: ...
    @property
    def offsets(self) -> Offsets: ...
    @property
    def keypoint_flip(self) -> tuple[int, ...]: ...
    def read(self, index: int) -> Image: ...


LIMIT = float(2**21)
"""How far, in pixels, a map may send the corners of an image: positions stay 32-bit integers."""


@dataclass(frozen=True, repr=False)
class Pipeline:
    """Stages in order; :func:`pipe` builds it. Equal stages make equal pipelines.

    Geometry composes first, whatever stands between: all of it multiplies into one homography and
    one resample, and colour acts on what the resample gives. A flip after all other geometry stays
    an exact permutation.
    """

    stages: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"pipe({', '.join(map(repr, self.stages))})"

    @cached_property
    def colors(self) -> tuple[Color, ...]:
        """The colour stages, in order."""
        return tuple(s for s in self.stages if isinstance(s, Color))

    @cached_property
    def foreign(self) -> tuple[tuple[int, Foreign], ...]:
        """The stages that run code of others, each with its place among :attr:`colors`."""
        return tuple((i, s) for i, s in enumerate(self.colors) if isinstance(s, Foreign))

    @cached_property
    def finishing(self) -> finish:
        """The last stage; whole 8-bit codes where the pipeline names none."""
        return next((s for s in self.stages if isinstance(s, finish)), finish(torch.uint8))

    @cached_property
    def _moves(self) -> tuple[tuple[Any, bool], ...]:
        """The stages that move the picture, in order, and which of them only mirror it.

        Found once: to ask ten stages for their protocol costs 0.3 ms on Python 3.11.
        """
        return tuple(
            (s, isinstance(s, Mirror)) for s in self.stages if isinstance(s, Geometry | Mirror)
        )

    @cached_property
    def _layout(self) -> Layout | None:
        """The stage that chooses the photos, where there is one."""
        return next((s for s in self.stages[:1] if isinstance(s, Layout)), None)

    @cached_property
    def masking(self) -> masks | None:
        """The stage that makes masks, where there is one."""
        return next((s for s in self.stages if isinstance(s, masks)), None)

    @cached_property
    def projective(self) -> bool:
        """Whether any stage needs a division a pixel."""
        return any(isinstance(s, Geometry) and s.projective for s in self.stages)

    def recipe(self, size: tuple[int, int]) -> Recipe:
        """What is computed from pixels, for images of (height, width)."""
        chain = tuple(s.color for s in self.colors)
        return Recipe(chain, self.finishing.finish, size, self.projective)

    def draw(self, key: Key, data: Photos, *, rows: Tensor | None = None) -> Plan:
        """All that is random about the samples of ``key`` [b], resolved to numbers: a plan.

        Only ``data.sizes`` is read. ``rows`` [b] are the samples' photos, where they are not the
        sample ids themselves. Errors: ArgumentError where the images would differ in size.
        """
        placed = self._place(key, data.sizes, key.sample if rows is None else rows)
        frames, flips = placed.frames, torch.zeros(len(placed.frames), 2, dtype=torch.bool)
        moved = torch.eye(3, dtype=torch.float64).expand(len(frames), 3, 3)
        for stage, mirrors in self._moves:
            own = fold_in(key, stage.name)
            if mirrors:
                flips = flips ^ stage.mirror(own)
            else:
                moved = compose(mirror(flips, frames), moved)
                flips = torch.zeros_like(flips)
                step, frames = stage.move(stage.draw(own), frames)
                moved = compose(step, moved)
        return Plan(
            ids=key.sample,
            epochs=key.epoch.expand(key.sample.shape),
            sources=placed.sources,
            maps=_steps(invert(compose(moved[:, None], placed.maps))),
            forward=compose(compose(mirror(flips, frames), moved)[:, None], placed.maps),
            splits=_splits(invert(moved), placed.seams),
            mirror=flips,
            colors=tuple(s.draw(fold_in(key, s.name)) for s in self.colors),
            size=_size(frames),
            projective=self.projective,
        ).checked(LIMIT)

    def _place(self, key: Key, sizes: Sizes, rows: Tensor) -> Placed:
        """The layout stage's tiles, or every photo alone in a frame of its own size."""
        if self._layout is not None:
            return self._layout.place(fold_in(key, self._layout.name), sizes)
        count = len(rows)
        return Placed(
            sources=rows[:, None],
            maps=torch.eye(3, dtype=torch.float64).expand(count, 1, 3, 3),
            seams=torch.zeros(count, 2, 0, dtype=torch.float64),
            frames=sizes[rows].to(torch.float64),
        )

    def render(self, plan: Plan, sources: Sources, *, backend: str = "eager") -> Tensor:
        """Images [b, 3, h, w] of a plan whose ``sources`` index into ``sources``."""
        recipe = self.recipe(plan.size)
        if not self.foreign:
            return renderer(recipe, backend)(sources, plan)
        codes = renderer(replace(recipe, finish=Finish()), backend)(sources, plan)
        for place, s in self.foreign:
            codes = _transform(s, codes, plan.colors[place])
        red, green, blue = codes.float().unbind(1)
        return finish_planes((red, green, blue), recipe.finish)

    def annotate(self, plan: Plan, data: Photos) -> Targets:
        """The targets of the images that ``plan`` makes."""
        rules = [s for s in self.stages if isinstance(s, keep)]
        return annotate(
            plan,
            data.targets,
            data.offsets,
            keypoint_flip=data.keypoint_flip,
            min_visible=max((rule.visible for rule in rules), default=0.0),
            min_side=max((rule.side for rule in rules), default=0.0),
        )

    def __call__(self, key: Key, sample: Sample) -> tuple[Tensor, Targets]:
        """One sample, eagerly, on the CPU: the reference. Returns image [3, h, w] and targets.

        A mosaic takes its partners from the data set that the sample came from. Errors:
        ArgumentError where ``key`` is not of this sample.
        """
        at = key.sample.reshape(-1)
        if at.tolist() != [sample.id]:
            raise ArgumentError(f"key is of sample {at.tolist()}, sample.id is {sample.id}")
        key = key.replace(sample=at, epoch=key.epoch.reshape(-1))
        data, rows = (sample.data, at) if sample.data is not None else (Alone(sample), at * 0)
        if sample.data is None and self._layout is not None:
            raise ArgumentError(
                f"{self._layout!r} needs partners: pass a sample of a data set (data[i])"
            )
        plan = self.draw(key, data, rows=rows)
        sources, local = gather(plan, data.read)
        return self.render(local, sources)[0], self.annotate(plan, data)

    def explain(self, *, size: tuple[int, int] | None = None) -> str:
        """What runs where and in which backend, and the bytes that cross, for every cut."""
        return explain(self, size=size)


class Alone:
    """A sample that came from no data set, as a data set of one."""

    def __init__(self, sample: Sample) -> None:
        self._image = sample.image
        self.targets = sample.targets
        self.sizes = torch.tensor([[sample.image.shape[2], sample.image.shape[1]]])
        self.offsets = torch.tensor([0, len(sample.targets)])
        self.keypoint_flip = ()

    def read(self, index: int) -> Image:
        return self._image


def pipe(*stages: Any) -> Pipeline:
    """Compose stages and pipelines, left to right; a pipeline of none leaves a sample as it is.

    >>> from fnpipe import flip, letterbox
    >>> pipe(letterbox(640), pipe(flip(horizontal=0.5)))
    pipe(letterbox(640), flip(horizontal=0.5))

    Errors: ArgumentError for what is no stage, a repeated name (draws depend on names), a layout
    that is not first, a ``finish`` that is not last.
    """
    flat = tuple(s for given in stages for s in _flatten(given))
    names = [s.name for s in flat]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(
                f"pipe: the name {name!r} is there {names.count(name)} times; "
                f"draws depend on it, so give one of them another: name='{name}2'"
            )
    for place, s in enumerate(flat):
        if isinstance(s, Layout) and place > 0:
            raise ArgumentError(f"pipe: {s!r} chooses the photos and must be first")
        after = [t for t in flat[place + 1 :] if not isinstance(t, keep | masks)]
        if isinstance(s, finish) and after:
            raise ArgumentError(f"pipe: {s!r} must be last, came before {after[0]!r}")
    return Pipeline(flat)


def _flatten(given: Any) -> tuple[Any, ...]:
    if isinstance(given, Pipeline):
        return given.stages
    kinds = (Layout, Geometry, Mirror, Color, finish, keep, masks)
    if isinstance(given, type) or not isinstance(given, kinds):
        raise ArgumentError(
            f"pipe: wanted stages, came {given!r}; a function of three planes becomes one by "
            "fnpipe.pointwise(fn).drawn(...)"
        )
    return (given,)


def gather(plan: Plan, read: Any) -> tuple[Sources, Plan]:
    """The photos that ``plan`` needs, each read once, and the plan counting in them."""
    wanted = plan.sources[plan.sources >= 0].unique()
    sources = pack_sources(read(int(i)) for i in wanted)
    rows = torch.searchsorted(wanted, plan.sources.clamp(min=0).contiguous())
    return sources, plan.replace(sources=torch.where(plan.sources < 0, -1, rows))


def _transform(stage: Foreign, codes: Tensor, seeds: Tensor) -> Tensor:
    """Each image through code of others. Errors: ArgumentError where it makes no such image."""
    done = []
    for image, seed in zip(codes.permute(0, 2, 3, 1), seeds[:, 0].tolist(), strict=True):
        got = stage.transform(image.contiguous().numpy().copy(), int(seed))
        if got.shape != image.shape or got.dtype != np.uint8:
            raise ArgumentError(
                f"{stage!r}: wanted uint8 {tuple(image.shape)}, came {got.dtype} {got.shape}"
            )
        done.append(torch.from_numpy(np.ascontiguousarray(got)))
    return torch.stack(done).permute(0, 3, 1, 2)


def pack_sources(images: Iterable[UInt8[Tensor, "3 _ _"]]) -> Sources:
    """Photos in one buffer, in order (:class:`fnpipe.types.Sources`)."""
    sizes, words = [], []
    for image in images:
        sizes.append((image.shape[2], image.shape[1]))
        words.append(pack(image))
    ends = torch.tensor([len(w) for w in words], dtype=torch.int64).cumsum(0)
    shapes = torch.tensor(sizes, dtype=torch.int32).reshape(-1, 2)
    return Sources(
        words=torch.cat(words) if words else torch.zeros(2, dtype=torch.int32),
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), ends])[:-1] + 2,
        sizes=shapes,
        origins=torch.zeros_like(shapes),
        strides=shapes[:, 0] + 2,
    )


def _steps(maps: Maps) -> Tensor:
    """Inverse maps as the renderer reads them: positions in 1/128 pixel, float32."""
    scale = torch.tensor([STEPS, STEPS, 1.0], dtype=torch.float64)[:, None]
    return (maps * scale).to(torch.float32)


def _splits(inverse: Maps, seams: Tensor) -> Tensor:
    """Seams as linear functions of the output position, >= 0 past them: [b, 2, s, 3]."""
    rows, at = inverse.numpy(), seams.numpy()[..., None]
    with np.errstate(invalid="ignore"):
        past = rows[:, :2, None, :] - at * rows[:, 2, None, None, :]
    past = np.where(np.isfinite(at), past, [0.0, 0.0, -1.0])
    return torch.from_numpy(past.astype(np.float32))


def _size(frames: Tensor) -> tuple[int, int]:
    """The one (height, width) of all frames. Errors: ArgumentError where they differ."""
    if len(frames) == 0:
        raise ArgumentError("draw: wanted at least one sample, came none")
    if not bool((frames == frames[0]).all()):
        raise ArgumentError(
            f"draw: images would differ in size ({tuple(frames[0].int().tolist())} and others); "
            "begin with letterbox, resize, crop or mosaic"
        )
    width, height = frames[0].to(torch.int64).tolist()
    return height, width
