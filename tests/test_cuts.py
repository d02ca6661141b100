"""A parcel of any cut, looked at on the host: the batch of it, and the parcel as it was."""

import re
from dataclasses import replace

import pytest
import torch

import fnpipe as fp
from fnpipe import cuts
from fnpipe.data.dataset import Dataset
from fnpipe.packing import packed
from fnpipe.testing import assert_same_bits
from fnpipe.types import Sources, map_tensors


TRAIN = fp.pipe(
    fp.mosaic(16),
    fp.mixup(p=0.5),
    fp.affine(scale=0.5),
    fp.hsv(hue=0.1),
    fp.flip(horizontal=0.5),
    fp.masks(stride=4),
    fp.finish(torch.float16, channels_last=True),
)
IDS = torch.tensor([3, 0, 9])


def draw(data: Dataset) -> cuts.Parcel:
    return cuts.draw(data, TRAIN, fp.key(seed=1, epoch=2, sample=IDS))


@pytest.mark.parametrize("cut", cuts.CUTS)
def test_a_parcel_can_be_looked_at_and_stays_what_it_is(cut: str, photos: Dataset):
    """The reference's bytes, twice; no bit of the parcel or the pool is another afterwards."""
    pool = fp.pool(photos, "ram", progress=False).sources if cut == "plan" else None
    parcel = cuts.add_pixels(draw(photos), TRAIN, cut, "eager", photos, None)
    before = map_tensors(torch.clone, (parcel, pool))
    expected = fp.make_batch(photos, TRAIN, IDS, seed=1, epoch=2)
    for _ in range(2):
        assert_same_bits(expected, fp.complete(parcel, TRAIN, pool=pool))
        assert_same_bits(before, (parcel, pool))


def test_a_parcel_beside_which_windows_came_wants_the_pool_they_are_for(photos: Dataset):
    """Landing writes to the pool; one that is whole cannot be written to, and is not."""
    limit = fp.pool(photos, "ram", progress=False).bytes // 2
    part = fp.pool(photos, "device", device="cpu", limit=limit, overflow="prefix", progress=False)
    assert part.rest is not None
    small, ids = fp.pipe(fp.crop(4), fp.hsv(hue=0.1)), torch.tensor([9, 0])
    drawn = cuts.draw(photos, small, fp.key(seed=1, epoch=2, sample=ids))
    parcel = cuts.add_pixels(drawn, small, "plan", "eager", photos, part.rest)
    assert isinstance(parcel.lacking, Sources)
    expected = fp.make_batch(photos, small, ids, seed=1, epoch=2)
    assert_same_bits(expected, fp.complete(parcel, small, pool=part.sources))
    named = cuts.add_pixels(drawn, small, "plan", "eager", photos, replace(part.rest, copies=False))
    assert_same_bits(parcel, cuts.fetch(named, part.rest.host.sources.words))
    with pytest.raises(fp.ArgumentError, match=r"^complete: windows beside a plan wait for fnpipe"):
        fp.complete(named, small, pool=part.sources)
    message = (
        f"pool has room for 0 words, came windows of {len(parcel.lacking.words)}: they belong to a "
        "pool that a device holds in part; here, gather the plan from the whole"
    )
    with pytest.raises(fp.ArgumentError, match=f"^{re.escape(message)}$"):
        fp.complete(parcel, small, pool=part.rest.host.sources)
    sources, plan = part.gather(drawn.plan)
    assert_same_bits(expected, fp.complete(drawn.replace(plan=plan), small, pool=sources))


def test_a_plan_alone_wants_its_pool(photos: Dataset):
    message = "complete: a parcel of a plan alone wants the pool it counts in"
    with pytest.raises(fp.ArgumentError, match=f"^{message}$"):
        fp.complete(draw(photos), TRAIN)


def test_windows_that_are_not_copied_yet_want_the_pool_they_lie_in(photos: Dataset):
    """What a worker sends of a pool that a device reads itself."""
    pool = fp.pool(photos, "ram", progress=False)
    named = cuts.Mapped(pool.sources.replace(words=torch.zeros(0, dtype=torch.int32)))
    parcel = cuts.add_pixels(draw(photos), TRAIN, "source", "eager", photos, named)
    assert packed(parcel).buffer.numel() < 10_000
    expected = fp.make_batch(photos, TRAIN, IDS, seed=1, epoch=2)
    assert_same_bits(expected, fp.complete(parcel, TRAIN, pool=pool.sources))
    assert_same_bits(expected, fp.complete(cuts.fetch(parcel, pool.sources.words), TRAIN))
    copied = cuts.add_pixels(draw(photos), TRAIN, "source", "eager", photos, pool)
    assert copied.sources is not None
    assert_same_bits(copied.sources, cuts.fetch(parcel, pool.sources.words).sources)
    settled = cuts.settle(parcel, TRAIN, pool=pool.sources)
    assert settled.seen is None
    assert_same_bits(expected, fp.complete(settled, TRAIN))
    with pytest.raises(fp.ArgumentError, match=r"^complete: a parcel of a plan alone wants"):
        fp.complete(parcel, TRAIN)
