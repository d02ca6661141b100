"""Targets cut to their photos: one rule for every format and every kind of target.

A box is the hull of its rings, else of its quad, else what the file gives. What sticks out of the
photo by at most ``SNAP`` pixels is rounding noise and is moved onto the border ("snapped"). What
sticks out further is cut off there ("clipped"), but a quad stays whole and only its box is cut. An
instance of which nothing is left is dropped ("outside"), as is one without width or height to begin
with ("degenerate"); the photo and its other instances stay. A ring without area is dropped, and its
instance kept if it has a box of its own. A keypoint outside becomes missing.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from fnpipe.ops.annotate import concatenate, select, take
from fnpipe.ops.points import Outlines, bounds, clip, outlines_to_rings
from fnpipe.ops.ragged import gather_ragged, offsets_of
from fnpipe.types import Boxes, Keypoints, Rings, Sizes, Targets


SNAP = 0.01
"""Pixels. COCO writes two decimals; half of a sixth decimal is 0.004 pixels of 8,000."""
THIN = 1e-4
"""Pixels. A ring that is thinner on average is a line: float32 rounds to 6e-5 at 1,000."""


def tidy(targets: Targets, sizes: Sizes, note: Callable[[str, int], None]) -> Targets:
    """Targets in the order of their photos, cut to them by the module's rule; ``ids`` count rows.

    ``targets`` are in pixels, uncut, in any order of photos; their boxes may be NaN where there is
    a ring or a quad. ``sizes`` are the photos' widths and heights. ``note(kind, row)`` is told what
    happened to which row.
    """
    order = targets.owner.argsort(stable=True)
    targets = take(targets, order).replace(ids=torch.arange(len(order)))

    def tell(kind: str, which: Bool[Tensor, " n"]) -> None:
        for row in order[which].tolist():
            note(kind, row)

    targets, thin = _drop_thin_rings(targets)
    tell("ring without area", thin)
    whole = targets.replace(boxes=hulls(targets))
    limits = sizes[targets.owner].float()
    excess = torch.cat([-whole.boxes[:, :2], whole.boxes[:, 2:] - limits], 1).amax(1)
    cut = _cut(whole, sizes, excess > 0)
    keypoints, hidden = _hide_outside(cut.keypoints, limits)
    solid, left = _has_area(whole.boxes), _has_area(cut.boxes)
    tell("degenerate", ~solid)
    tell("outside", solid & ~left)
    tell("clipped", left & (excess > SNAP))
    tell("snapped", left & (excess > 0) & (excess <= SNAP))
    tell("keypoint outside", left & hidden)
    kept = select(cut.replace(keypoints=keypoints), left)
    return kept.replace(ids=torch.arange(len(kept)))


def hulls(targets: Targets) -> Boxes:
    """Boxes round the rings, else round the quad, else as they are."""
    boxes = targets.boxes
    if targets.quads.shape[1]:
        boxes = torch.cat([targets.quads.amin(1), targets.quads.amax(1)], 1)
    return torch.where(_has_rings(targets), bounds(targets.rings), boxes)


def _has_area(boxes: Boxes) -> Bool[Tensor, " n"]:
    return (boxes[:, 2:] > boxes[:, :2]).all(1)


def _has_rings(targets: Targets) -> Bool[Tensor, "n 1"]:
    return targets.rings.instance_offsets.diff()[:, None] > 0


def _drop_thin_rings(targets: Targets) -> tuple[Targets, Bool[Tensor, " n"]]:
    """Without the rings that have no area: fewer than three points, or all on one line.

    The triangles from a ring's first point tell; a figure of eight has a signed area of zero.
    Also returns which instances lost one.
    """
    points, offsets = targets.rings.points, targets.rings.ring_offsets
    ring = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    arms = points.double() - points[offsets[ring]].double()
    (x0, y0), (x1, y1) = arms[:-1].T, arms[1:].T
    fans, lengths = torch.zeros(2, len(offsets) - 1, dtype=torch.float64)
    fans.index_add_(0, ring[1:], (x0 * y1 - y0 * x1).abs() * (ring[:-1] == ring[1:]))
    lengths.scatter_reduce_(0, ring, arms.abs().sum(1), "amax")
    thin = fans <= THIN * lengths
    owner = torch.arange(len(targets)).repeat_interleave(targets.rings.instance_offsets.diff())
    lost = torch.zeros(len(targets), dtype=torch.bool)
    lost[owner[thin]] = True
    if thin.any():
        index, ring_offsets = gather_ragged(offsets, (~thin).nonzero().squeeze(1))
        kept = offsets_of((~thin).long())
        rings = Rings(points[index], ring_offsets, kept[targets.rings.instance_offsets])
        targets = targets.replace(rings=rings)
    return targets, lost


def _cut(targets: Targets, sizes: Sizes, which: Bool[Tensor, " n"]) -> Targets:
    """Boxes and rings of these instances cut at the borders of their photos."""
    if not which.any():
        return targets
    reaching = select(targets, which)
    joined = concatenate([select(targets, ~which), _cut_all(reaching, sizes[reaching.owner])])
    return take(joined, joined.ids.argsort()).replace(owner=targets.owner)


def _cut_all(part: Targets, sizes: Sizes) -> Targets:
    """Boxes and rings cut at the borders of photos of these widths and heights, one an instance."""
    frames, n = sizes.flip(1).numpy(), len(part)
    x0, y0, x1, y1 = part.boxes.T
    corners = torch.stack([x0, y0, x1, y0, x1, y1, x0, y1], 1)
    if part.quads.shape[1]:
        corners = part.quads
    plain = Rings(corners.reshape(-1, 2), 4 * torch.arange(n + 1), torch.arange(n + 1))
    _, plain_boxes, _ = clip(_outlines(plain, sizes), frames)
    cut, boxes, _ = clip(_outlines(part.rings, sizes), frames)
    boxes = np.where(_has_rings(part).T.numpy(), boxes, plain_boxes)
    return part.replace(boxes=torch.from_numpy(boxes.T).float(), rings=outlines_to_rings(cut, n))


def _outlines(rings: Rings, sizes: Sizes) -> Outlines:
    counts = rings.ring_offsets[rings.instance_offsets].diff()
    points = _snap(rings.points, sizes.repeat_interleave(counts, 0))
    planes = np.ascontiguousarray(points.numpy().T, dtype=np.float64)
    return Outlines(planes, rings.ring_offsets.numpy(), rings.instance_offsets.numpy())


def _snap(points: Float32[Tensor, "*n 2"], limits: Tensor) -> Float32[Tensor, "*n 2"]:
    """Points that are outside by rounding noise moved onto the border."""
    inside = torch.minimum(points.clamp(min=0), limits)
    return torch.where((points - inside).abs() <= SNAP, inside, points)


def _hide_outside(
    keypoints: Keypoints, limits: Float32[Tensor, "n 2"]
) -> tuple[Keypoints, Bool[Tensor, " n"]]:
    """Keypoints with those outside their photo missing, (0, 0, 0), and which poses lost one."""
    position, flag = _snap(keypoints[..., :2], limits[:, None]), keypoints[..., 2:]
    inside = ((position >= 0) & (position <= limits[:, None])).all(2, keepdim=True)
    seen = (flag > 0) & inside
    shown = torch.where(seen, torch.cat([position, flag], 2), torch.zeros((), dtype=torch.float32))
    return shown, ((flag > 0) & ~seen).flatten(1).any(1)
