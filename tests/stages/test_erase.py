"""Erasing: where rectangles lie, what they show, and what is left of what they hide."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.keys import Key
from fnpipe.ops.layers import rasterized
from fnpipe.ops.raster import masks
from fnpipe.types import ArgumentError, Rings

from .test_paste import SIX, SIZE, Album, edges, make, squares


HEIGHT, WIDTH = SIZE


def many(count: int) -> Key:
    return fp.key(seed=0, epoch=torch.arange(count), sample=torch.zeros(count, dtype=torch.int64))


def rectangles_of(stage: Any, *, count: int = 1000) -> tuple[Tensor, Tensor]:
    """Of a batch, how many rectangles each image has, and x0, y0, x1, y1 of all."""
    cover = fp.pipe(stage).draw(many(count), Album(1, squares())).overs[0].cover
    assert isinstance(cover, Rings)
    return cover.instance_offsets.diff(), cover.points.view(-1, 4, 2)[:, [0, 2]].flatten(1)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_p_is_the_chance_of_a_sample_and_then_all_rectangles_are_there(p: float):
    counts, _ = rectangles_of(fp.erase(p=p, count=3))
    assert set(counts.tolist()) <= {0, 3}
    assert float((counts > 0).double().mean()) == pytest.approx(p, abs=0.05)


def test_sides_are_shares_of_the_frame_and_places_anywhere():
    _, boxes = rectangles_of(fp.erase(p=1.0, count=2, side=(0.1, 0.3)), count=4000)
    assert torch.equal(boxes, boxes.round())
    width, height = (boxes[:, 2:] - boxes[:, :2]).unbind(1)
    assert (width.min(), width.max()) == (0.1 * WIDTH, 0.3 * WIDTH)
    assert (height.min(), height.max()) == (0.1 * HEIGHT, 0.3 * HEIGHT)
    assert float(width.mean()) == pytest.approx(0.2 * WIDTH, rel=0.02)
    assert abs(float(torch.corrcoef(torch.stack([width, height]))[0, 1])) < 0.05
    assert boxes.amin(0)[:2].tolist() == [0, 0]
    assert boxes.amax(0)[2:].tolist() == [WIDTH, HEIGHT]


def test_a_rectangle_has_a_pixel_at_least_and_the_frame_at_most():
    _, least = rectangles_of(fp.erase(p=1.0, side=(0.0, 0.0)))
    assert (least[:, 2:] - least[:, :2]).unique().tolist() == [1.0]
    _, most = rectangles_of(fp.erase(p=1.0, side=(1.0, 1.0)))
    assert most.unique(dim=0).tolist() == [[0, 0, WIDTH, HEIGHT]]


def test_a_greater_p_or_count_only_adds():
    few, more = (rectangles_of(fp.erase(p=1.0, count=n), count=9)[1] for n in (2, 3))
    assert torch.equal(few.view(9, 2, 4), more.view(9, 3, 4)[:, :2])
    seldom, often = (rectangles_of(fp.erase(p=p))[0] > 0 for p in (0.2, 0.6))
    assert not (seldom & ~often).any()


def test_what_is_erased_is_fill_before_colour():
    album = Album(1, squares())
    for seed in range(6):
        image = make(album, fp.erase(p=1.0, count=2), seed=seed).images[0]
        assert set(image.unique().tolist()) == {16, 114}
    batch = make(album, fp.solarize(100.0, p=1.0), fp.erase(p=1.0))
    assert set(batch.images.unique().tolist()) == {16, 255 - 114}


def test_case_69_a_pose_keeps_its_rows_through_a_crop_and_under_what_is_erased():
    """Of 17 points a crop removes 5 and a rectangle covers 2."""
    recipe = fp.pipe(fp.crop(HEIGHT), fp.erase(p=1.0, side=(0.3, 0.6)))
    key = fp.key(seed=4, epoch=0, sample=torch.tensor([0]))
    plan = recipe.draw(key, Album(1, squares()))
    left = -float(plan.forward[0, 0, 0, 2])
    cover = plan.overs[0].cover
    assert isinstance(cover, Rings)
    (x0, y0), _, (x1, y1), _ = cover.points.tolist()
    assert left >= 5
    outside = [(float(i), 50.0) for i in range(5)]
    covered = [(left + x0, y0), (left + x1 - 0.5, y1 - 0.5)]
    grid = [(x + 0.5, y + 0.5) for y in range(0, HEIGHT, 9) for x in range(0, HEIGHT, 9)]
    free = [(left + x, y) for x, y in grid if not (x0 <= x < x1 and y0 <= y < y1)][:10]
    pose = torch.tensor([(x, y, 2.0) for x, y in (*outside, *covered, *free)])
    assert pose.shape == (17, 3)

    targets = squares((0, (0.0, 0.0, 200.0))).replace(keypoints=pose[None])
    made = recipe.annotate(plan, Album(1, targets)).keypoints
    assert made.shape == (1, 17, 3)
    assert made[0, :, 2].tolist() == [0] * 5 + [1] * 2 + [2] * 10
    assert torch.equal(made[0, 5:, :2], pose[5:, :2] - torch.tensor([left, 0.0]))


def test_what_is_hidden_is_taken_off_masks_boxes_and_shares():
    album = Album(1, squares(*SIX, (0, (100.0, 10.0, 80.0))))
    hidden = 0
    for seed in range(10):
        batch = make(album, fp.erase(p=1.0, side=(0.2, 0.5)), seed=seed)
        seen = batch.images[0, 0] == 16
        whole = masks(album.targets.rings, SIZE, stride=1)
        stays = (whole & seen).flatten(1).any(1)
        assert batch.targets.ids.tolist() == stays.nonzero().flatten().tolist()
        assert torch.equal(masks(batch.rings, SIZE, stride=1), (whole & seen)[stays])
        assert batch.boxes.tolist() == [*map(edges, (whole & seen)[stays])]
        shares = (whole & seen).sum((1, 2))[stays] / whole.sum((1, 2))[stays]
        assert torch.equal(batch.targets.visible, shares)
        hidden += int((~stays).sum())
    assert hidden > 0


def test_keep_drops_what_is_hidden_for_the_most_part():
    album = Album(1, squares((0, (50.0, 20.0, 60.0))))
    shares = []
    for seed in range(40):
        every = make(album, fp.erase(p=1.0, side=(0.3, 0.9)), seed=seed).targets.visible
        kept = make(album, fp.erase(p=1.0, side=(0.3, 0.9)), fp.keep(visible=0.5), seed=seed)
        assert kept.targets.visible.tolist() == [x for x in every.tolist() if x >= 0.5]
        shares += every.tolist()
    assert min(shares) < 0.5


def test_a_layer_after_it_lies_on_top():
    album = Album(2, squares())
    below = make(album, fp.erase(p=1.0, side=(1.0, 1.0)), fp.mixup(p=1.0)).images
    above = make(album, fp.mixup(p=1.0), fp.erase(p=1.0, side=(1.0, 1.0))).images
    assert (above == 114).all()
    assert (below < 114).all()


def test_targets_want_rectangles_not_their_bits():
    album, recipe = Album(1, squares(*SIX)), fp.pipe(fp.erase(p=1.0))
    plan = rasterized(recipe.draw(many(1), album))
    with pytest.raises(ArgumentError, match=r"^annotate: a layer wanted rings, came their bits;"):
        recipe.annotate(plan, album)


def test_it_draws_what_it_draws_in_any_batch_and_is_a_value():
    album = Album(4, squares(*SIX))
    recipe = fp.pipe(fp.erase(p=0.5, count=2, side=(0.2, 0.4)), fp.flip(horizontal=0.5))
    all_at_once = fp.make_batch(album, recipe, range(4), seed=5)
    for i in range(4):
        one = fp.make_batch(album, recipe, [i], seed=5)
        assert torch.equal(one.images[0], all_at_once.images[i])
    spelled = "pipe(erase(p=0.5, count=2, side=(0.2, 0.4)), flip(horizontal=0.5))"
    assert repr(recipe) == spelled
    assert eval(spelled, {**vars(fp)}) == recipe


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fp.erase(p=1.5), "erase: p wanted a number in [0, 1], came 1.5"),
        (lambda: fp.erase(p=1.0, count=0), "erase: count wanted an integer >= 1, came 0"),
        (
            lambda: fp.erase(p=1.0, side=(0.1, 2.0)),
            "erase: side wanted a number in [0, 1], came 2.0",
        ),
        (
            lambda: fp.erase(p=1.0, side=(0.3, 0.1)),
            "erase: side wanted (least, most) shares of the frame, came (0.3, 0.1)",
        ),
    ],
)
def test_an_option_out_of_range_is_refused(build: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        build()
