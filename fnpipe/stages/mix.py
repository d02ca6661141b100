"""Mixup and cutmix: two whole pictures in one, with the targets of both."""

from dataclasses import KW_ONLY

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from fnpipe.keys import Key, fold_in, uniform
from fnpipe.ops.layers import only
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
        check_probability("mixup", "p", self.p)
        _check_alpha("mixup", self.alpha)

    def lay(self, key: Key, plan: Plan, scene: Scene) -> Over:
        mixed = uniform(fold_in(key, "p")) < self.p
        weight = torch.where(mixed, beta(key, self.alpha), 1.0).to(torch.float32)
        mixed = weight < 1.0
        return Over(
            plan=only(plan, mixed),
            cover=Rings.empty(len(plan)),
            weight=weight,
            instances=_those_of(scene, plan, mixed),
        )


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
        check_probability("cutmix", "p", self.p)
        _check_alpha("cutmix", self.alpha)

    def lay(self, key: Key, plan: Plan, scene: Scene) -> Over:
        u = uniform(fold_in(key, "window"), 3)
        height, width = plan.size
        frame = torch.tensor([width, height], dtype=torch.float64)
        half = frame * (1.0 - beta(key, self.alpha)).sqrt()[:, None] * 0.5
        centre = u[:, :2] * frame
        low = (centre - half + 0.5).floor().clamp(min=0.0)
        high = torch.minimum((centre + half + 0.5).floor(), frame)
        cut = (u[:, 2] < self.p) & (high > low).all(1)
        return Over(
            plan=only(plan, cut),
            cover=_rectangles(low, high, cut),
            weight=torch.ones(len(plan)),
            instances=_those_of(scene, plan, cut),
            window=True,
        )


def beta(key: Key, alpha: int) -> Float64[Tensor, "*batch"]:
    """A number a row of Beta(alpha, alpha), in [0, 1): the middle of 2 alpha - 1 uniform ones.

    The same on every machine: it only compares. (The k-th of n uniforms is Beta(k, n + 1 - k).)
    """
    drawn = uniform(fold_in(key, "beta"), 2 * alpha - 1)
    return drawn.sort(-1).values[..., alpha - 1]


def _check_alpha(stage: str, alpha: int) -> None:
    if isinstance(alpha, bool) or not isinstance(alpha, int) or not 1 <= alpha <= MOST:
        raise ArgumentError(f"{stage}: alpha wanted a whole number in [1, {MOST}], came {alpha!r}")


def _those_of(scene: Scene, plan: Plan, images: Bool[Tensor, " b"]) -> Tensor:
    """The instances of some images."""
    return scene.instances[images[scene.instances[:, 0] // max(plan.sources.shape[1], 1)]]


def _rectangles(low: Tensor, high: Tensor, there: Bool[Tensor, " b"]) -> Rings:
    """A rectangle an image as a ring, none where it is not ``there``."""
    (x0, y0), (x1, y1) = low[there].unbind(1), high[there].unbind(1)
    corners = torch.stack([x0, y0, x1, y0, x1, y1, x0, y1], 1).to(torch.float32)
    count = there.to(torch.int64)
    return Rings(
        points=corners.view(-1, 2),
        ring_offsets=torch.arange(len(corners) + 1) * 4,
        instance_offsets=torch.cat([count.new_zeros(1), count.cumsum(0)]),
    )
