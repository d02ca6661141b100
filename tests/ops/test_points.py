"""Points under homographies, rings in a frame, and the one spelling of an oriented box."""

import math

import numpy as np
import pytest
import torch

from fnpipe.ops.points import (
    Outlines,
    bounds,
    canonical_quads,
    check_keypoint_flip,
    clip,
    fit_rectangles,
    outlines_to_rings,
    project,
    quads_to_rboxes,
    rboxes_to_quads,
    transform,
)
from fnpipe.types import ArgumentError, Rings


Ring = list[tuple[float, float]]

SQUARE: Ring = [(10, 10), (90, 10), (90, 90), (10, 90)]


def outlines(*instances: list[Ring]) -> Outlines:
    rings = [ring for instance in instances for ring in instance]
    planes = np.array([p for ring in rings for p in ring], dtype=np.float64).reshape(-1, 2).T
    return Outlines(
        np.ascontiguousarray(planes),
        np.cumsum([0, *map(len, rings)]),
        np.cumsum([0, *map(len, instances)]),
    )


def clipped(ring: Ring, height: int, width: int) -> tuple[list[list[float]], list[float], float]:
    """Vertices, box and share of one ring in a frame."""
    part, boxes, share = clip(outlines([ring]), (height, width))
    return part.planes.T.tolist(), boxes[:, 0].tolist(), float(share[0])


def rbox(x: float, y: float, width: float, height: float, degrees: float) -> torch.Tensor:
    return torch.tensor([[x, y, width, height, math.radians(degrees)]])


def in_degrees(quads: torch.Tensor) -> list[float]:
    x, y, width, height, angle = quads_to_rboxes(quads)[0].tolist()
    return [x, y, width, height, math.degrees(angle)]


# Maps


def test_each_map_moves_its_own_run_of_points():
    maps = torch.tensor(
        [[[2, 0, 1], [0, 3, 0], [0, 0, 1]], [[0, -1, 0], [1, 0, 0], [0, 0, 1]]],
        dtype=torch.float64,
    )
    points = torch.tensor([[1.0, 1.0], [2.0, 0.5], [3.0, 4.0]])
    moved = transform(points, maps, torch.tensor([2, 1]))
    assert moved.T.tolist() == [[3, 3, 1], [5, 1.5, 1], [-4, 3, 1]]


def test_an_affine_map_gives_the_same_bits_beside_a_perspective_one():
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 3, 3, generator=generator, dtype=torch.float64)
    maps[0, 2] = torch.tensor([0.0, 0.0, 1.0])
    points = torch.rand(14, 2, generator=generator) * 640
    together = transform(points, maps, torch.tensor([7, 7]))
    alone = transform(points[:7], maps[:1], torch.tensor([7]))
    assert together[:, :7].numpy().tobytes() == alone.numpy().tobytes()


def test_project_divides_by_the_weight():
    maps = torch.tensor([[[1, 0, 0], [0, 1, 0], [0.5, 0, 1]]], dtype=torch.float64)
    moved = transform(torch.tensor([[2.0, 4.0], [0.0, 3.0]]), maps, torch.tensor([2]))
    assert project(moved, torch.tensor([0, 2]), torch.tensor([0, 1])).planes.T.tolist() == [
        [1, 2],
        [0, 3],
    ]


def seen_under(third_row: list[float], ring: Ring) -> Outlines:
    maps = torch.tensor([[[1, 0, 0], [0, 1, 0], third_row]], dtype=torch.float64)
    offsets = torch.tensor([0, len(ring)])
    points = torch.tensor(ring, dtype=torch.float32)
    return project(transform(points, maps, offsets[1:]), offsets, torch.tensor([0, 1]))


def test_a_ring_is_cut_where_it_goes_behind_the_camera():
    """Weight 1 - x / 64: the right half is behind, and the left half reaches far to the right."""
    seen = seen_under([-1 / 64, 0, 1], [(32, 8), (96, 8), (96, 24), (32, 24)])
    _, boxes, share = clip(seen, (100, 100))
    assert seen.planes[0].min() == 64
    assert boxes[:, 0].tolist() == pytest.approx([64, 16, 100, 24 * (1 + 100 / 64)], rel=1e-12)
    assert 0 < share[0] < 1e-6


def test_a_ring_wholly_behind_the_camera_is_gone():
    seen = seen_under([0, 0, -1], SQUARE)
    assert seen.planes.shape == (2, 0)
    assert clip(seen, (100, 100))[2].tolist() == [0]


# Rings in a frame


def test_case_57_a_box_without_a_vertex_in_the_frame():
    vertices, box, share = clipped([(-10, 50), (50, -10), (110, 50), (50, 110)], 100, 100)
    assert box == [0, 0, 100, 100]
    assert share == pytest.approx(6800 / 7200, rel=1e-15)
    assert vertices == [
        *[[0, 40], [40, 0], [60, 0], [100, 40]],
        *[[100, 60], [60, 100], [40, 100], [0, 60]],
    ]


def test_case_59_the_closing_edge_counts():
    vertices, box, share = clipped([(x, y - 40) for x, y in SQUARE], 20, 100)
    assert box == [10, 0, 90, 20]
    assert share == 0.25
    assert sorted(vertices) == [[10, 0], [10, 20], [90, 0], [90, 20]]


def test_case_39_a_side_of_nine_covers_nine_pixels():
    """Edge convention: 9 x 9 of 10 x 10, where counting vertices would make it 100 of 121."""
    assert clipped([(0, 0), (10, 0), (10, 10), (0, 10)], 9, 9)[2] == 0.81


def test_case_41_a_donut_keeps_its_hole_and_its_vertices():
    turn = np.linspace(0, 2 * np.pi, 1490)
    hole = np.stack((40 - 20 * np.sin(turn), 40 - 20 * np.cos(turn)), 1).tolist()
    donut = [(40, 0), (80, 0), (80, 80), (0, 80), (0, 0), (40, 0), *map(tuple, hole)]
    exact = 80 * 80 - 0.5 * 1489 * 400 * math.sin(2 * math.pi / 1489)
    vertices, box, share = clipped(donut, 80, 80)
    assert (len(vertices), box, share) == (len(donut), [0, 0, 80, 80], 1)
    vertices, box, share = clipped(donut, 40, 80)
    assert box == [0, 0, 80, 40]
    assert share == pytest.approx(0.5, abs=1e-3)
    x, y = np.array(vertices).T
    area = abs(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)) / 2
    assert area == pytest.approx(share * exact, rel=1e-12)


def test_a_ring_inside_is_left_alone_even_if_it_touches_every_side():
    ring: Ring = [(50, 0), (100, 50), (50, 100), (0, 50)]
    assert clipped(ring, 100, 100) == ([list(map(float, p)) for p in ring], [0, 0, 100, 100], 1)


def test_a_ring_round_the_whole_frame_becomes_the_frame():
    vertices, box, share = clipped([(-50, -50), (150, -50), (150, 150), (-50, 150)], 100, 100)
    assert vertices == [[0, 0], [100, 0], [100, 100], [0, 100]]
    assert (box, share) == ([0, 0, 100, 100], 0.25)


def test_a_corner_of_the_frame_belongs_to_the_box():
    """A triangle over the top right corner, of whose edges only one enters the frame."""
    vertices, box, share = clipped([(80, -10), (120, -10), (120, 30)], 100, 100)
    assert sorted(vertices) == [[90, 0], [100, 0], [100, 10]]
    assert (box, share) == ([90, 0, 100, 10], 50 / 800)


@pytest.mark.parametrize(
    "ring",
    [
        [(100, 20), (120, 20), (120, 40), (100, 40)],
        [(20, -30), (60, -30), (60, 0), (20, 0)],
        [(100, 100), (120, 100), (120, 120), (100, 120)],
        [(90, -10), (120, -10), (120, 20)],
        [(110, 50), (150, 90), (110, 90)],
        [(-5, 60), (-5, -5), (60, -5), (60, -30), (-30, -30), (-30, 60)],
    ],
    ids=["beside", "above", "corner to corner", "edge at a corner", "apart", "round a corner"],
)
def test_a_ring_that_only_touches_the_frame_has_no_box(ring: Ring):
    assert clipped(ring, 100, 100) == ([], [0, 0, 0, 0], 0)


def test_a_ring_that_passes_round_the_frame_has_no_box():
    """A C that holds the frame in its arms: its hull covers everything."""
    inner: Ring = [(120, -10), (-10, -10), (-10, 110), (120, 110)]
    outer: Ring = [(120, 120), (-20, 120), (-20, -20), (120, -20)]
    assert clipped(inner + outer, 100, 100) == ([], [0, 0, 0, 0], 0)


def test_two_pieces_of_one_ring_are_both_in_the_box():
    """A U whose bow is above the frame and whose feet stand in it."""
    ring: Ring = [
        (10, -20),
        (50, -20),
        (50, 30),
        (40, 30),
        (40, -10),
        (20, -10),
        (20, 20),
        (10, 20),
    ]
    _, box, share = clipped(ring, 100, 100)
    assert box == [10, 0, 50, 30]
    assert share == pytest.approx((200 + 300) / (200 + 300 + 40 * 10 + 10 * 10 * 2), rel=1e-12)


def test_rings_of_an_instance_add_and_lost_ones_go():
    inside: Ring = [(10, 10), (20, 10), (20, 20), (10, 20)]
    half: Ring = [(-10, 40), (10, 40), (10, 50), (-10, 50)]
    away: Ring = [(200, 0), (210, 0), (210, 10), (200, 10)]
    shape = outlines([inside, away, half], [], [away], [inside])
    part, boxes, share = clip(shape, (100, 100))
    assert part.instances.tolist() == [0, 2, 2, 2, 3]
    assert part.rings.tolist() == [0, 4, 8, 12]
    assert boxes.T.tolist() == [[0, 10, 20, 50], [0] * 4, [0] * 4, [10, 10, 20, 20]]
    assert share.tolist() == [0.5, 0, 0, 1]


def test_a_line_has_no_share():
    assert clipped([(-10, -10), (50, 50), (20, 20)], 100, 100)[2] == 0


def test_nothing_in_nothing_out():
    part, boxes, share = clip(outlines(), (10, 10))
    assert part.planes.shape == (2, 0)
    assert boxes.shape == (4, 0)
    assert share.shape == (0,)


def test_bounds_by_instance():
    points = torch.tensor([[1.0, 5], [2, 3], [0, 4], [7, 7], [8, 8], [9, 6]])
    rings = Rings(points, torch.tensor([0, 3, 6]), torch.tensor([0, 2, 2, 2]))
    assert bounds(rings).tolist() == [[0, 3, 9, 8], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_rings_of_the_first_instances():
    rings = outlines_to_rings(outlines([SQUARE], [], [SQUARE, SQUARE]), 2)
    assert rings.points.dtype == torch.float32
    assert rings.points.tolist() == [list(p) for p in SQUARE]
    assert rings.ring_offsets.tolist() == [0, 4]
    assert rings.instance_offsets.tolist() == [0, 1, 1]


# Oriented boxes


def test_rboxes_lead_to_quads_and_back():
    boxes = torch.tensor([[50.0, 40, 30, 10, -3.0], [5, 6, 7, 8, 0], [100, 20, 64, 2, 1.5]])
    torch.testing.assert_close(quads_to_rboxes(rboxes_to_quads(boxes)), boxes, atol=1e-5, rtol=1e-5)
    flat = rboxes_to_quads(torch.tensor([[50.0, 40, 30, 10, 0]]))
    assert flat.tolist() == [[[35, 35], [65, 35], [65, 45], [35, 45]]]


def test_rboxes_do_not_depend_on_their_neighbours():
    boxes = torch.rand(37, 5, generator=torch.Generator().manual_seed(0)) * 6
    quads = rboxes_to_quads(boxes)
    alone = torch.cat([rboxes_to_quads(box) for box in boxes.split(1)])
    assert quads.numpy().tobytes() == alone.numpy().tobytes()
    alone = torch.cat([quads_to_rboxes(quad) for quad in quads.split(1)])
    assert quads_to_rboxes(quads).numpy().tobytes() == alone.numpy().tobytes()


def test_case_49_eight_spellings_are_one_rectangle():
    quad = rboxes_to_quads(rbox(50, 50, 40, 20, 30))
    spellings = [q.roll(k, 1) for q in (quad, quad.flip(1)) for k in range(4)]
    for spell in (canonical_quads, fit_rectangles):
        one, *others = [spell(q).numpy().tobytes() for q in spellings]
        assert others == [one] * 7
    assert in_degrees(canonical_quads(quad)) == pytest.approx([50, 50, 40, 20, 30], abs=1e-4)
    assert canonical_quads(quad).sort(1).values.tolist() == quad.sort(1).values.tolist()


def test_canonical_corners_start_high_then_left_and_go_clockwise():
    quad = torch.tensor([[[0.0, 10], [30, 10], [30, 0], [0, 0]]])
    assert canonical_quads(quad).tolist() == [[[0, 0], [30, 0], [30, 10], [0, 10]]]
    tilted = rboxes_to_quads(rbox(50, 50, 40, 20, -30))
    assert in_degrees(canonical_quads(tilted)) == pytest.approx([50, 50, 20, 40, 60], abs=1e-4)


def test_rounding_does_not_turn_an_upright_box():
    """The right corner is higher by half of a float32 step at 640, and still not the first."""
    quad = torch.tensor([[[600.0, 400.00003], [640, 400], [640, 420], [600, 420]]])
    assert in_degrees(canonical_quads(quad)) == pytest.approx([620, 410, 40, 20, 0], abs=1e-4)


def test_case_49_a_trapezoid_gets_the_least_rectangle_round_it():
    quad = torch.tensor([[[0.0, 0], [42, 0], [40, 20], [0, 20]]])
    assert fit_rectangles(quad).tolist() == [[[0, 0], [42, 0], [42, 20], [0, 20]]]


def test_case_76_a_stretched_box_is_refitted():
    """The longer sides of the parallelogram, sqrt(2000) to (2, 1), carry the rectangle."""
    quad = rboxes_to_quads(rbox(50, 50, 40, 20, 45)) * torch.tensor([2.0, 1.0])
    fitted = fit_rectangles(quad)
    assert in_degrees(fitted) == pytest.approx(
        [100, 50, 82.2192, 25.2982, math.degrees(math.atan(0.5))], abs=1e-3
    )


def test_a_rectangle_stays_itself():
    boxes = torch.rand(500, 5, generator=torch.Generator().manual_seed(1)) * 100 + 1
    quads = canonical_quads(rboxes_to_quads(boxes))
    assert (fit_rectangles(quads) - quads).abs().max() <= 3e-5  # two float32 steps at 200


def test_a_point_is_a_rectangle_without_sides():
    quad = torch.full((1, 4, 2), 7.0)
    assert fit_rectangles(quad).tolist() == quad.tolist()


def test_no_oriented_box():
    empty = torch.zeros(0, 4, 2)
    assert fit_rectangles(empty).shape == (0, 4, 2)
    assert quads_to_rboxes(empty).shape == (0, 5)
    assert rboxes_to_quads(torch.zeros(0, 5)).shape == (0, 4, 2)


# The flip of a skeleton


@pytest.mark.parametrize("flip", [(), (0, 1), (0, 2, 2), (1, 2, 0), (0, 2, 3)])
def test_case_66_a_map_that_swaps_no_pairs_is_refused(flip: tuple[int, ...]):
    with pytest.raises(ArgumentError, match="keypoint_flip: wanted for 3 keypoints each of 0 to 2"):
        check_keypoint_flip(flip, 3)


def test_case_66_a_refusal_says_what_came():
    with pytest.raises(ArgumentError) as error:
        check_keypoint_flip([0, 2, 2], 3)
    assert str(error.value) == (
        "keypoint_flip: wanted for 3 keypoints each of 0 to 2 once, swapped in pairs, "
        "so that a mirrored image keeps left and right; got (0, 2, 2)"
    )


def test_case_66_pairs_and_middles_are_accepted():
    check_keypoint_flip((0, 2, 1), 3)
    check_keypoint_flip((), 0)
