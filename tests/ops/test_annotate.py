"""A plan moves every kind of target, and what leaves the picture leaves every field."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fnpipe.ops.annotate import annotate, concatenate, is_reflection, select, take
from fnpipe.ops.points import bounds, rboxes_to_quads
from fnpipe.ops.ragged import offsets_of
from fnpipe.testing import assert_same_bits, rings_of, targets_of
from fnpipe.types import ArgumentError, Plan, Targets

from .test_points import in_degrees


Ring = Sequence[tuple[float, float]]
Map = Sequence[Sequence[float]]

EYE = ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def table(
    *,
    boxes: Sequence[Sequence[float]] = (),
    rings: Sequence[Sequence[Ring]] = (),
    keypoints: Sequence[Sequence[Sequence[float]]] = (),
    quads: Tensor | None = None,
) -> Targets:
    """A row for each of the longest argument; labels and ids count from 0.

    Boxes are the hulls of quads where they are not given, as a reader makes them.
    """
    n = max(len(boxes), len(rings), len(keypoints), 0 if quads is None else len(quads))
    if quads is not None and not boxes:
        boxes = torch.cat([quads.amin(1), quads.amax(1)], 1).tolist()
    return targets_of(
        boxes or [[20, 20, 80, 80]] * n,
        keypoints=torch.tensor(keypoints) if keypoints else torch.zeros(n, 0, 3),
        quads=torch.zeros(n, 0, 2) if quads is None else quads,
        rings=rings_of(*(rings or [[]] * n)),
    )


def plan(
    *maps: Map, size: tuple[int, int] = (100, 100), sources: Sequence[Sequence[int]] = ((0,),)
) -> Plan:
    """One image, or those of ``sources``, whose tiles take photos through ``maps`` in turn."""
    chosen = torch.tensor(sources)
    b, t = chosen.shape
    forward = torch.tensor(maps or [EYE] * (b * t), dtype=torch.float64).view(b, t, 3, 3)
    return Plan(
        ids=torch.arange(b),
        epochs=torch.zeros(b, dtype=torch.int64),
        sources=chosen,
        maps=torch.zeros(b, t, 3, 3),
        forward=forward,
        splits=torch.zeros(b, 2, round(t**0.5) - 1, 3),
        mirror=torch.zeros(b, 2, dtype=torch.bool),
        colors=(),
        size=size,
    )


def move(targets: Targets, *maps: Map, size: tuple[int, int] = (100, 100), **options) -> Targets:
    """The table as one photo, through the product of ``maps``, first one first."""
    product = torch.eye(3, dtype=torch.float64)
    for step in maps:
        product = torch.tensor(step, dtype=torch.float64) @ product
    offsets = torch.tensor([0, len(targets)])
    return annotate(plan(product.tolist(), size=size), targets, offsets, **options)


def shift(x: float, y: float) -> Map:
    return ((1, 0, x), (0, 1, y), (0, 0, 1))


def scale(x: float, y: float) -> Map:
    return ((x, 0, 0), (0, y, 0), (0, 0, 1))


def turn(degrees: float, x: float, y: float) -> Map:
    """Clockwise on screen about (x, y)."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return ((cos, -sin, x - cos * x + sin * y), (sin, cos, y - sin * x - cos * y), (0, 0, 1))


def mirror(width: float) -> Map:
    return ((-1, 0, width), (0, 1, 0), (0, 0, 1))


def topple(height: float) -> Map:
    return ((1, 0, 0), (0, -1, height), (0, 0, 1))


def rbox(x: float, y: float, width: float, height: float, degrees: float) -> Tensor:
    return rboxes_to_quads(torch.tensor([[x, y, width, height, math.radians(degrees)]]))


def square(x: float, y: float, side: float) -> Ring:
    return ((x, y), (x + side, y), (x + side, y + side), (x, y + side))


# Boxes come from what they bound


def test_case_54_a_box_is_as_tight_as_its_polygon():
    diamond = [[((50, 10), (90, 50), (50, 90), (10, 50))]]
    tight = 50 + 20 * math.sqrt(2)
    moved = move(table(rings=diamond), turn(45, 50, 50))
    assert moved.boxes.tolist() == [pytest.approx([100 - tight, 100 - tight, tight, tight])]
    assert move(table(boxes=[[10, 10, 90, 90]]), turn(45, 50, 50)).boxes.tolist() == [
        [0, 0, 100, 100]
    ]


def test_case_57_a_polygon_without_a_vertex_in_the_picture():
    moved = move(table(rings=[[((-10, 50), (50, -10), (110, 50), (50, 110))]]))
    assert moved.boxes.tolist() == [[0, 0, 100, 100]]
    assert moved.visible.tolist() == [pytest.approx(6800 / 7200)]


def test_case_59_a_crop_cuts_the_closing_edge():
    moved = move(table(rings=[[square(10, 10, 80)]]), shift(0, -40), size=(20, 100))
    assert moved.boxes.tolist() == [[10, 0, 90, 20]]


def test_case_41_an_untouched_polygon_keeps_its_vertices_bit_for_bit():
    angles = [2 * math.pi * i / 1500 for i in range(1500)]
    ring = [(50 + 20 * math.cos(a), 50 + 20 * math.sin(a)) for a in angles]
    before = table(rings=[[ring]])
    assert_same_bits(move(before).rings, before.rings)  # type: ignore[arg-type]


def test_a_box_follows_its_rings_and_not_the_row_of_the_table():
    before = table(boxes=[[0, 0, 99, 99]], rings=[[square(10, 10, 5), square(40, 30, 5)]])
    assert move(before).boxes.tolist() == [[10, 10, 45, 35]]


def test_case_63_a_flip_moves_boxes_alone_and_nested():
    before = table(boxes=[[355, 10, 660, 250]])
    for maps in ([topple(400)], [mirror(800), topple(400), mirror(800)]):
        moved = move(before, *maps, size=(400, 800))
        assert moved.boxes.tolist() == [[355, 150, 660, 390]]


def test_case_64_a_letterbox_is_undone():
    """1733 x 977 to 512: the resized height is 289, so 111 px above and 112 below."""
    before = table(boxes=[[0, 0, 1733, 977], [100.5, 200.25, 900, 800.125]])
    there = [scale(512 / 1733, 289 / 977), shift(0, 111)]
    back = [shift(0, -111), scale(1733 / 512, 977 / 289)]
    small = move(before, *there, size=(512, 512))
    assert small.boxes[0].tolist() == [0, 111, 512, 400]
    again = move(small, *back, size=(977, 1733))
    assert (again.boxes - before.boxes).abs().max() < 1e-3


# What leaves the picture


def test_case_55_what_is_outside_leaves_and_what_is_left_has_an_area():
    before = table(boxes=[[-60, 10, -20, 40], [-20, 10, 20, 40], [-20, 10, 0, 40]])
    moved = move(before)
    assert moved.ids.tolist() == [1]
    assert moved.boxes.tolist() == [[0, 10, 20, 40]]
    assert moved.visible.tolist() == [0.5]


def test_case_70_every_field_loses_the_same_row():
    before = table(
        boxes=[[0, 0, 10, 10], [500, 0, 510, 10], [40, 40, 60, 60]],
        rings=[[square(0, 0, 10)], [square(500, 0, 10), square(520, 0, 10)], [square(40, 40, 20)]],
        keypoints=[[[5.0, 5, 2]], [[505.0, 5, 2]], [[50.0, 50, 1]]],
        quads=torch.cat([rbox(5, 5, 10, 10, 0), rbox(505, 5, 10, 10, 0), rbox(50, 50, 20, 20, 0)]),
    )
    moved = move(before)
    assert moved.ids.tolist() == [0, 2]
    assert moved.labels.tolist() == [0, 2]
    assert moved.boxes.tolist() == [[0, 0, 10, 10], [40, 40, 60, 60]]
    assert moved.keypoints.tolist() == [[[5, 5, 2]], [[50, 50, 1]]]
    assert moved.quads[:, 0].tolist() == [[0, 0], [40, 40]]
    assert moved.rings.instance_offsets.tolist() == [0, 1, 2]
    assert moved.rings.ring_offsets.tolist() == [0, 4, 8]
    assert moved.rings.points[4:].tolist() == [list(p) for p in square(40, 40, 20)]
    assert {len(f) for f in (moved.owner, moved.ignore, moved.visible)} == {2}


def test_too_little_left_is_dropped():
    before = table(boxes=[[-6, 0, 4, 10], [-7, 0, 3, 10], [50, 50, 53, 90]])
    assert move(before, min_visible=0.4).ids.tolist() == [0, 2]
    assert move(before, min_side=4.0).ids.tolist() == [0]
    assert move(before, min_side=3.0).ids.tolist() == [0, 1, 2]


def test_visible_goes_on_from_what_the_table_says():
    before = table(boxes=[[-5, 0, 5, 10]]).replace(visible=torch.tensor([0.5]))
    assert move(before).visible.tolist() == [0.25]
    assert len(move(before, min_visible=0.3)) == 0


def test_a_sliver_thinner_than_float32_is_no_box():
    assert len(move(table(boxes=[[20, 20, 80, 80]]), shift(80 - 1e-6, 0))) == 0


def test_case_36_a_crowd_moves_and_stays_a_crowd():
    before = table(boxes=[[0, 0, 10, 10], [50, 0, 100, 100]]).replace(
        ignore=torch.tensor([False, True])
    )
    moved = move(before, mirror(100))
    assert moved.ignore.tolist() == [False, True]
    assert moved.boxes.tolist() == [[90, 0, 100, 10], [0, 0, 50, 100]]


# Keypoints


def test_case_46_missing_stays_missing_and_flags_stay_flags():
    before = table(keypoints=[[[40.0, 30, 2], [0, 0, 0], [60, 35, 1]]])
    for maps in ([mirror(100)], [turn(20, 50, 50)], [scale(0.5, 2), shift(3, 4)]):
        moved = move(before, *maps, keypoint_flip=(0, 1, 2))
        assert moved.keypoints[0, 1].tolist() == [0, 0, 0]
        assert moved.keypoints[0, :, 2].tolist() == [2, 0, 1]


def test_case_48_points_and_polygons_scale_alike():
    """COCO's keypoint 10, 20, read as 10.5, 20.5, is the centre of the pixel at corner 10, 20."""
    moved = move(table(rings=[[square(10, 20, 1)]], keypoints=[[[10.5, 20.5, 2]]]), scale(2, 2))
    assert moved.keypoints.tolist() == [[[21, 41, 2]]]
    assert moved.boxes.tolist() == [[20, 40, 22, 42]]


@pytest.mark.parametrize(
    ("maps", "wanted"),
    [
        ([mirror(97)], (76.75, 24.5)),
        ([topple(65)], (20.25, 40.5)),
        ([scale(2, 2)], (40.5, 49)),
        ([scale(0.5, 0.5)], (10.125, 12.25)),
        ([scale(2, 2), shift(0, 32)], (40.5, 81)),
    ],
)
def test_case_60_points_and_boxes_move_on_edges_not_on_centres(maps, wanted):
    before = table(boxes=[[20, 24, 20.5, 25]], keypoints=[[[20.25, 24.5, 2]]])
    moved = move(before, *maps, size=(200, 200), keypoint_flip=(0,))
    assert moved.keypoints[0, 0, :2].tolist() == list(wanted)
    assert ((moved.boxes[0, :2] + moved.boxes[0, 2:]) / 2).tolist() == list(wanted)


def test_case_62_a_point_by_the_edge_stays_inside_a_flip():
    before = table(keypoints=[[[32.6, 5, 2], [0, 5, 2]]], boxes=[[1, 1, 9, 9]])
    moved = move(before, mirror(33), size=(10, 33), keypoint_flip=(0, 1))
    assert moved.keypoints.tolist() == [[pytest.approx([0.4, 5, 2], abs=1e-5), [33, 5, 2]]]


def test_case_66_left_and_right_swap_with_their_flags():
    before = table(keypoints=[[[50.0, 10, 2], [30, 20, 1], [70, 30, 0]]])
    moved = move(before, mirror(100), keypoint_flip=(0, 2, 1))
    assert moved.keypoints.tolist() == [[[50, 10, 2], [0, 0, 0], [70, 20, 1]]]


def test_case_66_a_turn_does_not_swap_but_a_flip_about_a_slanted_line_does():
    before = table(keypoints=[[[50.0, 50, 2], [40, 50, 1], [60, 50, 2]]])
    turned = move(before, turn(180, 50, 50), keypoint_flip=(0, 2, 1))
    torch.testing.assert_close(turned.keypoints[0, :, 0], torch.tensor([50.0, 60, 40]))
    twice = move(before, mirror(100), topple(100), keypoint_flip=(0, 2, 1))
    assert twice.keypoints[0, :, 0].tolist() == [50, 60, 40]
    slanted = move(before, mirror(100), turn(30, 50, 50), keypoint_flip=(0, 2, 1))
    assert slanted.keypoints[0, :, 2].tolist() == [2, 2, 1]


def test_case_66_a_mirrored_pose_needs_its_map():
    before = table(keypoints=[[[50.0, 10, 2], [30, 20, 1], [70, 30, 0]]])
    assert len(move(before, turn(90, 50, 50))) == 1
    for flip in ((), (0, 1), (0, 2, 2)):
        with pytest.raises(ArgumentError, match=r"keypoint_flip: wanted for 3 keypoints .* got \("):
            move(before, mirror(100), keypoint_flip=flip)


def test_case_68_a_point_outside_is_not_seen():
    before = table(keypoints=[[[-12.0, 50, 2], [50, 50, 2], [100, 100, 1], [50, 100.01, 2]]])
    wanted = [[[0, 0, 0], [50, 50, 2], [100, 100, 1], [0, 0, 0]]]
    assert move(before).keypoints.tolist() == wanted


def test_case_69_a_crop_keeps_every_row_of_the_skeleton():
    before = table(keypoints=[[[4.0 * i, 50.0, 2] for i in range(17)]], boxes=[[0, 40, 70, 60]])
    moved = move(before, shift(-18, 0))
    assert moved.keypoints.shape == (1, 17, 3)
    assert moved.keypoints[0, :, 2].tolist() == [0] * 5 + [2] * 12
    assert moved.keypoints[0, :, 0].tolist() == [0] * 5 + [4.0 * i - 18 for i in range(5, 17)]


def test_a_point_behind_the_camera_is_not_seen():
    """Weight 1 - x / 64; divided, the second point would land at -192 / -2, well inside."""
    before = table(keypoints=[[[16.0, 0, 2], [192, 0, 2]]], boxes=[[0, 0, 16, 16]])
    moved = move(before, ((1, 0, 0), (0, 1, 0), (-1 / 64, 0, 1)))
    assert moved.keypoints[0, :, 2].tolist() == [2, 0]


def test_is_reflection():
    maps = torch.tensor([EYE, mirror(9), topple(9), turn(200, 3, 4)], dtype=torch.float64)
    assert is_reflection(maps).tolist() == [False, True, True, False]


# Oriented boxes


def test_case_50_a_box_over_the_border_stays_the_same_rectangle():
    moved = move(table(quads=rbox(10, 50, 60, 20, 30)))
    assert in_degrees(moved.quads) == pytest.approx([10, 50, 60, 20, 30], abs=1e-4)
    assert 0.6 < float(moved.visible[0]) < 0.8
    assert moved.boxes[0, 0] == 0
    assert len(move(table(quads=rbox(10, 50, 60, 20, 30)), min_visible=0.8)) == 0


def test_what_an_oriented_box_has_outside_its_photo_is_not_in_the_next_tile():
    """The diamond of 40 at (90, 50) of a photo 100 wide shows from x = 70 to 100, 7/8 of it."""
    diamond = torch.tensor([[[90.0, 30], [110, 50], [90, 70], [70, 50]]])
    before = table(quads=diamond, boxes=[[70, 30, 100, 70]])
    offsets, scene = torch.tensor([0, 1]), plan(EYE, shift(100, 0), sources=[[0, 0]])
    wide = annotate(scene.replace(size=(100, 200)), before, offsets)
    assert wide.boxes.tolist() == [[70, 30, 100, 70], [170, 30, 200, 70]]
    assert wide.visible.tolist() == [1, 1]
    assert torch.equal(wide.quads[0], wide.quads[1] - torch.tensor([100.0, 0]))
    assert in_degrees(wide.quads)[2:] == pytest.approx([800**0.5, 800**0.5, 45], abs=1e-4)
    half = move(before, size=(50, 100))
    assert half.boxes.tolist() == [[70, 30, 100, 50]]
    assert half.visible.tolist() == [0.5]


def test_an_oriented_box_inside_its_photo_keeps_its_corners_bit_for_bit():
    inside, outside = rbox(50, 50, 60, 20, 30), rbox(10, 50, 60, 20, 30)
    hull = torch.cat([inside.amin(1), inside.amax(1)], 1)[0].tolist()
    both = table(quads=torch.cat([inside, outside]), boxes=[hull, [0, 24, 41, 76]])
    alone = table(quads=inside, boxes=[hull])
    turned = turn(17, 40, 60)
    assert torch.equal(move(both, turned).boxes[:1], move(alone, turned).boxes)


def test_case_74_a_shift_over_the_border_keeps_the_angle():
    moved = move(table(quads=rbox(60, 50, 60, 20, 30)), shift(-50, 0))
    assert in_degrees(moved.quads) == pytest.approx([10, 50, 60, 20, 30], abs=1e-4)


def test_case_72_a_flip_mirrors_the_angle():
    """150 degrees with sides 20 and 10 is 60 degrees with 10 and 20, the canonical spelling."""
    moved = move(table(quads=rbox(30, 40, 20, 10, 30)), mirror(100))
    assert in_degrees(moved.quads) == pytest.approx([70, 40, 10, 20, 60], abs=1e-4)


def test_case_76_unequal_scaling_refits_the_box():
    """The axis-parallel box bounds the parallelogram itself, not the rectangle round it."""
    moved = move(table(quads=rbox(50, 50, 40, 20, 45)), scale(2, 1), size=(100, 200))
    fit = [100, 50, 82.2192, 25.2982, math.degrees(math.atan(0.5))]
    assert in_degrees(moved.quads) == pytest.approx(fit, abs=1e-3)
    reach = 15 * math.sqrt(2)
    wanted = [100 - 2 * reach, 50 - reach, 100 + 2 * reach, 50 + reach]
    assert moved.boxes.tolist() == [pytest.approx(wanted, abs=1e-4)]


def test_case_49_eight_spellings_give_one_target():
    quad = rbox(50, 50, 40, 20, 30)
    for flipped in (quad, quad.flip(1)):
        for start in range(4):
            moved = move(table(quads=flipped.roll(start, 1)))
            assert_same_bits(moved, move(table(quads=quad)))


def test_a_quad_with_a_corner_behind_the_camera_is_dropped():
    before = table(quads=torch.cat([rbox(16, 16, 20, 20, 0), rbox(60, 16, 20, 20, 0)]))
    moved = move(before, ((1, 0, 0), (0, 1, 0), (-1 / 64, 0, 1)), size=(900, 900))
    assert moved.ids.tolist() == [0]


# Batches


def test_tiles_bring_their_photos_in_order():
    before = table(boxes=[[0, 0, 10, 10], [0, 0, 20, 20], [0, 0, 30, 30]])
    offsets = torch.tensor([0, 1, 1, 3])
    maps = [EYE, shift(0, 50), shift(50, 0), shift(50, 50)]
    both = plan(*maps, *maps, sources=((2, -1, 1, 0), (0, 0, -1, 2)))
    moved = annotate(both, before, offsets)
    assert moved.owner.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert moved.ids.tolist() == [1, 2, 0, 0, 0, 1, 2]
    assert moved.boxes[2].tolist() == [50, 50, 60, 60]
    assert moved.boxes[4].tolist() == [0, 50, 10, 60]


def test_an_empty_tile_may_hold_any_map():
    broken = [[math.nan] * 3] * 3
    images = plan(broken, EYE, EYE, broken, sources=((-1, 0, 0, -1),))
    moved = annotate(images, table(boxes=[[0, 0, 10, 10]]), torch.tensor([0, 1]))
    assert moved.boxes.tolist() == [[0, 0, 10, 10]] * 2


@pytest.mark.parametrize("sources", [((-1,), (-1,)), ((0,), (1,))])
def test_case_20_no_instance_is_a_target_of_the_right_shape(sources):
    before = Targets.empty(keypoints=17, corners=4)
    moved = annotate(plan(sources=sources), before, torch.tensor([0, 0, 0]))
    assert_same_bits(moved, before)


def test_select_compacts_rings():
    before = table(
        rings=[[square(0, 0, 1)], [square(1, 1, 2), square(5, 5, 3)], [], [square(9, 9, 1)]]
    )
    kept = select(before, torch.tensor([False, True, True, True]))
    assert kept.rings.instance_offsets.tolist() == [0, 2, 2, 3]
    assert kept.rings.ring_offsets.tolist() == [0, 4, 8, 12]
    assert kept.rings.points[8:].tolist() == [list(p) for p in square(9, 9, 1)]


def test_take_follows_the_order_and_repeats():
    before = table(rings=[[square(0, 0, 1)], [square(1, 1, 2)]])
    taken = take(before, torch.tensor([1, 0, 1]))
    assert taken.ids.tolist() == [1, 0, 1]
    assert bounds(taken.rings).tolist() == [[1, 1, 3, 3], [0, 0, 1, 1], [1, 1, 3, 3]]


def test_concatenate_makes_owners_of_places():
    one, none = table(rings=[[square(0, 0, 9)], []]), table()
    joined = concatenate([none, one, none, one])
    assert joined.owner.tolist() == [1, 1, 3, 3]
    assert joined.rings.instance_offsets.tolist() == [0, 1, 1, 2, 2]
    assert joined.rings.ring_offsets.tolist() == [0, 4, 8]
    assert_same_bits(concatenate([]), Targets.empty())


# Real annotations


def read_polygons(path: Path) -> tuple[Targets, Tensor]:
    """Polygons of the first photos as a table; crowds have none."""
    data = json.loads(path.read_text())
    places = {image["id"]: place for place, image in enumerate(data["images"])}
    rows = sorted(data["annotations"], key=lambda row: places[row["image_id"]])
    rings = [
        [list(zip(flat[::2], flat[1::2], strict=True)) for flat in row["segmentation"]]
        if isinstance(row["segmentation"], list)
        else []
        for row in rows
    ]
    boxes = [[x, y, x + w, y + h] for x, y, w, h in (row["bbox"] for row in rows)]
    owner = torch.tensor([places[row["image_id"]] for row in rows])
    offsets = offsets_of(torch.bincount(owner, minlength=len(places)))
    return table(boxes=boxes, rings=rings).replace(owner=owner), offsets


def test_real_polygons_come_out_the_same_in_any_batch(shared_data: Path):
    targets, offsets = read_polygons(shared_data / "coco/annotations/instances_val2017.json")
    generator = torch.Generator().manual_seed(0)
    sources = torch.randint(0, len(offsets) - 1, (12, 4), generator=generator)
    noise = torch.rand(48, 2, 3, generator=generator, dtype=torch.float64) - 0.5
    maps = torch.eye(3, dtype=torch.float64).repeat(48, 1, 1)
    maps[:, :2] += noise * torch.tensor([1, 0.5, 600])
    batch = plan(*maps.tolist(), size=(640, 640), sources=sources.tolist())
    images = [pytree.tree_map(lambda t, i=i: t[i : i + 1], batch) for i in range(12)]
    together = annotate(batch, targets, offsets)
    assert len(together) > 200
    assert 0 < int((together.visible < 1).sum()) < len(together)
    assert_same_bits(together, concatenate([annotate(image, targets, offsets) for image in images]))


def test_real_polygons_at_rest_are_what_the_file_holds(shared_data: Path):
    targets, offsets = read_polygons(shared_data / "coco/annotations/instances_val2017.json")
    photos = [[i] for i in range(len(offsets) - 1)]
    rest = annotate(plan(size=(1000, 1000), sources=photos), targets, offsets)
    assert rest.ids.tolist() == targets.ids.tolist()
    assert rest.owner.tolist() == targets.owner.tolist()
    assert (rest.visible == 1).all()
    assert_same_bits(rest.rings, targets.rings)  # type: ignore[arg-type]
    drawn = targets.rings.instance_offsets.diff() > 0
    assert rest.boxes[drawn].equal(bounds(targets.rings)[drawn])
    assert rest.boxes[~drawn].equal(targets.boxes[~drawn])
