"""What is left of instances that something was laid over.

A picture is made of whole pixels, so what is left of an instance is a set of pixels, which decides
its box and its visible share. Its rings must also fill masks of other strides, whose centres lie
between pixels: they are cut on cells of half a pixel, one round each multiple of half a pixel,
where the centres of every stride lie. So at any stride the mask of what is left is, bit for bit,
the instance's mask less the mask of what covers it.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from fnpipe.ops.annotate import add_corners
from fnpipe.ops.points import bounds, gather_ragged
from fnpipe.ops.raster import crossing, edge_to_line, exclusive_sum, following, ragged, scan
from fnpipe.ops.trace import trace_mask
from fnpipe.types import Boxes, Keypoints, Rings, Targets


Cells = Bool[np.ndarray, "_ _"]
Windows = Int64[Tensor, "n 4"]
"""First column and row, last column and row and one more, in cells; the first two are even."""


class Left(NamedTuple):
    """What is left of one instance: its box, the share of its pixels, and its cells."""

    box: tuple[float, float, float, float]
    share: float
    rings: list[Tensor]


HIDDEN = Left((0.0, 0.0, 0.0, 0.0), 0.0, [])


def occlude(targets: Targets, cover: Rings) -> Targets:
    """Targets of a batch under ``cover``, an instance of rings an image: they lose what it hides.

    The sides of a box that changed are those of the pixels left, the others stay exact. ``visible``
    is multiplied by the share of the pixels that are left, and is 0 for what is hidden whole. A
    keypoint that is covered is labelled but hidden (1). A quad stays the whole rectangle. An
    instance without rings is taken to fill its quad or box, and gets no rings.
    """
    rows = _under(targets, cover)
    keypoints = _hide(targets, cover)
    if not len(rows):
        return targets.replace(keypoints=keypoints)
    shapes = outlines(targets, rows)
    boxes = bounds(shapes)
    frames = _windows(boxes)
    sheet, place = targets.owner[rows].unique(return_inverse=True)
    sheets = pick(cover, sheet)
    above = _windows(bounds(sheets))
    planes, covers = fill(shapes, frames), fill(sheets, above)
    found: dict[int, Left] = {}
    for i, row in enumerate(rows.tolist()):
        j = int(place[i])
        box = targets.boxes[row].tolist()
        left = _less(planes[i], frames[i].tolist(), covers[j], above[j].tolist(), box)
        if left is not None:
            found[row] = left
    return _replace(targets.replace(keypoints=keypoints), found)


def outlines(targets: Targets, rows: Int64[Tensor, " q"]) -> Rings:
    """The rings of some instances; of one that has none its quad, or else its box."""
    bare = (targets.rings.instance_offsets.diff() == 0).nonzero().squeeze(1)
    place = torch.arange(len(targets))
    place[bare] = len(targets) + torch.arange(len(bare))
    return pick(add_corners(targets, bare), place[rows])


def pick(rings: Rings, rows: Int64[Tensor, " q"]) -> Rings:
    """The rings of some instances, in the order asked for."""
    ring, instance_offsets = gather_ragged(rings.instance_offsets, rows)
    point, ring_offsets = gather_ragged(rings.ring_offsets, ring)
    return Rings(rings.points.index_select(0, point), ring_offsets, instance_offsets)


def fill(rings: Rings, windows: Windows) -> list[Cells]:
    """Which cells of its window each instance holds: the rule of :mod:`fnpipe.ops.raster`.

    Windows hold their instances, rings and a pixel round them (:func:`_windows`).
    """
    ring, _ = ragged(rings.ring_offsets.diff())
    x, y = rings.points.unbind(1)
    after = following(rings.ring_offsets)
    first, last = (
        (end * 2).ceil().long() for end in (torch.minimum(y, y[after]), torch.maximum(y, y[after]))
    )
    left, top, right, bottom = _windows(bounds(_apart(rings))).unbind(1)
    pitch, height = right - left, bottom - top
    base = exclusive_sum(height * pitch)
    edge, step = ragged(last - first)
    row, of = first[edge] + step, ring[edge]
    lines = (line[edge] for line in edge_to_line(x, y, x[after], y[after]))
    column = (crossing(row.to(torch.float32) * 0.5, *lines) * 2).ceil().long()
    cells = base[of] + (row - top[of]) * pitch[of] + column - left[of]
    words = torch.zeros(int((height * pitch).sum()) // 8 + 2, dtype=torch.int64)
    one = torch.ones(1, dtype=torch.int8).expand(len(cells))
    words.view(torch.int8).scatter_add_(0, cells, one)
    # A row of a closed ring is crossed an even number of times: none is left odd at its end.
    odd = scan(words).numpy().view(bool)
    planes = [np.zeros((b - t, r - le), bool) for le, t, r, b in windows.tolist()]
    owner, _ = ragged(rings.instance_offsets.diff())
    shapes = (column.tolist() for column in (owner, base, left, top, pitch, height))
    corners = windows[:, :2].tolist()
    for instance, start, x0, y0, columns, rows in zip(*shapes, strict=True):
        x0, y0 = x0 - corners[instance][0], y0 - corners[instance][1]
        part = odd[start : start + rows * columns].reshape(rows, columns)
        planes[instance][y0 : y0 + rows, x0 : x0 + columns] |= part
    return planes


def _apart(rings: Rings) -> Rings:
    """Every ring as an instance."""
    return rings.replace(instance_offsets=torch.arange(len(rings.ring_offsets)))


def _windows(boxes: Boxes) -> Windows:
    """All cells of boxes, and a pixel round them: an instance that was cut is as wide as cells."""
    low, high = boxes[:, :2].floor() - 1, boxes[:, 2:].ceil() + 1
    return torch.cat([low * 2, high * 2 + 1], 1).to(torch.int64)


def _under(targets: Targets, cover: Rings) -> Int64[Tensor, " q"]:
    """The instances whose box meets that of a ring that covers their image."""
    sheets = bounds(_apart(cover))
    found = []
    for image in (cover.instance_offsets.diff() > 0).nonzero().flatten().tolist():
        first, last = torch.searchsorted(targets.owner, torch.tensor([image, image + 1])).tolist()
        mine = slice(*cover.instance_offsets[image : image + 2].tolist())
        x0, y0, x1, y1 = targets.boxes[first:last, :, None].unbind(1)
        left, top, right, bottom = sheets[mine].unbind(1)
        met = (x0 < right) & (x1 > left) & (y0 < bottom) & (y1 > top)
        found.append(met.any(1).nonzero().squeeze(1) + first)
    return torch.cat([targets.owner.new_zeros(0), *found])


def _hide(targets: Targets, cover: Rings) -> Keypoints:
    """Keypoints, those that are covered marked as hidden: the pixel that one is in decides."""
    keypoints = targets.keypoints
    n, k, _ = keypoints.shape
    if not (n * k and len(cover.points)):
        return keypoints
    flat = keypoints.reshape(-1, 3)
    seen = (flat[:, 2] == 2).nonzero().squeeze(1)
    images, place = targets.owner[seen // k].unique(return_inverse=True)
    windows = _windows(bounds(pick(cover, images)))
    planes = fill(pick(cover, images), windows)
    at = flat[seen, :2].floor().long() * 2 + 1 - windows[place, :2]
    inside = ((at >= 0) & (at < (windows[:, 2:] - windows[:, :2])[place])).all(1)
    hidden = [
        row
        for row, j, (x, y), there in zip(
            seen.tolist(), place.tolist(), at.tolist(), inside.tolist(), strict=True
        )
        if there and planes[j][y, x]
    ]
    made = flat.clone()
    made[hidden, 2] = 1.0
    return made.view_as(keypoints)


def _less(
    plane: Cells, window: list[int], cover: Cells, above: list[int], box: list[float]
) -> Left | None:
    """An instance without the cells that a cover hides, or None where it hides none of them."""
    left, top = max(window[0], above[0]), max(window[1], above[1])
    right, bottom = min(window[2], above[2]), min(window[3], above[3])
    here = np.s_[top - window[1] : bottom - window[1], left - window[0] : right - window[0]]
    there = np.s_[top - above[1] : bottom - above[1], left - above[0] : right - above[0]]
    if left >= right or top >= bottom:
        return None
    hidden = plane[here] & cover[there]
    lost = np.count_nonzero(hidden)
    if not lost:
        return None
    if lost == np.count_nonzero(plane):
        return HIDDEN
    rest = plane.copy()
    rest[here] ^= hidden
    # Windows begin at even cells, so pixels have their centres at odd ones.
    before, after = (np.ascontiguousarray(cells[1::2, 1::2]) for cells in (plane, rest))
    if not before.any():  # too thin for a pixel's centre: its cells decide
        before, after = plane, rest
    share = np.count_nonzero(after) / np.count_nonzero(before)
    if not share:
        return HIDDEN
    if before is not plane:
        old, new = _extent(before), _extent(after)
        start = window[0] // 2, window[1] // 2, window[0] // 2, window[1] // 2
        moved = zip(box, old, new, start, strict=True)
        box = [side if a == b else float(b + s) for side, a, b, s in moved]
    origin = torch.tensor(window[:2], dtype=torch.float32) - 0.5
    rings = [(ring + origin) * 0.5 for ring in trace_mask(torch.from_numpy(rest))]
    return Left((box[0], box[1], box[2], box[3]), share, rings)


def _extent(mask: Cells) -> tuple[int, int, int, int]:
    """The bounds of what is set."""
    columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _replace(targets: Targets, found: dict[int, Left]) -> Targets:
    """Targets with the instances of ``found`` as they are now."""
    if not found:
        return targets
    boxes, visible = targets.boxes.clone(), targets.visible.clone()
    rings, counts = [], targets.rings.instance_offsets.diff()
    rows = torch.arange(len(targets))
    for i, (row, left) in enumerate(found.items()):
        boxes[row] = torch.tensor(left.box)
        visible[row] *= left.share
        mine = left.rings if counts[row] else []
        rings.append(mine)
        rows[row] = len(targets) + i
    every = [ring for mine in rings for ring in mine]
    joined = _join(targets.rings, every, [len(mine) for mine in rings])
    return targets.replace(boxes=boxes, visible=visible, rings=pick(joined, rows))


def _join(rings: Rings, more: list[Tensor], counts: list[int]) -> Rings:
    """Rings with instances appended, ``counts[i]`` of ``more`` each."""
    lengths = torch.tensor([len(ring) for ring in more], dtype=torch.int64)
    ends = torch.tensor(counts, dtype=torch.int64).cumsum(0)
    return Rings(
        torch.cat([rings.points, *more]),
        torch.cat([rings.ring_offsets, rings.ring_offsets[-1] + lengths.cumsum(0)]),
        torch.cat([rings.instance_offsets, rings.instance_offsets[-1] + ends]),
    )
