"""The one rule at a photo's border, for every kind of target."""

from collections.abc import Callable

import pytest
import torch

from fnpipe.data.dataset import Dataset
from fnpipe.ops.points import fit_rectangles, rboxes_to_quads


SQUARE = [[10, 10, 30, 10, 30, 30, 10, 30]]


def box(x0: float, y0: float, x1: float, y1: float) -> dict:
    return {"bbox": [x0, y0, x1 - x0, y1 - y0]}


def test_case_24_noise_is_snapped_crossers_clipped_and_only_outsiders_dropped(load_yolo):
    """100 x 100; right edge 1.0000002; x1 -0.04; x2 1.5; wholly outside."""
    rows = ["0.9 0.5 0.2000004 0.2", "0.03 0.5 0.14 0.2", "1.2 0.5 0.6 0.2", "1.4 0.5 0.2 0.2"]
    data = load_yolo("\n".join(f"0 {row}" for row in rows))
    assert data.targets.boxes[:, 2].tolist() == [100.0, 10.0, 100.0]
    assert data.targets.boxes[1, 0] == 0.0
    assert data.report.counts == {"outside": 1, "clipped": 2, "snapped": 1}
    assert data.report.lines[0].endswith("labels/0.txt: row 4")
    assert data.offsets.tolist() == [0, 3]


@pytest.mark.parametrize("beyond", [0.0, 0.005, 0.02])
def test_the_line_between_noise_and_crossing_is_a_hundredth_pixel(
    load_coco: Callable[..., Dataset], beyond: float
):
    data = load_coco(box(50, 50, 100 + beyond, 60))
    assert data.targets.boxes.tolist() == [[50, 50, 100, 60]]
    assert data.report.counts == {0.0: {}, 0.005: {"snapped": 1}, 0.02: {"clipped": 1}}[beyond]


def test_a_ring_is_cut_at_the_border_and_its_box_is_exact(load_coco, fill):
    """The diamond of |x - 50| + |y - 50| <= 60 has no corner in the photo."""
    data = load_coco(
        {"bbox": [0, 0, 1, 1], "segmentation": [[-10, 50, 50, -10, 110, 50, 50, 110]]},
        task="segment",
    )
    assert data.targets.boxes.tolist() == [[0, 0, 100, 100]]
    points = data.targets.rings.points
    assert points.min() == 0
    assert points.max() == 100
    assert fill(data.targets.rings, 100, 100).sum() == 6800


def test_a_ring_that_sticks_out_by_noise_is_moved_onto_the_border(load_coco):
    ring = [-0.004, 10, 20, 10, 20, 100.007, 0, 100]
    data = load_coco({"bbox": [0, 0, 1, 1], "segmentation": [ring]}, task="segment")
    assert data.targets.rings.points.tolist() == [[0, 10], [20, 10], [20, 100], [0, 100]]
    assert data.report.counts == {"snapped": 1}


def test_instances_beside_a_clipped_one_keep_their_bits(load_coco):
    third = [[1 / 3, 1, 20, 1, 20, 20 / 3]]
    outlines = [SQUARE, [[-5, 0, 5, 0, 5, 5, -5, 5]], third]
    data = load_coco(
        *({"bbox": [0, 0, 1, 1], "segmentation": outline} for outline in outlines), task="segment"
    )
    rings = data.targets.rings
    assert rings.ring_offsets.tolist() == [0, 4, 8, 11]
    assert rings.points[8:].flatten().tolist() == torch.tensor(third[0]).tolist()
    assert data.targets.boxes[1].tolist() == [0, 0, 5, 5]


def test_a_ring_wholly_outside_leaves_with_its_instance(load_coco):
    outside = [[110, 10, 120, 10, 120, 20, 110, 20]]
    data = load_coco(
        {"bbox": [0, 0, 1, 1], "segmentation": outside},
        {"bbox": [0, 0, 1, 1], "segmentation": SQUARE + outside},
        task="segment",
    )
    assert data.targets.boxes.tolist() == [[10, 10, 30, 30]]
    assert data.targets.rings.ring_offsets.tolist() == [0, 4]
    assert data.report.counts == {"outside": 1, "clipped": 1}


def test_case_26_an_instance_without_height_leaves_and_the_photo_stays(load_coco):
    flat = {"bbox": [100, 50, 12, 0], "segmentation": [[100, 50, 112, 50, 106, 50]]}
    for task in ("detect", "segment"):
        data = load_coco(flat, box(10, 10, 20, 20), task=task)
        assert len(data) == 1
        assert data.targets.boxes.tolist() == [[10, 10, 20, 20]]
        assert data.report.counts["degenerate"] == 1


def test_a_figure_of_eight_has_area(load_coco):
    """Its signed area is 0; it must not be taken for a line."""
    eight = [[0, 0, 10, 10, 10, 0, 0, 10]]
    data = load_coco({"bbox": [0, 0, 10, 10], "segmentation": eight}, task="segment")
    assert data.targets.rings.points.shape == (4, 2)


def test_a_keypoint_outside_becomes_missing(load_coco):
    inside, outside, noise = [10, 20, 2], [150, 20, 1], [99.505, 20, 1]
    data = load_coco({**box(5, 5, 50, 50), "keypoints": inside + outside + noise}, task="pose")
    assert data.targets.keypoints.tolist() == [[[10.5, 20.5, 2], [0, 0, 0], [100, 20.5, 1]]]
    assert data.report.counts == {"keypoint outside": 1}


def test_case_50_a_quad_stays_whole_at_the_border(load_coco):
    quad = rboxes_to_quads(torch.tensor([[10, 50, 60, 20, torch.pi / 6]]))
    data = load_coco({**box(0, 0, 1, 1), "obb": quad.flatten().tolist()}, task="obb")
    assert data.targets.quads.amin() < -20.9
    corners = {tuple(corner) for corner in data.targets.quads[0].tolist()}
    assert corners == {tuple(corner) for corner in quad[0].tolist()}
    assert data.targets.boxes[0, 0] == 0
    assert data.report.counts == {"clipped": 1}


def test_case_49_eight_spellings_are_one_quad_and_a_trapezoid_stays_itself(load_coco):
    quad = rboxes_to_quads(torch.tensor([[50, 50, 40, 20, torch.pi / 6]]))[0]
    spellings = [turned.roll(k, 0) for turned in (quad, quad.flip(0)) for k in range(4)]
    bent = quad + torch.tensor([[2.0, 0], [0, 0], [0, 0], [0, 0]])
    data = load_coco(
        *({"obb": spelling.flatten().tolist()} for spelling in (*spellings, bent)), task="obb"
    )
    first, *others, last = data.targets.quads
    assert all(torch.equal(first, other) for other in others)
    assert sorted(first.tolist()) == sorted(quad.tolist())
    assert sorted(last.tolist()) == sorted(bent.tolist())
    fitted = fit_rectangles(last[None])[0]
    sides = (fitted - fitted.roll(1, 0)).double()
    assert (sides[0] * sides[1]).sum().abs() < 1e-3


def test_photos_without_instances_have_none_of_the_right_shape(load_yolo):
    data = load_yolo("", task="pose", config={"kpt_shape": [3, 2]})
    assert data.targets.boxes.shape == (0, 4)
    assert data.targets.keypoints.shape == (0, 3, 3)
    assert load_yolo("", task="obb").targets.quads.shape == (0, 4, 2)
    assert data[0].targets.rings.instance_offsets.tolist() == [0]
