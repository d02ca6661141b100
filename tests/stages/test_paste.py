"""Copy-paste: who is pasted, how often, on whom; and what is left beneath."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import fnpipe as fp
from fnpipe.ops.points import bounds
from fnpipe.ops.raster import masks
from fnpipe.testing import rings_of, strategies, targets_of
from fnpipe.types import ArgumentError, Rings, Targets


SIZE = (100, 200)
Square = tuple[float, float, float]


def squares(*placed: tuple[int, Square]) -> Targets:
    """Instances with a square ring each: the photo that has it, and left, top and side."""
    corners = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    rings = rings_of(*([torch.tensor([x, y]) + corners * side] for _, (x, y, side) in placed))
    owner = torch.tensor([owner for owner, _ in placed], dtype=torch.int64)
    return targets_of(bounds(rings), owner=owner, rings=rings)


class Album(strategies.Album):
    """Photos of one grey each, (32 i + 16), with targets."""

    def __init__(self, count: int, targets: Targets, flip: Sequence[int] = ()) -> None:
        greys = [torch.full((3, *SIZE), 32 * i + 16, dtype=torch.uint8) for i in range(count)]
        super().__init__(greys, targets)
        self.keypoint_flip = tuple(flip)


def make(album: Album, *stages: Any, seed: int = 0, sample: int = 0) -> fp.Batch:
    return fp.make_batch(album, fp.pipe(*stages), [sample], seed=seed)


def edges(plane: torch.Tensor) -> list[int]:
    """The box of a mask."""
    rows, columns = plane.any(1).nonzero(), plane.any(0).nonzero()
    return [int(e) for e in (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)]


SIX = [(0, (5.0 + 15 * i, 40.0, 10.0)) for i in range(6)]


@pytest.mark.parametrize("source", ["self", "other"])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_case_77_p_is_the_chance_of_every_eligible_instance(source: Any, p: float):
    """Of six, 6 p to be expected, whichever picture they are of; p = 0 leaves a sample as it is."""
    other = [(1, square) for _, square in SIX]
    album = Album(2, squares(*(SIX if source == "self" else other)))
    paste = fp.copy_paste(p=p, source=source)
    key = fp.key(seed=0, epoch=torch.arange(1000), sample=torch.zeros(1000, dtype=torch.int64))
    plan = fp.pipe(paste).draw(key, album)
    (over,) = plan.overs
    counts = torch.bincount(over.instances[:, 0], minlength=1000)
    assert float(counts.double().mean()) == pytest.approx(6 * p, abs=0.15)
    if 0 < p < 1:
        spread = float(counts.double().var())
        assert spread == pytest.approx(6 * p * (1 - p), rel=0.2)
    if p == 0:
        assert not over.active.any()
        bare, plain = make(album, paste), make(album)
        assert torch.equal(bare.images, plain.images)
        assert torch.equal(bare.boxes, plain.boxes)


def test_a_greater_p_only_adds():
    album = Album(2, squares(*SIX))
    key = fp.key(seed=3, epoch=0, sample=torch.tensor([0]))
    found = []
    for p in (0.1, 0.4, 0.7, 1.0):
        (over,) = fp.pipe(fp.copy_paste(p=p)).draw(key, album).overs
        found.append(set(over.instances[:, 1].tolist()))
    assert found[0] <= found[1] <= found[2] <= found[3]
    assert len(found[3]) == 6


def test_case_78_an_instance_that_would_hide_its_original_is_not_pasted():
    large = squares((0, (60.0, 10.0, 80.0)))
    batch = make(Album(1, large), fp.copy_paste(p=1.0))
    assert batch.targets.ids.tolist() == [0]
    assert batch.targets.visible.tolist() == [1.0]
    assert (batch.images == 16).all()


def test_case_78_what_is_hidden_leaves_the_mask_the_box_and_the_share():
    """A square at x 50 to 90 mirrored is at 110 to 150, and over 20 of another's 40 columns."""
    album = Album(1, squares((0, (130.0, 30.0, 40.0)), (0, (50.0, 30.0, 40.0))))
    batch = make(album, fp.copy_paste(p=1.0, max_overlap=0.5))
    left = {tuple(box) for box in batch.boxes.tolist()}
    # Ids 0 and 1 stay, cut to [150, 170] and [70, 90]; both are pasted whole.
    assert left == {(150, 30, 170, 70), (70, 30, 90, 70), (30, 30, 70, 70), (110, 30, 150, 70)}
    assert batch.targets.ids.tolist() == [0, 1, 0, 1]
    assert batch.targets.visible.tolist() == [0.5, 0.5, 1.0, 1.0]
    planes = masks(batch.rings, SIZE, stride=1)
    assert planes.sum((1, 2)).tolist() == [800, 800, 1600, 1600]
    assert int(planes.int().sum(0).max()) == 1
    assert planes[0, 30:70, 150:170].all()


@pytest.mark.parametrize(("limit", "count"), [(0.5, 2), (0.49, 0)])
def test_an_overlap_over_the_threshold_is_no_paste(limit: float, count: int):
    album = Album(1, squares((0, (130.0, 30.0, 40.0)), (0, (50.0, 30.0, 40.0))))
    batch = make(album, fp.copy_paste(p=1.0, max_overlap=limit))
    assert len(batch.targets) == 2 + count


def test_boxes_that_are_pasted_count_together():
    """Two that hide a quarter each of the same instance: with 0.3 one is pasted, with 0.5 both."""
    below = (0, (50.0, 30.0, 40.0))
    above = [(1, (50.0, 30.0, 20.0)), (1, (70.0, 50.0, 20.0))]
    album = Album(2, squares(below, *above))
    for limit, shares in ((0.2, [1.0]), (0.3, [0.75, 1.0]), (0.5, [0.5, 1.0, 1.0])):
        batch = make(album, fp.copy_paste(p=1.0, source="other", max_overlap=limit))
        assert batch.targets.visible.tolist() == shares


def test_case_78_many_small_ones_do_not_hide_a_thin_one():
    """A line from corner to corner, and squares that would cover it with a tenth of its box."""
    along = [(1, (10.0 + 8 * i, 10.0 + 8 * i, 10.0)) for i in range(10)]
    album = Album(2, squares((0, (10.0, 10.0, 80.0)), *along))
    rings = album.targets.rings
    points = rings.points.clone()
    points[:4] = torch.tensor([[10.0, 10], [12, 10], [90, 90], [88, 90]])
    album.targets = album.targets.replace(rings=rings.replace(points=points))
    paste = fp.copy_paste(p=1.0, source="other")
    batch = make(album, paste)
    assert batch.targets.ids[0] == 0
    assert batch.targets.visible[0] > 0.5
    assert len(batch.targets) == 2  # the last square, of which only a part lies in the box
    batch = make(album, fp.copy_paste(p=1.0, source="other", max_overlap=1.0))
    assert 0 not in batch.targets.ids.tolist()


def test_pasted_pixels_are_the_other_pictures():
    album = Album(2, squares((1, (50.0, 30.0, 40.0)), (1, (60.0, 40.0, 10.0))))
    image = make(album, fp.copy_paste(p=1.0, source="other")).images[0, 0]
    assert (image == 48).sum() == 1600
    assert (image[30:70, 50:90] == 48).all()
    assert (image == 16).sum() == image.numel() - 1600


def test_case_36_a_crowd_is_never_pasted_but_is_hidden_like_all_else():
    targets = squares((0, (130.0, 30.0, 40.0)), (0, (50.0, 30.0, 40.0)))
    targets = targets.replace(ignore=torch.tensor([False, True]))
    batch = make(Album(1, targets), fp.copy_paste(p=1.0, max_overlap=0.5))
    assert batch.targets.ids.tolist() == [0, 1, 0]
    assert batch.targets.ignore.tolist() == [False, True, False]
    assert batch.targets.visible.tolist() == [1.0, 0.5, 1.0]


def test_an_instance_without_rings_is_not_pasted():
    targets = squares(*SIX).replace(rings=Rings.empty(6))
    assert len(make(Album(1, targets), fp.copy_paste(p=1.0)).targets) == 6


def test_what_keep_would_drop_is_not_pasted():
    album = Album(
        2, squares((1, (-10.0, 30.0, 20.0)), (1, (60.0, 40.0, 4.0)), (1, (90.0, 30.0, 9.0)))
    )
    stages = fp.copy_paste(p=1.0, source="other"), fp.keep(visible=0.8, side=5.0)
    batch = make(album, *stages)
    assert batch.targets.ids.tolist() == [2]
    assert (batch.images == 48).sum() == 3 * 81


def test_case_66_the_mirrored_pose_changes_left_and_right():
    points = torch.tensor([[[55.0, 35, 2], [60, 35, 1], [85, 35, 2]]])
    targets = squares((0, (50.0, 30.0, 40.0))).replace(keypoints=points)
    batch = make(Album(1, targets, [0, 2, 1]), fp.copy_paste(p=1.0))
    assert batch.keypoints[1].tolist() == [[145, 35, 2], [115, 35, 2], [140, 35, 1]]
    with pytest.raises(ArgumentError, match="keypoint_flip: wanted for 3 keypoints"):
        make(Album(1, targets), fp.copy_paste(p=1.0))


def test_case_69_a_keypoint_that_is_covered_is_hidden_and_stays_a_row():
    """The pixel that it is in decides."""
    points = torch.tensor([[[49.5, 50, 2], [50.5, 50, 2], [0, 0, 0], [60, 69.5, 1], [60, 70.5, 2]]])
    other = torch.zeros(1, 5, 3)
    targets = squares((0, (30.0, 30.0, 60.0)), (1, (50.0, 30.0, 40.0)))
    targets = targets.replace(keypoints=torch.cat([points, other]))
    batch = make(Album(2, targets), fp.copy_paste(p=1.0, source="other", max_overlap=0.5))
    assert batch.keypoints[0, :, 2].tolist() == [2, 1, 0, 1, 2]
    assert torch.equal(batch.keypoints[0, :, :2], points[0, :, :2])


def test_the_same_source_twice_in_a_mosaic_is_pasted_as_often_as_it_is_seen():
    """A set of one photo is all tiles of its mosaic."""
    album = Album(1, squares((0, (90.0, 45.0, 10.0))))
    recipe = fp.pipe(fp.mosaic(SIZE), fp.copy_paste(p=1.0, max_overlap=1.0))
    counts = set()
    for seed in range(20):
        plan = recipe.draw(fp.key(seed=seed, epoch=0, sample=torch.tensor([0])), album)
        seen = recipe.annotate(plan.replace(overs=()), album)
        assert len(plan.overs[0].instances) == len(seen)
        counts.add(len(seen))
    assert max(counts) > 1


def test_a_draw_is_of_the_sample_alone():
    album = Album(4, squares(*((i, s) for i in range(4) for _, s in SIX)))
    recipe = fp.pipe(fp.copy_paste(p=0.5, source="other"), fp.flip(horizontal=0.5))
    all_at_once = fp.make_batch(album, recipe, range(4), seed=5)
    for i in range(4):
        one = fp.make_batch(album, recipe, [i], seed=5)
        assert torch.equal(one.images[0], all_at_once.images[i])
        assert torch.equal(one.boxes, all_at_once.boxes[all_at_once.owner == i])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fp.copy_paste(p=1.5), "copy_paste: p wanted a number in [0, 1], came 1.5"),
        (
            lambda: fp.copy_paste(p=1.0, max_overlap=-1.0),
            "copy_paste: max_overlap wanted a number in [0, 1], came -1.0",
        ),
    ],
)
def test_an_option_out_of_range_is_refused(build: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        build()
