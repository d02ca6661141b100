"""Pictures on top of pictures: the targets of a plan that has layers above it, and their bits.

What layers do to pixels is :func:`fnpipe.ops.render.lay`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from fnpipe.ops.annotate import annotate, concatenate, select, take
from fnpipe.ops.occlude import occlude
from fnpipe.ops.points import bounds, gather_ragged
from fnpipe.ops.raster import masks
from fnpipe.types import Offsets, Over, Plan, Rings, Targets


Instances = Int64[Tensor, "m 2"]
"""The tile, counted through the batch, and the row of the data set's table."""


def instances_of(plan: Plan, offsets: Offsets) -> Instances:
    """All instances that the photos of a plan bring, in the order of tiles, then rows."""
    sources = plan.sources.flatten()
    tiles = (sources >= 0).nonzero().squeeze(1)
    rows, starts = gather_ragged(offsets, sources[tiles])
    return torch.stack([tiles.repeat_interleave(starts.diff()), rows], 1)


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
    of both. ``min_visible`` and ``min_side`` decide last.
    """
    flip = tuple(keypoint_flip)
    made = annotate(plan, targets, offsets, keypoint_flip=flip)
    for over in plan.overs:
        assert isinstance(over.cover, Rings)
        brought = _brought(over, targets, flip)
        made = join([occlude(made, over.cover), brought])
    side = (made.boxes[:, 2:] - made.boxes[:, :2]).amin(1)
    large = (side > 0) & (side >= min_side)
    return select(made, large & (made.visible > 0) & (made.visible >= min_visible))


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
    tiles = over.plan.sources.shape[1]
    boxes = bounds(over.cover)
    parts = []
    for image in over.active.nonzero().flatten().tolist():
        mine = over.instances[over.instances[:, 0] // tiles == image]
        x0, y0, x1, y1 = (int(side) for side in boxes[image].tolist())
        moved = _shift(over.plan, x0, y0, (y1 - y0, x1 - x0))
        parts.append(_move(annotate_some(moved, targets, mine, keypoint_flip=flip), x0, y0))
    return join(parts) if parts else take(targets, torch.zeros(0, dtype=torch.int64))


def _shift(plan: Plan, x: int, y: int, size: tuple[int, int]) -> Plan:
    """A plan for targets whose frame is a window of its frame, at (x, y)."""
    forward = plan.forward.clone()
    forward[..., :2, :] -= torch.tensor([[x], [y]]) * forward[..., 2:, :]
    return plan.replace(forward=forward, size=size)


def _move(targets: Targets, x: int, y: int) -> Targets:
    """Targets of a window in the coordinates of its frame; missing keypoints stay (0, 0, 0)."""
    by = torch.tensor([x, y], dtype=torch.float32)
    there = targets.keypoints[..., 2:] > 0
    keypoints = targets.keypoints.clone()
    keypoints[..., :2] += torch.where(there, by, 0.0)
    return targets.replace(
        boxes=targets.boxes + by.repeat(2),
        keypoints=keypoints,
        quads=targets.quads + by,
        rings=targets.rings.replace(points=targets.rings.points + by),
    )


def only(plan: Plan, images: Bool[Tensor, " b"]) -> Plan:
    """A plan that shows fill, and needs no photo, but for ``images``."""
    return plan.replace(sources=torch.where(images[:, None], plan.sources, -1))


def by_image(targets: Targets, images: int) -> Rings:
    """The rings of a batch's targets, all those of an image as one instance."""
    rings = targets.rings
    first = torch.searchsorted(targets.owner, torch.arange(images + 1))
    return rings.replace(instance_offsets=rings.instance_offsets[first])


def rasterized(plan: Plan) -> Plan:
    """A plan whose layers have bits for rings, as a renderer wants them, on the plan's device."""
    if all(isinstance(over.cover, Tensor) for over in plan.overs):
        return plan
    impl = "triton" if plan.maps.is_cuda and _has_triton() else "torch"
    overs = []
    for over in plan.overs:
        if isinstance(over.cover, Rings):
            over = over.replace(cover=masks(over.cover, plan.size, stride=1, impl=impl))
        overs.append(over)
    return plan.replace(overs=tuple(overs))


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        return False
    return True
