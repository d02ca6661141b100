"""Mixup and cutmix: how much of what, whose targets, and what is refused."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fnpipe as fp
from fnpipe.keys import Key
from fnpipe.ops.raster import masks
from fnpipe.stages.mix import beta
from fnpipe.types import ArgumentError, Sample, Targets

from .test_paste import SIX, SIZE, Album, edges, make, squares


Samples = Callable[..., Key]
HEIGHT, WIDTH = SIZE


def draw(stage: Any, *, count: int = 1000, photos: int = 2, targets: Any = None) -> Any:
    album = Album(photos, squares() if targets is None else targets)
    key = fp.key(seed=0, epoch=torch.arange(count), sample=torch.zeros(count, dtype=torch.int64))
    return fp.pipe(stage).draw(key, album).overs[0]


@pytest.mark.parametrize(("alpha", "deviation"), [(1, 0.2887), (4, 1 / 6), (32, 0.0620)])
def test_beta_has_its_mean_and_its_deviation(samples: Samples, alpha: int, deviation: float):
    drawn = beta(samples(4000), alpha)
    assert float(drawn.mean()) == pytest.approx(0.5, abs=4 * deviation / 63)
    assert float(drawn.std()) == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize("stage", [fp.mixup, fp.cutmix])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_p_is_the_chance_of_a_sample(stage: Any, p: float):
    active = draw(stage(p=p)).active
    assert float(active.double().mean()) == pytest.approx(p, abs=0.05)


def test_mixup_adds_shares_of_codes_and_keeps_all_targets():
    """Case 20, too: a photo without targets brings none."""
    album = Album(3, squares(*SIX, (1, (50.0, 30.0, 40.0))))
    recipe = fp.pipe(fp.mixup(p=1.0), fp.finish())
    batch = fp.make_batch(album, recipe, [0, 0, 0, 1], seed=2)
    plan = recipe.draw(fp.key(seed=2, epoch=0, sample=torch.tensor([0, 0, 0, 1])), album)
    for i, (own, other, share) in enumerate(
        zip([0, 0, 0, 1], plan.overs[0].plan.sources.flatten().tolist(),
            plan.overs[0].weight.tolist(), strict=True)
    ):  # fmt: skip
        grey = round((32 * own + 16) * share + (32 * other + 16) * (1 - share))
        assert torch.allclose(batch.images[i] * 255, torch.tensor(float(grey)))
        counts = (6, 1, 0)
        assert int((batch.owner == i).sum()) == counts[own] + counts[other]
    assert batch.targets.visible.tolist() == [1.0] * len(batch.targets)


def test_partners_are_any_other_photos():
    sources = draw(fp.mixup(p=1.0), photos=4).plan.sources
    assert sorted(sources.unique().tolist()) == [1, 2, 3]


def test_a_window_has_its_area_and_lies_anywhere():
    """alpha = 1: any share alike; a window inside the frame has it to a pixel's rounding."""
    over = draw(fp.cutmix(p=1.0), count=4000)
    drawn = over.cover.instance_offsets.diff() > 0
    boxes = over.cover.points.view(-1, 4, 2)
    low, high = boxes[:, 0], boxes[:, 2]
    assert torch.equal(low, low.round())
    assert torch.equal(high, high.round())
    assert int(drawn.sum()) > 3900  # the rest is of no width
    frame = torch.tensor([WIDTH, HEIGHT])
    inside = ((low > 0) & (high < frame)).all(1)
    sides = (high - low)[inside]
    assert (sides[:, 0] - 2 * sides[:, 1]).abs().max() <= 2
    centres = (low + high)[inside] / 2
    small = sides[:, 0] < 20
    assert centres[small].amin(0).le(torch.tensor([15.0, 10.0])).all()
    assert centres[small].amax(0).ge(torch.tensor([185.0, 90.0])).all()


def test_a_window_shows_the_other_picture_and_cuts_the_targets_of_both():
    whole = (0, (0.0, 0.0, 100.0)), (0, (100.0, 0.0, 100.0))
    other = (1, (0.0, 0.0, 100.0)), (1, (100.0, 0.0, 100.0))
    album = Album(2, squares(*whole, *other))
    for seed in range(12):
        batch = make(album, fp.cutmix(p=1.0), seed=seed)
        seen = batch.images[0, 0] == 48
        planes = masks(batch.rings, SIZE, stride=1)
        assert torch.equal(planes.int().sum(0), torch.ones(SIZE, dtype=torch.int32))
        mine = batch.targets.ids >= 2
        assert torch.equal(planes[mine].any(0), seen)
        assert batch.boxes.tolist() == [*map(edges, planes)]
        shares = planes.sum((1, 2)) / 10000
        assert batch.targets.visible.tolist() == pytest.approx(shares.tolist(), abs=1e-6)


def test_case_55_what_a_window_hides_or_does_not_show_leaves_every_field():
    """Small squares: all of those hidden, and all of those outside the window, are gone."""
    grid = [(float(x), float(y), 4.0) for x in range(0, 200, 20) for y in range(0, 100, 20)]
    album = Album(2, squares(*((0, s) for s in grid), *((1, s) for s in grid)))
    batch = make(album, fp.cutmix(p=1.0), seed=3)
    seen = batch.images[0, 0] == 48
    for row, (x, y, _) in enumerate(grid):
        inside = seen[int(y) : int(y) + 4, int(x) : int(x) + 4]
        assert bool((batch.targets.ids == row).any()) == bool((~inside).any())
        assert bool((batch.targets.ids == row + 50).any()) == bool(inside.any())
    n = len(batch.targets)
    assert len(batch.rings.instance_offsets) == n + 1
    assert len(batch.boxes) == len(batch.labels) == len(batch.keypoints) == n
    assert torch.equal(batch.labels, batch.targets.ids)


def test_keep_decides_on_what_is_left():
    album = Album(2, squares((0, (0.0, 0.0, 100.0)), (0, (100.0, 0.0, 100.0))))
    shares = []
    for seed in range(20):
        kept = make(album, fp.cutmix(p=1.0), fp.keep(visible=0.6), seed=seed).targets.visible
        every = make(album, fp.cutmix(p=1.0), seed=seed).targets.visible
        assert kept.tolist() == [x for x in every.tolist() if x >= 0.6]
        shares += every.tolist()
    assert min(shares) < 0.6


def test_a_window_cuts_boxes_without_rings():
    targets = squares((0, (0.0, 0.0, 100.0)), (1, (100.0, 0.0, 100.0)))
    bare = targets.replace(rings=fp.Rings.empty(2))
    for seed in range(5):
        ringed = make(Album(2, targets), fp.cutmix(p=1.0), seed=seed).targets
        boxed = make(Album(2, bare), fp.cutmix(p=1.0), seed=seed).targets
        assert torch.equal(ringed.boxes, boxed.boxes)
        assert torch.equal(ringed.visible, boxed.visible)
        assert boxed.rings.instance_offsets.tolist() == [0] * (len(boxed) + 1)


def test_the_other_picture_moves_with_this_one_from_the_layer_on():
    """A flip before the layer is drawn twice, one after it once."""
    album = Album(2, squares())
    key = fp.key(seed=0, epoch=torch.arange(200), sample=torch.zeros(200, dtype=torch.int64))
    flip, mixup = fp.flip(horizontal=0.5), fp.mixup(p=1.0)
    before, after = fp.pipe(flip, mixup).draw(key, album), fp.pipe(mixup, flip).draw(key, album)
    assert torch.equal(after.mirror, after.overs[0].plan.mirror)
    assert torch.equal(before.mirror, after.mirror)
    same = (before.mirror[:, 0] == before.overs[0].plan.mirror[:, 0]).double().mean()
    assert float(same) == pytest.approx(0.5, abs=0.12)


def test_case_111_a_probability_is_no_branch():
    made = {fp.pipe(fp.mixup(p=p), fp.cutmix(p=p)).recipe(SIZE) for p in (0.0, 0.5, 1.0)}
    assert len(made) == 1
    assert made.pop().layers == 2


def test_a_layer_is_a_value():
    stages = fp.copy_paste(p=0.5, source="other"), fp.mixup(p=0.1), fp.cutmix(p=0.2, alpha=2)
    recipe = fp.pipe(*stages)
    spelled = "pipe(copy_paste(p=0.5, source='other'), mixup(p=0.1), cutmix(p=0.2, alpha=2))"
    assert repr(recipe) == spelled
    assert eval(spelled, {**vars(fp)}) == recipe


def test_a_sample_of_no_data_set_has_no_partner():
    sample = Sample(torch.zeros(3, 8, 8, dtype=torch.uint8), Targets.empty(), 0)
    key = fp.key(seed=0, epoch=0, sample=0)
    wanted = "mixup(p=1.0) needs partners: pass a sample of a data set (data[i])"
    with pytest.raises(ArgumentError, match=f"^{re.escape(wanted)}$"):
        fp.pipe(fp.mixup(p=1.0))(key, sample)
    image, targets = fp.pipe(fp.copy_paste(p=1.0))(key, sample)
    assert image.shape == (3, 8, 8)
    assert len(targets) == 0


def test_pictures_of_other_sizes_are_refused():
    album = Album(2, squares())
    album.sizes = torch.tensor([[200, 100], [100, 100]])
    wanted = (
        "mixup: the pictures on top would be (height, width) (100, 100), those beneath are "
        "(100, 200); begin with letterbox, resize, crop or mosaic"
    )
    with pytest.raises(ArgumentError, match=f"^{re.escape(wanted)}$"):
        fp.pipe(fp.mixup(p=1.0)).draw(fp.key(seed=0, epoch=0, sample=torch.tensor([0])), album)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fp.mixup(p=-0.1), "mixup: p wanted a number in [0, 1], came -0.1"),
        (
            lambda: fp.mixup(p=0.1, alpha=0),
            "mixup: alpha wanted a whole number in [1, 256], came 0",
        ),
        (lambda: fp.cutmix(p=2.0), "cutmix: p wanted a number in [0, 1], came 2.0"),
        (
            lambda: fp.cutmix(p=0.1, alpha=257),
            "cutmix: alpha wanted a whole number in [1, 256], came 257",
        ),
    ],
)
def test_an_option_out_of_range_is_refused(build: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        build()
