"""Stages composed into a value: draw a plan, render it, annotate it, or push one sample through."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fnpipe import step
from fnpipe.backends import Recipe, painter, renderer
from fnpipe.explain import explain
from fnpipe.keys import Key, fold_in, partners
from fnpipe.ops.annotate import annotate, take
from fnpipe.ops.layers import annotate_layers, annotate_some, instances_of
from fnpipe.ops.windows import gather
from fnpipe.plans import KeyedStages, plan_geometry
from fnpipe.schedules import Buckets, Schedule
from fnpipe.stages.finish import finish, keep
from fnpipe.stages.foreign import foreign_stages, transform_all
from fnpipe.stages.geometry import flip
from fnpipe.stages.masks import masks
from fnpipe.stages.stage import Color, Geometry, Layer, Layout, Scene, role
from fnpipe.types import (
    ArgumentError,
    Empty,
    Finish,
    Image,
    Offsets,
    Over,
    Plan,
    Sample,
    Sizes,
    Sources,
    Targets,
)
from fnpipe.values import brief


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


@dataclass(frozen=True, repr=False)
class Pipeline:
    """Stages in order; :func:`pipe` builds it. Equal stages make equal pipelines.

    Geometry composes first, whatever stands between: all of it multiplies into one homography and
    one resample, and colour acts on what the resample gives. A flip after all other geometry stays
    an exact permutation.
    """

    stages: tuple[Any, ...] = ()
    _bound: step.Bound = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # No cached property: Dynamo reads an attribute as the constant that it is.
        object.__setattr__(self, "_bound", step.bind(self, self.finishing.finish))

    def __repr__(self) -> str:
        return f"pipe({', '.join(map(repr, self.stages))})"

    @cached_property
    def colors(self) -> tuple[Color, ...]:
        """The colour stages, in order."""
        return tuple(s for s in self.stages if role(s) is Color)

    @cached_property
    def finishing(self) -> finish:
        """The last stage; whole 8-bit codes where the pipeline names none."""
        return next((s for s in self.stages if isinstance(s, finish)), finish(torch.uint8))

    @cached_property
    def masking(self) -> masks | None:
        """The stage that makes masks, where there is one."""
        return next((s for s in self.stages if isinstance(s, masks)), None)

    @cached_property
    def projective(self) -> bool:
        """Whether any stage needs a division a pixel."""
        return any(role(s) is Geometry and s.projective for s in self.stages)

    def recipe(self, size: tuple[int, int]) -> Recipe:
        """What is computed from pixels, for images of (height, width)."""
        if size not in self._recipes:
            chain = tuple(s.color for s in self.colors)
            layers = sum(role(s) is Layer for s in self.stages)
            made = Recipe(chain, self.finishing.finish, size, self.projective, layers)
            self._recipes[size] = made
        return self._recipes[size]

    def __reduce__(self) -> tuple[Any, ...]:
        return Pipeline, (self.stages,)  # what is cached may hold functions that do not travel

    @cached_property
    def _foreign(self) -> tuple[Any, ...]:
        """The stages that run code of others: to look for them takes 11 us."""
        return foreign_stages(self.colors)

    @cached_property
    def _recipes(self) -> dict[tuple[int, int], Recipe]:
        """Asked for twice a batch, and made in 0.15 ms."""
        return {}

    def draw(self, key: Key, data: Photos, *, rows: Tensor | None = None) -> Plan:
        """All that is random about the samples of ``key`` [b], resolved to numbers: a plan.

        Only ``data.sizes`` is read; where there are layers, ``data.targets`` and ``data.offsets``
        too. ``rows`` [b] are the samples' photos, where they are not the sample ids themselves.
        Errors: ArgumentError where the images would differ in size.
        """
        rows = key.sample if rows is None else rows
        plan = plan_geometry(
            _keyed(self.stages, key), key, data.sizes, rows, projective=self.projective
        )
        plan = plan.replace(colors=tuple(s.draw(fold_in(key, s.name)) for s in self.colors))
        for place, stage in enumerate(self.stages):
            if role(stage) is Layer:
                plan = plan.replace(overs=(*plan.overs, self._lay(place, key, plan, data, rows)))
        return plan

    def _lay(self, place: int, key: Key, plan: Plan, data: Photos, rows: Tensor) -> Over:
        """What the layer stage at ``place`` puts on top of ``plan``."""
        stage, own = self.stages[place], fold_in(key, self.stages[place].name)
        above = self._above(place, key, plan, data, rows)
        if above.size != plan.size:
            raise ArgumentError(
                f"{stage.name}: the pictures on top would be (height, width) {above.size}, those "
                f"beneath are {plan.size}; begin with letterbox, resize, crop or mosaic"
            )
        instances = instances_of(above, data.offsets)
        rules = self._rules(data)

        def seen() -> Targets:
            found = take(data.targets, instances[:, 1]).replace(ids=torch.arange(len(instances)))
            numbered = torch.stack([instances[:, 0], found.ids], 1)
            return annotate_some(above, found, numbered, **rules)

        return stage.lay(own, above, Scene(lambda: self.annotate(plan, data), seen, instances))

    def _above(self, place: int, key: Key, plan: Plan, data: Photos, rows: Tensor) -> Plan:
        """The picture above, for the layer stage at ``place``.

        The stages before it make it, of another photo with draws of its own, of the picture itself,
        mirrored, with the same draws; from there on it moves with the one beneath. A stage that
        shows no photo gets the plan beneath: to multiply another takes 2.5 ms a batch of 64.
        """
        stage, own = self.stages[place], fold_in(key, self.stages[place].name)
        if stage.source == "none":
            return plan.replace(colors=(), overs=())
        before, after = self.stages[:place], _keyed(self.stages[place + 1 :], key)
        if stage.source == "self":
            stages = [*_keyed(before, key), (flip(horizontal=1.0), own), *after]
        else:
            partner = partners(fold_in(own, "partner"), 1, len(data.sizes))[:, 0]
            stages, rows = [*_keyed(before, own.replace(sample=partner)), *after], partner
        return plan_geometry(stages, key, data.sizes, rows, projective=self.projective)

    def render(
        self, plan: Plan, sources: Sources, *, backend: str = "eager", empty: Empty = torch.empty
    ) -> Tensor:
        """Images [b, 3, h, w] of a plan whose ``sources`` index into ``sources``.

        A package writes them where ``empty(count, dtype=...)`` gives memory.
        """
        if torch.compiler.is_compiling():
            return step.render(self._bound, plan, sources, backend)
        recipe = self.recipe(plan.size)
        if not self._foreign:
            memory = {"empty": empty} if backend == "package" else {}
            return renderer(recipe, backend)(sources, plan, **memory)
        codes = renderer(replace(recipe, finish=Finish()), backend)(sources, plan)
        return transform_all(codes, self._foreign, plan.colors, recipe.finish)

    def paint(
        self, planes: Tensor, colors: tuple[Tensor, ...], *, backend: str = "eager"
    ) -> Tensor:
        """Images [b, 3, h, w] of float32 planes and a plan's colours: what follows the look-up."""
        if torch.compiler.is_compiling():
            return step.paint(self._bound, planes, colors, backend)
        size = (planes.shape[2], planes.shape[3])
        return painter(self.recipe(size), backend)(planes, colors)

    def annotate(self, plan: Plan, data: Photos) -> Targets:
        """The targets of the images that ``plan`` makes."""
        move = annotate_layers if plan.overs else annotate
        return move(plan, data.targets, data.offsets, **self._rules(data))

    def _rules(self, data: Photos) -> dict[str, Any]:
        """Which targets stay, and how poses are mirrored."""
        rules = [s for s in self.stages if isinstance(s, keep)]
        return {
            "keypoint_flip": data.keypoint_flip,
            "min_visible": max((rule.visible for rule in rules), default=0.0),
            "min_side": max((rule.side for rule in rules), default=0.0),
        }

    def __call__(self, key: Key, sample: Sample) -> tuple[Tensor, Targets]:
        """One sample, eagerly, on the CPU: the reference. Returns image [3, h, w] and targets.

        A mosaic and a layer take their partners from the data set that the sample came from.
        Errors: ArgumentError where ``key`` is not of this sample, and where its targets are not
        those of the data set that it came from: ``sample.replace(data=None)`` stands alone.
        """
        if not isinstance(key, Key) or not isinstance(sample, Sample):
            raise ArgumentError(
                "a pipeline wanted (fnpipe.key(...), data[i]), came "
                f"{type(key).__name__}, {type(sample).__name__}"
            )
        at = key.sample.reshape(-1)
        if at.tolist() != [sample.id]:
            raise ArgumentError(f"key is of sample {at.tolist()}, sample.id is {sample.id}")
        key = key.replace(sample=at, epoch=key.epoch.reshape(-1))
        data, rows = (sample.data, at) if sample.data is not None else (Alone(sample), at * 0)
        wanting = [s for s in self.stages if _needs_partners(s)]
        if sample.data is None and wanting:
            raise ArgumentError(
                f"{wanting[0]!r} needs partners: pass a sample of a data set (data[i])"
            )
        check_sample(sample)
        plan = self.draw(key, data, rows=rows)
        own = int(rows)
        sources, local = gather(plan, lambda i: sample.image if i == own else data.read(i))
        return self.render(local, sources)[0], self.annotate(plan, data)

    def explain(self, *, size: tuple[int, int] | None = None) -> str:
        """What runs where and in which backend, and the bytes that cross, for every cut."""
        return explain(self, size=size)


class Alone:
    """A sample that came from no data set, as a data set of one."""

    def __init__(self, sample: Sample) -> None:
        self._image = sample.image
        self.targets: Targets = sample.targets
        self.keypoint_flip: tuple[int, ...] = ()
        self.sizes: Sizes = torch.tensor([[sample.image.shape[2], sample.image.shape[1]]])
        self.offsets: Offsets = torch.tensor([0, len(sample.targets)])

    def read(self, index: int) -> Image:
        return self._image


def check_sample(sample: Sample) -> None:
    """Errors: ArgumentError for what is no photo, and for targets that would not be looked at."""
    image, data, own = sample.image, sample.data, sample.targets
    came = brief(image) if isinstance(image, Tensor) else type(image).__name__
    if not came.startswith("uint8[3, ") or image.ndim != 3:
        raise ArgumentError(f"sample.image wanted uint8[3, h, w], 8-bit codes, came {came}")
    if not isinstance(own, Targets):
        raise ArgumentError(f"sample.targets wanted fnpipe.Targets, came {type(own).__name__}")
    if data is None:
        return
    rows = torch.arange(*data.offsets[sample.id : sample.id + 2].tolist())
    there = take(data.targets, rows)
    same = torch.equal(own.rings.points, there.rings.points) and all(
        torch.equal(getattr(own, name), getattr(there, name))
        for name in ("boxes", "labels", "ignore", "keypoints", "quads")
    )
    if not same or data.sizes[sample.id].tolist() != [image.shape[2], image.shape[1]]:
        raise ArgumentError(
            f"sample has other targets or another size than data[{sample.id}], whose are taken: "
            "sample.replace(data=None) stands alone"
        )


def pipe(*stages: Any) -> Pipeline:
    """Compose stages and pipelines, left to right; a pipeline of none leaves a sample as it is.

    >>> from fnpipe import flip, letterbox
    >>> pipe(letterbox(640), pipe(flip(horizontal=0.5)))
    pipe(letterbox(640), flip(horizontal=0.5))

    Errors: ArgumentError for what is no stage, a repeated name (draws depend on names), a layout
    that is not first, a ``finish`` that is not last, a second ``masks``.
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
        if role(s) is Layout and place > 0:
            raise ArgumentError(f"pipe: {s!r} chooses the photos and must be first")
        after = [t for t in flat[place + 1 :] if not isinstance(t, keep | masks)]
        if isinstance(s, finish) and after:
            raise ArgumentError(f"pipe: {s!r} must be last, came before {after[0]!r}")
        if isinstance(s, masks) and any(isinstance(t, masks) for t in flat[:place]):
            raise ArgumentError(
                f"pipe: {s!r} is the second masks, and a batch has one kind of them"
            )
    return Pipeline(flat)


def _flatten(given: Any) -> tuple[Any, ...]:
    if isinstance(given, Pipeline):
        return given.stages
    known = not isinstance(given, type) and (
        role(given) or isinstance(given, finish | keep | masks)
    )
    if not known:
        raise ArgumentError(f"pipe: wanted stages, came {given!r:.80}; {_advice(given)}")
    return (given,)


def _advice(given: Any) -> str:
    """How a stage is made of what is none."""
    if isinstance(given, type):
        return f"call it: {given.__name__}(...)"
    if isinstance(given, list | tuple):
        return "pipe(*stages) takes them one by one"
    if isinstance(given, Schedule | Buckets):
        return "given.map(lambda each: pipe(each, ...)) adds to each of its pipelines"
    if hasattr(given, "draw") and hasattr(given, "name"):
        return "a stage of geometry has name, projective, draw and move"
    return "a function of three planes becomes one by fnpipe.pointwise(fn).drawn(...)"


def _needs_partners(stage: Any) -> bool:
    return role(stage) is Layout or (role(stage) is Layer and stage.source == "other")


def _keyed(stages: Iterable[Any], key: Key) -> KeyedStages:
    """Stages with the keys of their draws."""
    return [(s, fold_in(key, s.name)) for s in stages]
