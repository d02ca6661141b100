"""Pictures on top of pictures: the targets of a plan that has layers above it, and their bits.

What layers do to pixels is :func:`fnpipe.ops.render.lay`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from fnpipe.ops.annotate import annotate, concatenate, rows_of_tiles, select, stays, take
from fnpipe.ops.occlude import occlude
from fnpipe.ops.paint import fastest
from fnpipe.ops.points import bounds
from fnpipe.ops.ragged import offsets_of
from fnpipe.ops.raster import masks
from fnpipe.types import ArgumentError, Offsets, Over, Plan, Rings, Targets


Instances = Int64[Tensor, "m 2"]
"""The tile, counted through the batch, and the row of the data set's table."""


def instances_of(plan: Plan, offsets: Offsets) -> Instances:
    """All instances that the photos of a plan bring, in the order of tiles, then rows."""
    return torch.stack(rows_of_tiles(plan, offsets), 1)


def annotate_some(plan: Plan, targets: Targets, instances: Instances, **rules: Any) -> Targets:
    """:func:`fnpipe.ops.annotate.annotate` of ``instances`` alone (ascending tiles)."""
    tile, row = instances.unbind(1)
    count = plan.sources.numel()
    offsets = torch.searchsorted(tile.contiguous(), torch.arange(count + 1))
    alone = plan.replace(sources=torch.arange(count).view_as(plan.sources), overs=())
    return annotate(alone, take(targets, row), offsets, **rules)


def annotate_layers(
    plan: Plan,
    targets: Targets,
    offsets: Offsets,
    *,
    keypoint_flip: Sequence[int] = (),
    min_visible: float = 0.0,
    min_side: float = 0.0,
) -> Targets:
    """:func:`fnpipe.ops.annotate.annotate` of a plan with layers: what is seen of all of them.

    Each image has first what it shows itself, then what each layer brings, in order. What a layer
    covers is taken off all beneath (:func:`fnpipe.ops.occlude.occlude`); what is mixed stays whole,
    of both. ``min_visible`` and ``min_side`` decide last. Raises ArgumentError for a layer whose
    rings are bits already.
    """
    flip = tuple(keypoint_flip)
    made = annotate(plan, targets, offsets, keypoint_flip=flip)
    for over in plan.overs:
        if not isinstance(over.cover, Rings):
            raise ArgumentError("annotate: a layer wanted rings, came their bits; draw it anew")
        brought = _brought(over, targets, flip)
        made = join([occlude(made, over.cover), brought])
    return select(made, (made.visible > 0) & stays(made, min_visible, min_side))


def join(parts: Sequence[Targets]) -> Targets:
    """Targets of the same batch as one: by image, and of an image by part."""
    owner = torch.cat([part.owner for part in parts])
    whole = concatenate(parts).replace(owner=owner)
    return take(whole, owner.argsort(stable=True))


def _brought(over: Over, targets: Targets, flip: tuple[int, ...]) -> Targets:
    """The targets of a layer; through a window, cut by it."""
    if not over.window:
        return annotate_some(over.plan, targets, over.instances, keypoint_flip=flip)
    assert isinstance(over.cover, Rings)
    windows = bounds(over.cover)
    low, high = windows[:, :2], windows[:, 2:]
    plan = _shift(over.plan, low)
    sizes = (high - low).flip(1).long()
    made = annotate_some(plan, targets, over.instances, keypoint_flip=flip, sizes=sizes)
    return _move(made, low[made.owner])


def _shift(plan: Plan, low: Float32[Tensor, "b 2"]) -> Plan:
    """A plan for targets in the coordinates of windows whose least corners are ``low``."""
    forward = plan.forward.clone()
    forward[..., :2, :] -= low.double()[:, None, :, None] * forward[..., 2:, :]
    return plan.replace(forward=forward)


def _move(targets: Targets, by: Float32[Tensor, "n 2"]) -> Targets:
    """Targets of windows in the coordinates of their frames; missing keypoints stay (0, 0, 0)."""
    there = targets.keypoints[..., 2:] > 0
    keypoints, rings = targets.keypoints.clone(), targets.rings
    keypoints[..., :2] += torch.where(there, by[:, None], 0.0)
    counts = rings.ring_offsets[rings.instance_offsets].diff()
    return targets.replace(
        boxes=targets.boxes + by.repeat(1, 2),
        keypoints=keypoints,
        quads=targets.quads + by[:, None],
        rings=rings.replace(points=rings.points + by.repeat_interleave(counts, 0)),
    )


def only(plan: Plan, images: Bool[Tensor, " b"]) -> Plan:
    """A plan that shows fill, and needs no photo, but for ``images``."""
    return plan.replace(sources=torch.where(images[:, None], plan.sources, -1))


def rectangles(
    low: Float64[Tensor, "b c 2"], high: Float64[Tensor, "b c 2"], there: Bool[Tensor, "b c"]
) -> Rings:
    """Rectangles from x, y ``low`` to ``high`` as rings, those of an image as one instance."""
    (x0, y0), (x1, y1) = low[there].unbind(1), high[there].unbind(1)
    corners = torch.stack([x0, y0, x1, y0, x1, y1, x0, y1], 1).to(torch.float32)
    return Rings(
        points=corners.view(-1, 2),
        ring_offsets=torch.arange(len(corners) + 1) * 4,
        instance_offsets=offsets_of(there.sum(1)),
    )


def by_image(targets: Targets, images: int) -> Rings:
    """The rings of a batch's targets, all those of an image as one instance."""
    rings = targets.rings
    first = torch.searchsorted(targets.owner, torch.arange(images + 1))
    return rings.replace(instance_offsets=rings.instance_offsets[first])


def rasterized(plan: Plan) -> Plan:
    """A plan whose layers have bits for rings, as a renderer wants them, on the plan's device."""
    if all(isinstance(over.cover, Tensor) for over in plan.overs):
        return plan
    impl = fastest(plan.maps)
    overs = []
    for over in plan.overs:
        if isinstance(over.cover, Rings):
            over = over.replace(cover=masks(over.cover, plan.size, stride=1, impl=impl))
        overs.append(over)
    return plan.replace(overs=tuple(overs))
