"""Mixup and cutmix: two whole pictures in one, with the targets of both."""

from dataclasses import KW_ONLY

import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from fnpipe.keys import Key, fold_in, uniform
from fnpipe.ops.layers import only, rectangles
from fnpipe.stages.stage import Scene, check_probability, stage
from fnpipe.types import ArgumentError, Over, Plan, Rings


MOST = 256
"""The greatest ``alpha``: a sample then draws 511 numbers."""


@stage
class mixup:
    """Another picture shines through: ``codes * share + others * (1 - share)``, before colour.

    With probability ``p``, and then ``share`` ~ Beta(alpha, alpha), a whole ``alpha`` (Zhang and
    others, 2018; the default, near a half, is that of YOLOX and Ultralytics). Targets of both stay,
    whole. The other picture is made by the stages before this one, by draws of its own; then both
    move together. Unlike in Ultralytics no layer lies on it, and the sum is not cut to whole codes.
    """

    _: KW_ONLY
    p: float
    alpha: int = 32
    name: str = "mixup"
    source = "other"

    def __post_init__(self) -> None:
        _check(self)

    def lay(self, key: Key, plan: Plan, scene: Scene) -> Over:
        mixed = uniform(fold_in(key, "p")) < self.p
        weight = torch.where(mixed, beta(key, self.alpha), 1.0).to(torch.float32)
        return _over(plan, scene, weight < 1.0, Rings.empty(len(plan)), weight)


@stage
class cutmix:
    """A window shows another picture, whole: its pixels, and its targets cut by the window.

    With probability ``p``, and then the window has the frame's aspect and a share of ``1 - share``
    of its area, ``share`` ~ Beta(alpha, alpha), a whole ``alpha`` (1: any share alike); its centre
    lies anywhere in the frame, and the frame cuts it (Yun and others, 2019). Its sides are whole
    pixels. What it hides is taken off the targets beneath; one that is hidden whole is dropped. The
    other picture is made by the stages before this one, by draws of its own; then both move
    together.

    Ultralytics draws three windows and takes one that touches no box beneath, or none at all, and
    brings only instances a tenth of which it shows; ``keep(visible=...)`` decides that here.
    """

    _: KW_ONLY
    p: float
    alpha: int = 1
    name: str = "cutmix"
    source = "other"

    def __post_init__(self) -> None:
        _check(self)

    def lay(self, key: Key, plan: Plan, scene: Scene) -> Over:
        u = uniform(fold_in(key, "window"), 3)
        height, width = plan.size
        frame = torch.tensor([width, height], dtype=torch.float64)
        half = frame * (1.0 - beta(key, self.alpha)).sqrt()[:, None] * 0.5
        centre = u[:, :2] * frame
        low = (centre - half + 0.5).floor().clamp(min=0.0)
        high = torch.minimum((centre + half + 0.5).floor(), frame)
        cut = (u[:, 2] < self.p) & (high > low).all(1)
        cover = rectangles(low[:, None], high[:, None], cut[:, None])
        return _over(
            plan, scene, cut, cover, torch.ones(len(plan), dtype=torch.float32), window=True
        )


def beta(key: Key, alpha: int) -> Float64[Tensor, "*batch"]:
    """A number a row of Beta(alpha, alpha), in [0, 1): the middle of 2 alpha - 1 uniform ones.

    The same on every machine: it only compares. (The k-th of n uniforms is Beta(k, n + 1 - k).)
    """
    drawn = uniform(fold_in(key, "beta"), 2 * alpha - 1)
    return drawn.sort(-1).values[..., alpha - 1]


def _check(stage: mixup | cutmix) -> None:
    name, alpha = type(stage).__name__, stage.alpha
    check_probability(name, "p", stage.p)
    if isinstance(alpha, bool) or not isinstance(alpha, int) or not 1 <= alpha <= MOST:
        raise ArgumentError(f"{name}: alpha wanted a whole number in [1, {MOST}], came {alpha!r}")


def _over(
    plan: Plan,
    scene: Scene,
    images: Bool[Tensor, " b"],
    cover: Rings,
    weight: Float32[Tensor, " b"],
    *,
    window: bool = False,
) -> Over:
    """The pictures of ``plan`` on ``images``, with all of their instances."""
    there = images[scene.instances[:, 0] // max(plan.sources.shape[1], 1)]
    instances = scene.instances[there]
    return Over(only(plan, images), cover, weight, instances, window=window)
