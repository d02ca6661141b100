"""Erasing: rectangles of a picture become fill, and hide what lies beneath."""

from dataclasses import KW_ONLY

import torch

from fnpipe.keys import Key, fold_in, uniform
from fnpipe.ops.layers import only, rectangles
from fnpipe.stages.stage import Scene, check_number, check_probability, stage
from fnpipe.types import ArgumentError, Over, Plan, check_whole


@stage
class erase:
    """Fill ``count`` rectangles of a picture, a share ``side`` of the frame wide and high.

    With probability ``p``; then both sides of each are drawn alone from ``side``, and its place
    anywhere in the frame, in whole pixels of at least one. It is filled like what lies outside a
    photo, with 114 before colour. What it hides is taken off masks, boxes and ``visible``; a
    keypoint in it is labelled but hidden (1); an instance that is hidden whole is dropped, and one
    that is hidden for the most part by ``keep(visible=...)``. Rectangles lie straight in the
    finished frame, wherever the stage stands; a layer after it covers them, one before is covered.

    Elsewhere it is random erasing (Zhong and others, 2017; torchvision, whose ``erase`` this name
    is), cutout (DeVries and Taylor, 2017) or coarse dropout (Albumentations, whose two ranges of
    sides ``side`` is); "dropout" alone is a layer of networks.
    """

    _: KW_ONLY
    p: float
    count: int = 1
    side: tuple[float, float] = (0.1, 0.3)
    name: str = "erase"
    source = "none"

    def __post_init__(self) -> None:
        check_probability("erase", "p", self.p)
        check_whole("erase: count", self.count, 1)
        pair = tuple(self.side) if isinstance(self.side, tuple | list) else ()
        for share in pair:
            check_number("erase", "side", share, 0.0, 1.0)
        if len(pair) != 2 or pair[0] > pair[1]:
            raise ArgumentError(
                f"erase: side wanted (least, most) shares of the frame, came {self.side!r}"
            )
        object.__setattr__(self, "side", pair)

    def lay(self, key: Key, plan: Plan, scene: Scene) -> Over:
        u = uniform(fold_in(key, "rectangles"), self.count, 4)
        erased = (uniform(fold_in(key, "p")) < self.p)[:, None].expand(-1, self.count)
        height, width = plan.size
        frame = torch.tensor([width, height], dtype=torch.float64)
        least, most = self.side
        sides = (frame * (least + u[..., :2] * (most - least)) + 0.5).floor().clamp(min=1.0)
        low = (u[..., 2:] * (frame - sides + 1.0)).floor()
        nowhere = torch.zeros(len(plan), dtype=torch.bool)
        return Over(
            plan=only(plan, nowhere),  # no photo lies on top: all of it is fill
            cover=rectangles(low, low + sides, erased),
            weight=torch.ones(len(plan), dtype=torch.float32),
            instances=scene.instances[:0],
        )
