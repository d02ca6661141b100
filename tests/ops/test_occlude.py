"""What is left of instances under a cover: boxes, shares, rings, keypoints, quads."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fnpipe.ops.occlude import occlude
from fnpipe.ops.points import bounds
from fnpipe.ops.raster import masks
from fnpipe.testing import rings_of, targets_of
from fnpipe.types import Rings, Targets


Points = Sequence[tuple[float, float]]


def rectangle(x0: float, y0: float, x1: float, y1: float) -> Points:
    return (x0, y0), (x1, y0), (x1, y1), (x0, y1)


def outlined(rings: Rings, **columns: Any) -> Targets:
    """Instances of one image."""
    return targets_of(bounds(rings), rings=rings, **columns)


TRIANGLE = (10.3, 10.2), (50.6, 20.9), (20.1, 60.8)


def test_what_no_ring_of_the_cover_touches_stays_as_it_is():
    """Even between two rings of one cover, and under the box of a ring but not under it."""
    targets = outlined(rings_of([TRIANGLE], [rectangle(70, 10, 72, 60)]))
    cover = rings_of([((40, 60), (60, 40), (60, 60)), rectangle(80, 0, 90, 90)])
    left = occlude(targets, cover)
    assert torch.equal(left.boxes, targets.boxes)
    assert torch.equal(left.visible, targets.visible)
    assert torch.equal(left.rings.points, targets.rings.points)


def test_sides_that_did_not_change_stay_exact():
    """The cover takes the columns from 30 on."""
    targets = outlined(rings_of([TRIANGLE]))
    left = occlude(targets, rings_of([rectangle(30, 0, 99, 99)]))
    x0, y0, x1, y1 = targets.boxes[0].tolist()
    assert left.boxes[0].tolist() == [x0, y0, 30.0, y1]
    before = masks(targets.rings, (64, 64), stride=1)[0]
    assert float(left.visible[0]) == pytest.approx(int(before[:, :30].sum()) / int(before.sum()))
    assert x1 > 30


def test_an_instance_with_a_hole_in_it_keeps_its_box_and_loses_the_hole():
    targets = outlined(rings_of([rectangle(10, 10, 50, 50)]))
    left = occlude(targets, rings_of([rectangle(20, 20, 40, 40)]))
    assert left.boxes[0].tolist() == [10, 10, 50, 50]
    assert left.visible.tolist() == [0.75]
    for stride, count in ((1, 1200), (2, 300), (4, 75)):
        assert int(masks(left.rings, (64, 64), stride=stride).sum()) == count


def test_case_37_parts_of_an_instance_are_hidden_one_by_one():
    """Two squares of one instance; one is hidden whole."""
    two = [rectangle(10, 10, 30, 30), rectangle(60, 60, 80, 80)]
    left = occlude(outlined(rings_of(two)), rings_of([rectangle(5, 5, 35, 35)]))
    assert left.boxes[0].tolist() == [60, 60, 80, 80]
    assert left.visible.tolist() == [0.5]
    assert int(masks(left.rings, (100, 100), stride=1).sum()) == 400


def test_what_is_hidden_whole_has_no_share_and_no_ring():
    left = occlude(outlined(rings_of([TRIANGLE])), rings_of([rectangle(0, 0, 99, 99)]))
    assert left.visible.tolist() == [0.0]
    assert left.boxes.tolist() == [[0, 0, 0, 0]]
    assert left.rings.instance_offsets.tolist() == [0, 0]


def test_two_covers_one_after_the_other_hide_what_both_hide():
    targets = outlined(rings_of([TRIANGLE]))
    first, second = rectangle(30, 0, 99, 99), rectangle(0, 0, 99, 20)
    stepwise = occlude(occlude(targets, rings_of([first])), rings_of([second]))
    at_once = occlude(targets, rings_of([first, second]))
    assert torch.equal(stepwise.boxes, at_once.boxes)
    assert torch.equal(stepwise.rings.points, at_once.rings.points)
    assert float(stepwise.visible[0]) == pytest.approx(float(at_once.visible[0]))


def test_an_instance_too_thin_for_a_pixel_is_hidden_by_what_covers_it():
    """A line between the centres of two columns: no pixel is its own."""
    targets = outlined(rings_of([rectangle(9.8, 10, 10.2, 50)]))
    half, whole = (rectangle(0, 0, 20, height) for height in (30, 60))
    assert occlude(targets, rings_of([half])).visible.tolist() == [pytest.approx(0.5, abs=0.01)]
    assert occlude(targets, rings_of([whole])).visible.tolist() == [0.0]


def test_an_instance_without_rings_fills_its_box_and_gets_none():
    targets = outlined(rings_of([rectangle(10, 10, 50, 50)])).replace(rings=Rings.empty(1))
    left = occlude(targets, rings_of([rectangle(30, 0, 99, 99)]))
    assert left.boxes.tolist() == [[10, 10, 30, 50]]
    assert left.visible.tolist() == [0.5]
    assert left.rings.instance_offsets.tolist() == [0, 0]


def test_a_quad_stays_the_whole_rectangle():
    """Its instance fills it: the corners of the box are not its own."""
    quad = torch.tensor([[[30.0, 10], [50, 30], [30, 50], [10, 30]]])
    targets = outlined(rings_of([rectangle(10, 10, 50, 50)]), quads=quad)
    targets = targets.replace(rings=Rings.empty(1))
    corner = occlude(targets, rings_of([rectangle(10, 10, 18, 18)]))
    assert corner.visible.tolist() == [1.0]
    half = occlude(targets, rings_of([rectangle(30, 0, 99, 99)]))
    assert half.boxes.tolist() == [[10, 10, 30, 50]]
    assert half.visible[0] == pytest.approx(0.5, abs=0.03)
    assert torch.equal(half.quads, quad)


def test_other_images_stay_as_they_are():
    rings = rings_of([TRIANGLE], [TRIANGLE], [TRIANGLE])
    targets = outlined(rings).replace(owner=torch.arange(3))
    left = occlude(targets, rings_of([], [rectangle(30, 0, 99, 99)], []))
    assert left.visible[0] == left.visible[2] == 1.0
    assert left.visible[1] < 1.0
    assert torch.equal(left.boxes[[0, 2]], targets.boxes[[0, 2]])


def test_no_instance_and_no_cover_are_nothing_to_do():
    nothing = outlined(rings_of())
    assert len(occlude(nothing, rings_of([TRIANGLE]))) == 0
    some = outlined(rings_of([TRIANGLE]))
    assert torch.equal(occlude(some, Rings.empty(1)).boxes, some.boxes)
