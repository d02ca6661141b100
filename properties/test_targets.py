"""Targets are exact, and those of an image do not depend on the batch that it is in.

The oracle knows nothing of clamping: it slices the plane into slabs between all x at which
anything happens, in fractions, and pairs the edges of each slab by even-odd.
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from fnpipe.ops import points
from fnpipe.ops.annotate import annotate, concatenate
from fnpipe.ops.points import (
    Outlines,
    canonical_quads,
    clip,
    fit_rectangles,
    project,
    quads_to_rboxes,
    rboxes_to_quads,
    transform,
)
from fnpipe.ops.ragged import offsets_of
from fnpipe.testing import assert_same_bits
from fnpipe.types import Plan, Rings, Targets


Point = tuple[Fraction, Fraction]
Ring = list[tuple[float, float]]

SIZE = (30, 40)
"""Height, width of the frame."""
ROUNDING = 1e-9
"""Float64 at the coordinates used here, some hundreds of pixels, a few operations deep."""

many = settings(max_examples=300, deadline=None)
some = settings(max_examples=60, deadline=None)
hunt = {"database": None, "derandomize": True, "phases": [Phase.generate]}
"""For a planted bug: found again each time, not made small."""


# The oracle


def common_area(
    ring: Ring | list[Point], size: tuple[int, int]
) -> tuple[Fraction, list[Fraction] | None]:
    """Exact area and bounds of what a simple ring and a frame have in common."""
    height, width = Fraction(size[0]), Fraction(size[1])
    corners = [(Fraction(x), Fraction(y)) for x, y in ring]
    edges = [
        (a, b) if a[0] < b[0] else (b, a)
        for a, b in zip(corners, corners[1:] + corners[:1], strict=True)
        if a[0] != b[0]
    ]
    stops = {Fraction(0), width, *(x for x, _ in corners)}
    stops |= {cross for edge in edges for y in (0, height) for cross in crossings(edge, y)}
    inside = sorted(x for x in stops if 0 <= x <= width)
    area, box = Fraction(0), None
    for left, right in pairwise(inside):
        across = sorted(
            (height_at(e, left) + height_at(e, right), height_at(e, left), height_at(e, right))
            for e in edges
            if e[0][0] <= left and e[1][0] >= right
        )
        for (_, a, b), (_, c, d) in zip(across[::2], across[1::2], strict=True):
            a, b, c, d = (min(max(y, Fraction(0)), height) for y in (a, b, c, d))
            piece = ((c - a) + (d - b)) / 2 * (right - left)
            area += piece
            if piece:
                box = hull(box, [left, min(a, b), right, max(c, d)])
    return area, box


def crossings(edge: tuple[Point, Point], level: Fraction | int) -> list[Fraction]:
    (x0, y0), (x1, y1) = edge
    return [x0 + (level - y0) / (y1 - y0) * (x1 - x0)] if (y0 - level) * (y1 - level) < 0 else []


def height_at(edge: tuple[Point, Point], x: Fraction) -> Fraction:
    (x0, y0), (x1, y1) = edge
    return y0 + (x - x0) / (x1 - x0) * (y1 - y0)


def hull(box: list[Fraction] | None, other: list[Fraction]) -> list[Fraction]:
    if box is None:
        return other
    return [*map(min, box[:2], other[:2]), *map(max, box[2:], other[2:])]


def whole_area(ring: Ring | list[Point]) -> Fraction:
    corners = [(Fraction(x), Fraction(y)) for x, y in ring]
    pairs = zip(corners, corners[1:] + corners[:1], strict=True)
    return abs(sum((a * d - c * b for (a, b), (c, d) in pairs), Fraction(0))) / 2


def holds(ring: Ring, x: Fraction, y: Fraction) -> bool:
    """Whether a point lies in a ring, by even-odd."""
    corners = [(Fraction(a), Fraction(b)) for a, b in ring]
    odd = False
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        if (y0 <= y) != (y1 <= y):
            odd ^= x0 + (y - y0) / (y1 - y0) * (x1 - x0) > x
    return odd


# Shapes


COMPASS = [
    *[(4, 0), (4, 1), (4, 3), (3, 4), (1, 4), (0, 4), (-1, 4), (-3, 4), (-4, 3), (-4, 1)],
    *[(-4, 0), (-4, -1), (-4, -3), (-3, -4), (-1, -4), (0, -4), (1, -4), (3, -4), (4, -3), (4, -1)],
]
quarters = st.integers(-160, 320).map(lambda n: n / 4)
spans = st.integers(1, 120).map(lambda n: n / 4)


@st.composite
def stars(draw: st.DrawFn) -> Ring:
    """Star shaped: concave, and anywhere round the frame."""
    x, y = draw(quarters), draw(quarters)
    reach = draw(st.lists(st.integers(1, 60), min_size=20, max_size=20))
    return [(x + a * r / 8, y + b * r / 8) for (a, b), r in zip(COMPASS, reach, strict=True)]


@st.composite
def combs(draw: st.DrawFn) -> Ring:
    """Between a lower and an upper chain over one row of x: deep teeth, many pieces."""
    n = draw(st.integers(2, 8))
    x, y = draw(quarters), draw(quarters)
    steps = draw(st.lists(st.tuples(spans, spans, spans), min_size=n, max_size=n))
    xs = np.cumsum([x, *(step[0] for step in steps[1:])]).tolist()
    upper = [(a, y - step[1]) for a, step in zip(xs, steps, strict=True)]
    lower = [(a, y + step[2]) for a, step in zip(xs, steps, strict=True)]
    return upper + lower[::-1]


@st.composite
def hooks(draw: st.DrawFn) -> Ring:
    """A rectilinear C: it may wrap round the frame, touch its sides, or send its ends inside."""
    x0, y0 = draw(st.integers(-20, 41)), draw(st.integers(-20, 31))
    a, b, c, d = (draw(st.integers(1, 40)) for _ in range(4))
    tail, end = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    return [
        *[(x0, y0), (x0 + a + tail, y0), (x0 + a + tail, y0 + b), (x0 + a, y0 + b)],
        *[(x0 + a, y0 + b + c), (x0 + a + end, y0 + b + c), (x0 + a + end, y0 + b + c + d)],
        *[(x0, y0 + b + c + d)],
    ]


@st.composite
def spelled(draw: st.DrawFn, rings: st.SearchStrategy[Ring]) -> Ring:
    """A ring from any start, in either direction, with a vertex given twice."""
    ring = draw(rings)
    start, twice = (draw(st.integers(0, len(ring) - 1)) for _ in range(2))
    ring = ring[start:] + ring[:start]
    ring.insert(twice, ring[twice])
    return ring[::-1] if draw(st.booleans()) else ring


simple_rings = spelled(st.one_of(stars(), combs(), hooks()))
tangles = st.lists(st.tuples(quarters, quarters), min_size=3, max_size=12)


def outlines(rings: list[Ring]) -> Outlines:
    """Every ring an instance of its own."""
    planes = np.array([p for ring in rings for p in ring], dtype=np.float64).reshape(-1, 2).T
    starts = np.cumsum([0, *map(len, rings)])
    return Outlines(np.ascontiguousarray(planes), starts, np.arange(len(rings) + 1))


# What a frame leaves of a ring


def assert_exact(ring: Ring) -> None:
    area, box = common_area(ring, SIZE)
    _, boxes, share = clip(outlines([ring]), SIZE)
    assert abs(share[0] - float(area / whole_area(ring))) <= ROUNDING
    if box is None:
        # An edge through a corner of the frame may leave a sliver that rounding made.
        assert (boxes[2:, 0] - boxes[:2, 0]).min() <= ROUNDING
    else:
        assert np.abs(boxes[:, 0] - np.array(box, dtype=float)).max() <= ROUNDING


@many
@given(ring=simple_rings)
def test_bounds_and_area_in_the_frame_are_exact(ring: Ring):
    assert_exact(ring)


@many
@given(ring=st.one_of(simple_rings, tangles), at=st.tuples(st.integers(0, 39), st.integers(0, 29)))
def test_a_clipped_ring_fills_the_same_points(ring: Ring, at: tuple[int, int]):
    """Also one that crosses itself; thirds and sevenths keep the points off its edges."""
    part, _, _ = clip(outlines([ring]), SIZE)
    pieces = [part.planes[:, a:b].T.tolist() for a, b in pairwise(part.rings)]
    for dx, dy in ((Fraction(1, 3), Fraction(1, 7)), (Fraction(4, 7), Fraction(2, 3))):
        x, y = at[0] + dx, at[1] + dy
        assert any(holds(piece, x, y) for piece in pieces) == holds(ring, x, y)
    assert (part.planes >= 0).all()
    assert (part.planes <= np.array([[SIZE[1]], [SIZE[0]]])).all()


def pass_by_vertices(planes, rings, frame):
    return planes, rings


def leave_open(rings):
    return np.minimum(np.arange(1, rings[-1] + 1), np.repeat(rings[1:] - 1, np.diff(rings)))


def forget_corners(along, leaves, rings):
    return np.zeros((4, len(rings) - 1), dtype=bool)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_cut", pass_by_vertices),
        ("_successors", leave_open),
        ("_reached_by_corners", forget_corners),
    ],
)
def test_the_law_of_frames_catches(name: str, bug: Callable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(points, name, bug)
    with pytest.raises(AssertionError):
        settings(many, **hunt)(given(ring=simple_rings)(assert_exact))()


@many
@given(
    start=st.tuples(quarters, quarters),
    sides=st.tuples(spans, spans, spans, spans),
    tilt=st.tuples(st.integers(-8, 8), st.integers(-8, 8)),
)
def test_what_lies_behind_the_camera_is_cut_off(start, sides, tilt):
    """Any part of a parallelogram may be behind; the rest is divided only after the cut."""
    (x, y), (a, b, c, d), (g, h) = start, sides, (t / 64 for t in tilt)
    ring = [(x, y), (x + a, y + b), (x + a - c, y + b + d), (x - c, y + d)]
    front = cut_front([(Fraction(u), Fraction(v), Fraction(1 + g * u + h * v)) for u, v in ring])
    area, box = common_area([(u / w, v / w) for u, v, w in front], SIZE)
    maps = torch.tensor([[[1, 0, 0], [0, 1, 0], [g, h, 1]]], dtype=torch.float64)
    offsets = torch.tensor([0, 4])
    moved = transform(torch.tensor(ring), maps, offsets[1:])
    _, boxes, share = clip(project(moved, offsets, torch.tensor([0, 1])), SIZE)
    if box is None:
        assert share[0] <= ROUNDING
    else:
        assert abs(share[0] - area / whole_area([(u / w, v / w) for u, v, w in front])) <= ROUNDING
        assert np.abs(boxes[:, 0] - np.array(box, dtype=float)).max() <= 1e-6


def cut_front(corners: list[tuple[Fraction, Fraction, Fraction]]):
    """A convex ring's part with weight of at least ``NEAR``."""
    near, kept = Fraction(points.NEAR), []
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        if a[2] >= near:
            kept.append(a)
        if (a[2] >= near) != (b[2] >= near):
            t = (near - a[2]) / (b[2] - a[2])
            kept.append(tuple(p + t * (q - p) for p, q in zip(a, b, strict=True)))
    return kept


# Oriented boxes


@many
@given(corners=st.lists(st.tuples(quarters, quarters), min_size=4, max_size=4))
def test_a_fitted_rectangle_is_the_least_round_four_corners(corners: Ring):
    quad = np.array(corners)
    fitted = fit_rectangles(torch.tensor(corners, dtype=torch.float32)[None])[0].double().numpy()
    longest = max(np.diff(fitted, axis=0), key=np.linalg.norm)
    angle = np.arctan2(longest[1:], longest[:1])
    held, own = spread(quad, angle), spread(fitted, angle)
    assert np.abs(held - own).max() <= 1e-3  # the angle of float32 corners
    assert own.prod() <= spread(quad, np.linspace(0, np.pi / 2, 1000)).prod(1).min() + 0.1


@many
@given(
    centre=st.tuples(quarters, quarters),
    sides=st.tuples(spans, spans),
    angle=st.floats(-7, 7, width=32),
)
def test_a_rectangle_has_one_spelling(centre, sides, angle):
    """From any corner, in either direction; there and back; as it is fitted again; mirrored twice.

    Corners are float32 at some hundred pixels, whence the 1e-3.
    """
    (quad,) = rboxes_to_quads(torch.tensor([[*centre, *sides, angle]]))
    spellings = [q.roll(k, 0) for q in (quad, quad.flip(0)) for k in range(4)]
    canonical = canonical_quads(torch.stack(spellings))
    assert (canonical == canonical[0]).all()
    (x, y, width, height, turn) = quads_to_rboxes(canonical[:1])[0].tolist()
    assert -1e-3 / width <= turn < np.pi / 2
    assert abs(complex(x, y) - complex(*centre)) <= 1e-3
    assert np.abs(np.subtract(sorted((width, height)), sorted(sides))).max() <= 1e-3
    again = canonical_quads(rboxes_to_quads(quads_to_rboxes(canonical[:1])))
    fitted = fit_rectangles(quad[None])
    mirror = torch.tensor([-1.0, 1.0])
    twice = canonical_quads(canonical_quads(canonical[:1] * mirror) * mirror)
    for other in (again, fitted, twice):
        assert_same_corners(other[0], canonical[0])


def assert_same_corners(a: torch.Tensor, b: torch.Tensor) -> None:
    """In order, but for the start: of two equally high corners rounding may choose either."""
    assert min((a.roll(k, 0) - b).abs().max() for k in range(4)) <= 1e-3


def test_the_law_of_spellings_sees_another_rectangle():
    """Row 72: mirrored in x, 30 degrees become 150 and not 60."""
    a, b = rboxes_to_quads(torch.tensor([[70.0, 40, 20, 10, d * np.pi / 180] for d in (150, 60)]))
    mirrored = rboxes_to_quads(torch.tensor([[30.0, 40, 20, 10, np.pi / 6]]))
    mirrored = canonical_quads(mirrored * torch.tensor([-1.0, 1]) + torch.tensor([100.0, 0]))[0]
    assert_same_corners(canonical_quads(a[None])[0], mirrored)
    with pytest.raises(AssertionError):
        assert_same_corners(canonical_quads(b[None])[0], mirrored)


def spread(points_, angles):
    """Width and height of points seen along each angle."""
    along = np.stack((np.cos(angles), np.sin(angles)), 1) @ points_.T
    across = np.stack((-np.sin(angles), np.cos(angles)), 1) @ points_.T
    return np.stack((np.ptp(along, axis=1), np.ptp(across, axis=1)), 1)


# An image is itself in any batch


# Facts are drawn, values are built in the test: beartype picks what it checks at random, which
# Hypothesis does not allow inside a strategy.
seeds = st.integers(0, 2**32)
tables = st.tuples(
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
    st.sampled_from((0, 3)),
    st.sampled_from((0, 4)),
    seeds,
)
quartets = st.lists(st.integers(-1, 4), min_size=4, max_size=4)
plans = st.tuples(st.lists(quartets, min_size=1, max_size=5), seeds)


def build_table(counts: list[int], k: int, corners: int, seed: int) -> tuple[Targets, torch.Tensor]:
    """Five photos with instances of every kind: many rings, one, none; quads or not; poses."""
    n, generator = sum(counts), torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator) * 60 - 10

    instance_offsets = offsets_of(torch.randint(0, 4, (n,), generator=generator))
    rings = int(instance_offsets[-1])
    ring_offsets = offsets_of(torch.randint(3, 30, (rings,), generator=generator))
    flags = torch.randint(0, 3, (n, k, 1), generator=generator)
    a, b = uniform(n, 2), uniform(n, 2)
    targets = Targets(
        boxes=torch.cat((torch.minimum(a, b), torch.maximum(a, b)), 1),
        labels=torch.arange(n) % 3,
        owner=torch.arange(5).repeat_interleave(torch.tensor(counts)),
        ids=torch.arange(n),
        ignore=torch.arange(n) % 5 == 0,
        visible=torch.ones(n),
        keypoints=torch.cat((uniform(n, k, 2), flags.float()), 2),
        quads=uniform(n, corners, 2),
        rings=Rings(uniform(int(ring_offsets[-1]), 2), ring_offsets, instance_offsets),
    )
    return targets, offsets_of(torch.tensor(counts))


def build_plan(sources: list[list[int]], seed: int) -> Plan:
    """Images of four tiles: empty ones, affine, mirrored and in perspective."""
    b, generator = len(sources), torch.Generator().manual_seed(seed)
    noise = torch.rand(b, 4, 3, 3, generator=generator, dtype=torch.float64) - 0.5
    scale = torch.tensor([[2, 1, 40], [1, 2, 40], [0.04, 0.04, 0]], dtype=torch.float64)
    forward = torch.eye(3, dtype=torch.float64) + noise * scale
    forward[:, ::2, 2, :2] = 0
    return Plan(
        ids=torch.arange(b),
        epochs=torch.zeros(b, dtype=torch.int64),
        sources=torch.tensor(sources),
        maps=torch.zeros(b, 4, 3, 3),
        forward=forward,
        splits=torch.zeros(b, 2, 1, 3),
        mirror=torch.zeros(b, 2, dtype=torch.bool),
        colors=(),
        size=SIZE,
    )


def one_image(plan: Plan, image: int) -> Plan:
    return pytree.tree_map(lambda t: t[image : image + 1], plan)


def assert_alone_as_together(table, images, min_visible: float) -> None:
    data, plan = build_table(*table), build_plan(*images)

    def run(part: Plan) -> Targets:
        return annotate(part, *data, keypoint_flip=(0, 2, 1), min_visible=min_visible, min_side=1.0)

    alone = [run(one_image(plan, image)) for image in range(len(plan))]
    assert_same_bits(run(plan), concatenate(alone))


any_batch = given(table=tables, images=plans, min_visible=st.sampled_from((0.0, 0.3)))


@some
@any_batch
def test_a_batch_is_its_images_one_by_one(table, images, min_visible: float):
    assert_alone_as_together(table, images, min_visible)


def trust_the_first_map(points_, maps, counts):
    """Perspective is skipped for all where the first map has none."""
    if len(maps) and maps[0, 2].tolist() == [0, 0, 1]:
        maps = torch.cat((maps[:, :2], maps[:1, 2:].expand(len(maps), 1, 3)), 1)
    return transform(points_, maps, counts)


def test_the_law_of_batches_catches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fnpipe.ops.annotate.transform", trust_the_first_map)
    with pytest.raises(AssertionError):
        settings(some, **hunt)(any_batch(assert_alone_as_together))()


@some
@given(table=tables, images=plans)
def test_targets_keep_their_promises(table, images):
    """In the frame, in order, of one length, and a box for what is left of an instance."""
    flip = (0, 2, 1)
    targets = annotate(build_plan(*images), *build_table(*table), keypoint_flip=flip)
    height, width = SIZE
    boxes, poses = targets.boxes, targets.keypoints
    assert (boxes >= 0).all()
    assert (boxes <= torch.tensor([width, height, width, height])).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert (targets.owner.diff() >= 0).all()
    assert ((targets.visible > 0) & (targets.visible <= 1)).all()
    assert (poses[poses[..., 2] == 0] == 0).all()
    assert targets.rings.instance_offsets.shape == (len(targets) + 1,)
    assert {len(t) for t in (boxes, targets.labels, targets.ids, poses, targets.quads)} == {
        len(boxes)
    }
    own = targets.rings.instance_offsets.diff() > 0
    hulls = points.bounds(targets.rings)
    assert (hulls[own, :2] <= boxes[own, :2]).all()
    assert (hulls[own, 2:] >= boxes[own, 2:]).all()
