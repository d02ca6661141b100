"""Targets of a batch: a plan moves the instances of its photos, and the frame cuts them."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from fnpipe.ops.points import (
    NEAR,
    Outlines,
    Size,
    check_keypoint_flip,
    clip,
    fit_rectangles,
    outlines_to_rings,
    project,
    transform,
)
from fnpipe.ops.ragged import gather_ragged, offsets_of
from fnpipe.types import Boxes, Keypoints, Maps, Offsets, Plan, Points, Quads, Rings, Targets


ROWS = ("boxes", "labels", "owner", "ids", "ignore", "visible", "keypoints", "quads")
"""Fields of Targets that have one row an instance: all but the rings."""


def annotate(
    plan: Plan,
    targets: Targets,
    offsets: Offsets,
    *,
    keypoint_flip: tuple[int, ...] = (),
    min_visible: float = 0.0,
    min_side: float = 0.0,
    sizes: Int64[Tensor, "b 2"] | None = None,
) -> Targets:
    """Targets of the images that ``plan`` makes; coordinates in output pixels.

    ``targets`` is a data set's whole table, in which photo ``i`` owns rows ``offsets[i]`` up to
    ``offsets[i + 1]``. Each tile brings the instances of its photo, in the order of tiles, then
    rows; an empty tile (source -1) brings none. All that an instance has moves together:

    - The box bounds exactly what the frame holds of the rings; of what the quad has inside the
      table's box where there is no ring (the rest is outside the photo, and would reach into the
      next tile); of the box's own moved corners where there is neither. Rings are cut at the
      border.
    - A quad becomes the least rectangle round its moved corners and stays whole at the border; one
      with a corner behind the camera is dropped with its instance.
    - Keypoints keep their k rows, those outside as (0, 0, 0); a reflection swaps left and right.
    - ``visible`` is multiplied by the share of the moved area that is in the frame.

    Dropped, in every field, is an instance with no area in the frame, with ``visible`` under
    ``min_visible``, or with a side of the box under ``min_side`` pixels. An image's targets are
    the same, in bits, whatever else is in the batch. ``sizes`` are the images' own frames (height,
    width), where they are not ``plan.size``. Raises ArgumentError where a pose is mirrored
    and ``keypoint_flip`` is not what :func:`fnpipe.ops.points.check_keypoint_flip` wants.
    """
    tile, rows = rows_of_tiles(plan, offsets)
    across = max(plan.sources.shape[1], 1)
    size = plan.size if sizes is None else sizes[tile // across].numpy()
    if not plan.projective:
        near = _near_frame(targets.boxes[rows], plan.forward.flatten(0, 1), tile, size)
        rows, tile = rows[near], tile[near]
        size = size if isinstance(size, tuple) else size[near.numpy()]
    maps = plan.forward.flatten(0, 1)[tile]
    found = take(targets, rows)
    rings, boxes, share = _move_outlines(found, maps, size)
    quads, front = _move_quads(found.quads, maps)
    moved = found.replace(
        boxes=boxes,
        owner=tile // across,
        visible=found.visible * share,
        keypoints=move_keypoints(found.keypoints, maps, size, keypoint_flip),
        quads=quads,
        rings=rings,
    )
    return select(moved, front & (share > 0) & stays(moved, min_visible, min_side))


def stays(targets: Targets, min_visible: float, min_side: float) -> Bool[Tensor, " n"]:
    """Whether an instance is large enough, with an area at all, and enough of it in sight."""
    side = (targets.boxes[:, 2:] - targets.boxes[:, :2]).amin(1)
    return (side > 0) & (side >= min_side) & (targets.visible >= min_visible)


def rows_of_tiles(plan: Plan, offsets: Offsets) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]:
    """All instances that a plan's photos bring: their tiles, ascending, and their rows."""
    sources = plan.sources.flatten()
    tiles = (sources >= 0).nonzero().squeeze(1)
    rows, starts = gather_ragged(offsets, sources[tiles])
    return tiles.repeat_interleave(starts.diff()), rows


def move_keypoints(
    keypoints: Keypoints, maps: Float64[Tensor, "n 3 3"], size: Size, flip: Sequence[int]
) -> Keypoints:
    """Poses in pixels, each under its own map; always k rows, in the order of the skeleton.

    A point that is missing, outside the closed frame ``size`` (height, width) or behind the camera
    becomes (0, 0, 0); any other keeps its flag. Where a map is a reflection, and not where it only
    turns, row k is taken from row ``flip[k]``; raises ArgumentError there if ``flip`` is not
    what :func:`fnpipe.ops.points.check_keypoint_flip` wants.
    """
    n, k, _ = keypoints.shape
    if not k:
        return keypoints
    counts = torch.full((n,), k, dtype=torch.int64)
    x, y, weight = transform(keypoints[..., :2].reshape(-1, 2), maps, counts).view(3, n, k)
    # Float32 decides what is outside: an edge-to-edge map may give 640 + 1e-13, which is inside.
    x, y = (x / weight).float(), (y / weight).float()
    height, width = torch.as_tensor(size).expand(n, 2)[..., None].unbind(1)
    seen = (x >= 0) & (x <= width) & (y >= 0) & (y <= height) & (weight >= NEAR)
    flags = keypoints[..., 2]
    moved = torch.stack((x, y, flags), 2)
    moved = torch.where((seen & (flags > 0))[..., None], moved, 0.0)
    mirrored = is_reflection(maps)
    if not mirrored.any():
        return moved
    check_keypoint_flip(flip, k)
    return torch.where(mirrored[:, None, None], moved[:, list(flip)], moved)


def is_reflection(maps: Maps) -> Bool[Tensor, "*batch"]:
    """Whether a map turns left into right: its determinant is negative.

    Wherever the weight is positive the Jacobian's determinant has the sign of the map's.
    """
    a, b, c, d, e, f, g, h, i = maps.flatten(-2).unbind(-1)
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g) < 0


def take(targets: Targets, rows: Int64[Tensor, " q"]) -> Targets:
    """Rows of a table in the order asked for, rings and all; ``owner`` stays what it was."""
    rings = take_rings(targets.rings, rows)
    fields = {name: getattr(targets, name).index_select(0, rows) for name in ROWS}
    return Targets(rings=rings, **fields)


def take_rings(rings: Rings, rows: Int64[Tensor, " q"]) -> Rings:
    """The rings of some instances, in the order asked for."""
    if len(rings.ring_offsets) == 1:  # a table of boxes: 0.15 ms a batch of 64 mosaics less
        return Rings(rings.points, rings.ring_offsets, rows.new_zeros(len(rows) + 1))
    ring, instance_offsets = gather_ragged(rings.instance_offsets, rows)
    point, ring_offsets = gather_ragged(rings.ring_offsets, ring)
    return Rings(rings.points.index_select(0, point), ring_offsets, instance_offsets)


def join_rings(parts: Sequence[Rings]) -> Rings:
    """The instances of all parts, one part's after another's."""
    return Rings(
        torch.cat([part.points for part in parts]),
        offsets_of(torch.cat([part.ring_offsets.diff() for part in parts])),
        offsets_of(torch.cat([part.instance_offsets.diff() for part in parts])),
    )


def select(targets: Targets, keep: Bool[Tensor, " n"]) -> Targets:
    """The rows of a table that are in ``keep``, every field compacted."""
    return take(targets, keep.nonzero().squeeze(1))


def concatenate(parts: Sequence[Targets]) -> Targets:
    """Targets of a batch from those of its images: ``owner`` becomes the image's place."""
    if not parts:
        return Targets.empty()
    rings = join_rings([part.rings for part in parts])
    fields = {name: torch.cat([getattr(part, name) for part in parts]) for name in ROWS}
    counts = torch.tensor([len(part) for part in parts])
    owner = torch.arange(len(parts)).repeat_interleave(counts)
    return Targets(rings=rings, **fields).replace(owner=owner)


def _near_frame(
    boxes: Boxes, maps: Maps, which: Int64[Tensor, " n"], size: Size
) -> Int64[Tensor, " m"]:
    """The rows whose box may show in the frame under the affine map ``maps[which]``.

    A box holds all of its instance, so what is left out here would be dropped later: in mosaics of
    COCO half of the instances, before their 40,000 points are touched. A pixel of margin is far
    more than rounding takes.
    """
    a, b, c, d, e, f = maps[:, :2].reshape(-1, 6).numpy().T.take(which.numpy(), axis=1)
    x0, y0, x1, y1 = boxes.numpy().T
    x, y, width, height = (x0 + x1) * 0.5, (y0 + y1) * 0.5, (x1 - x0) * 0.5, (y1 - y0) * 0.5
    u, v = a * x + b * y + c, d * x + e * y + f
    across = np.abs(a) * width + np.abs(b) * height + 1.0
    down = np.abs(d) * width + np.abs(e) * height + 1.0
    height, width = np.broadcast_to(size, (len(u), 2)).T
    seen = (u + across > 0) & (u - across < width) & (v + down > 0) & (v - down < height)
    return torch.from_numpy(np.flatnonzero(seen))


def _move_outlines(
    found: Targets, maps: Float64[Tensor, "n 3 3"], size: Size
) -> tuple[Rings, Boxes, Float32[Tensor, " n"]]:
    """Moved and clipped rings; box and visible share of them, or else of the corners."""
    n = len(found)
    bare = (found.rings.instance_offsets.diff() == 0).nonzero().squeeze(1)
    rings = add_corners(found, bare)
    counts = rings.ring_offsets[rings.instance_offsets].diff()
    moved = transform(rings.points, torch.cat((maps, maps[bare])), counts)
    outlines = project(moved, rings.ring_offsets, rings.instance_offsets)
    every = size if isinstance(size, tuple) else np.concatenate((size, size[bare.numpy()]))
    outlines, boxes, share = clip(outlines, every)
    boxes[:, bare.numpy()], share[bare.numpy()] = boxes[:, n:], share[n:]
    boxes, share = torch.from_numpy(boxes[:, :n].T), torch.from_numpy(share[:n])
    return outlines_to_rings(outlines, n), boxes.float().contiguous(), share.float()


def add_corners(found: Targets, bare: Int64[Tensor, " q"]) -> Rings:
    """All rings, and after them the outlines of ``bare`` instances, as instances of their own."""
    more, rings = torch.arange(1, len(bare) + 1), found.rings
    if found.quads.shape[1]:
        corners, ends = _quads_in_boxes(found.quads[bare], found.boxes[bare])
    else:
        corners, ends = found.boxes[bare][:, [0, 1, 2, 1, 2, 3, 0, 3]].view(-1, 2), 4 * more
    return Rings(
        torch.cat((rings.points, corners)),
        torch.cat((rings.ring_offsets, rings.ring_offsets[-1] + ends)),
        torch.cat((rings.instance_offsets, rings.instance_offsets[-1] + more)),
    )


def _quads_in_boxes(quads: Quads, boxes: Boxes) -> tuple[Points, Offsets]:
    """What each quad has in its box, up to eight points, and where each ends; most are whole."""
    low, high = boxes.view(-1, 2, 2)[:, :, None].unbind(1)
    beyond = torch.maximum(low - quads, quads - high).flatten(1).amax(1) > 0
    cut = (beyond & (high > low).flatten(1).all(1)).nonzero().squeeze(1)
    whole = 4 * torch.arange(len(quads) + 1)
    if not len(cut):
        return quads.flatten(0, 1), whole[1:]
    low, side = low[cut].double(), (high - low)[cut].double()
    unit = ((quads[cut] - low) / side).flatten(0, 1).T.contiguous()
    one = np.arange(len(cut) + 1)
    part, _, _ = clip(Outlines(unit.numpy(), 4 * one, one), (1, 1))
    ends = torch.from_numpy(part.rings[part.instances][1:])
    which = torch.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
    inner = torch.from_numpy(part.planes.T) * side[which, 0] + low[which, 0]
    chosen = torch.arange(len(quads))
    chosen[cut] = len(quads) + torch.arange(len(cut))
    index, starts = gather_ragged(torch.cat((whole, whole[-1] + ends)), chosen)
    return torch.cat((quads.flatten(0, 1), inner.float()))[index], starts[1:]


def _move_quads(quads: Quads, maps: Float64[Tensor, "n 3 3"]) -> tuple[Quads, Bool[Tensor, " n"]]:
    """Rectangles round moved quads, and whether all their corners are in front of the camera."""
    n, corners, _ = quads.shape
    if not corners:
        return quads, torch.ones(n, dtype=torch.bool)
    counts = torch.full((n,), corners, dtype=torch.int64)
    x, y, weight = transform(quads.flatten(0, 1), maps, counts).view(3, n, corners)
    return fit_rectangles(torch.stack((x / weight, y / weight), 2)), (weight >= NEAR).all(1)
