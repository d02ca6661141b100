"""Copy-paste: instances of one picture on top of another, cut out along their rings."""

from dataclasses import KW_ONLY
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from fnpipe.keys import Key, fold_in, uniform
from fnpipe.ops.annotate import take
from fnpipe.ops.layers import by_image, only
from fnpipe.ops.raster import following, ragged
from fnpipe.stages.stage import Scene, check_probability, stage
from fnpipe.types import ArgumentError, Over, Plan, Targets


@stage
class copy_paste:
    """Paste instances of the picture itself, mirrored (``"self"``), or of another (``"other"``).

    Every eligible instance is pasted with probability ``p``, alone and independently of the others,
    whatever the source: of 6 eligible ones 6 p are to be expected, 0 pastes nothing, 1 all
    (Simple copy-paste, Ghiasi and others, 2021). Eligible is an instance with rings, none to be
    ignored, that ``keep`` would keep, and whose box covers at most ``max_overlap`` of the box of
    each instance beneath. Pasted boxes count together: one more that would hide more than that of
    an instance is not pasted, nor one that could hide more than half of its area (``max_overlap``
    of it, where that is more). So originals are never lost, and with ``max_overlap=0`` not touched;
    with 1 anything goes.

    The other picture is made by the stages before this one, by draws of its own; then both move
    together. Instances keep their place in it, their ``ids``, and what hides what among them. All
    that is pasted is one layer: one look at the source a pixel, however rings overlap or repeat.

    Ultralytics (``copy_paste_mode`` "flip" and "mixup") pastes the share ``p`` of the eligible,
    those that overlap least first, and in "mixup" does so with probability ``p`` only; it judges
    each overlap alone, leaves what is beneath its whole mask and box, and cuts along pixel indices.
    """

    _: KW_ONLY
    p: float
    source: Literal["self", "other"] = "self"
    max_overlap: float = 0.3
    name: str = "copy_paste"

    def __post_init__(self) -> None:
        check_probability("copy_paste", "p", self.p)
        check_probability("copy_paste", "max_overlap", self.max_overlap)
        if self.source not in ("self", "other"):
            raise ArgumentError(
                f"copy_paste: source wanted 'self' or 'other', came {self.source!r}"
            )

    def lay(self, key: Key, plan: Plan, scene: Scene) -> Over:
        above = scene.above()
        chosen = self._choose(key, above, plan, scene)
        pasted = take(above, chosen)
        images = torch.bincount(pasted.owner, minlength=len(plan)) > 0
        return Over(
            plan=only(plan, images),
            cover=by_image(pasted, len(plan)),
            weight=torch.ones(len(plan), dtype=torch.float32),
            instances=scene.instances[pasted.ids],
        )

    def _choose(self, key: Key, above: Targets, plan: Plan, scene: Scene) -> Int64[Tensor, " q"]:
        """Rows of ``above`` that are pasted, ascending.

        An instance's number is drawn by its place among all of its picture, so what ``keep`` drops
        moves no other's. The least numbers come first, so a greater ``p`` only adds.
        """
        image = scene.instances[:, 0] // max(plan.sources.shape[1], 1)
        place = torch.arange(len(image)) - torch.searchsorted(image, image)
        longest = int(place.max()) + 1 if len(place) else 0
        number = uniform(fold_in(key, "pick"), longest)[image, place][above.ids]
        wanted = (number < self.p) & ~above.ignore & (above.rings.instance_offsets.diff() > 0)
        order = number.argsort(stable=True)
        order = order[wanted[order]]
        below = scene.below() if len(order) else above
        room, boxes = _room(below, self.max_overlap).numpy(), above.boxes.numpy()
        owner, beneath = above.owner[order].numpy(), below.boxes.numpy()
        images = np.unique(owner)
        first, last = (np.searchsorted(below.owner.numpy(), images + more) for more in (0, 1))
        chosen = [np.zeros(0, dtype=np.int64)]
        for image, start, end in zip(images, first, last, strict=True):
            rows = order.numpy()[owner == image]
            chosen.append(rows[_allowed(boxes[rows], beneath[start:end], room[start:end])])
        return torch.from_numpy(np.sort(np.concatenate(chosen)))


def _room(below: Targets, limit: float) -> Float64[Tensor, " n"]:
    """How many square pixels of each instance's box may be hidden."""
    if limit == 1.0:
        return torch.full((len(below),), torch.inf, dtype=torch.float64)
    sides = (below.boxes[:, 2:] - below.boxes[:, :2]).double()
    box = sides[:, 0] * sides[:, 1]
    rings = below.rings
    ring, _ = ragged(rings.ring_offsets.diff())
    owner, _ = ragged(rings.instance_offsets.diff())
    x, y = rings.points.double().unbind(1)
    after = following(rings.ring_offsets)
    twice = box.new_zeros(len(owner)).index_add_(0, ring, x * y[after] - x[after] * y)
    area = torch.zeros_like(box).index_add_(0, owner, twice.abs() * 0.5)
    area = torch.where(rings.instance_offsets.diff() > 0, area, box)
    return torch.minimum(limit * box, max(limit, 0.5) * area)


def _allowed(
    boxes: Float32[np.ndarray, "q 4"],
    below: Float32[np.ndarray, "m 4"],
    room: Float64[np.ndarray, " m"],
) -> Bool[np.ndarray, " q"]:
    """Which of ``boxes``, taken in order, hide of no box below more than there is ``room`` for."""
    low = np.maximum(boxes[:, None, :2], below[:, :2])
    high = np.minimum(boxes[:, None, 2:], below[:, 2:])
    sides = (high - low).clip(min=0).astype(np.float64)
    allowed = np.zeros(len(boxes), bool)
    for i, hidden in enumerate(sides[..., 0] * sides[..., 1]):
        if (hidden <= room).all():
            allowed[i] = True
            room = room - hidden
    return allowed
