"""Masks of a batch: the same bits wherever it is cut, and over the object that the image shows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import Album, seeds
from torch import Tensor

import fnpipe as fp
from fnpipe import cuts
from fnpipe.cuts import Parcel, add_pixels, complete
from fnpipe.keys import key
from fnpipe.ops.ragged import offsets_of
from fnpipe.ops.warp import pack_sources
from fnpipe.testing import targets_of
from fnpipe.types import Rings


SIZE = (48, 64)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
some = settings(max_examples=25, deadline=None)


def blobs(count: int, seed: int) -> Album:
    """Grey photos with up to three polygons each, one of them of two rings, or none at all."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(20, 90, (count, 2), generator=generator)
    counts = torch.randint(0, 4, (count,), generator=generator)
    owner = torch.repeat_interleave(torch.arange(count), counts)
    n = len(owner)
    rings = torch.randint(0, 3, (n,), generator=generator)
    whose = torch.repeat_interleave(owner, rings)
    points = torch.rand(len(whose), 7, 2, generator=generator) * sizes[whose][:, None]
    low = torch.rand(n, 2, generator=generator) * sizes[owner] * 0.5
    targets = targets_of(
        torch.cat([low, low + sizes[owner] * 0.4], 1),
        labels=torch.arange(n) % 5,
        owner=owner,
        ignore=torch.arange(n) % 3 == 0,
        rings=Rings(
            points.view(-1, 2),
            7 * torch.arange(len(whose) + 1),
            offsets_of(rings),
        ),
    )
    grey = [torch.full((3, h, w), 90, dtype=torch.uint8) for w, h in sizes.tolist()]
    return Album(grey, targets)


def parcel_of(recipe: fp.Pipeline, album: Album, cut: str, seed: int) -> Parcel:
    """What a worker sends of a batch of the first two photos."""
    at = key(seed=seed, epoch=0, sample=torch.arange(2))
    return add_pixels(cuts.draw(album, recipe, at), recipe, cut, "eager", album, None)


stages = st.builds(
    fp.masks,
    stride=st.sampled_from([1, 2, 4, 8]),
    kind=st.sampled_from(["instance", "overlap", "semantic"]),
)
layouts = st.sampled_from([fp.mosaic(SIZE), fp.mosaic(SIZE, tiles=9), fp.letterbox(SIZE)])


@some
@given(stages, layouts, st.integers(0, 99), seeds)
def test_every_cut_has_the_same_masks(stage, layout, photos, seed):
    recipe = fp.pipe(layout, fp.affine(scale=0.5, degrees=20.0), fp.flip(horizontal=0.5), stage)
    album = blobs(5, photos)
    pool = pack_sources(album.images)
    parcels = {cut: parcel_of(recipe, album, cut, seed) for cut in cuts.CUTS}
    assert [cut for cut, p in parcels.items() if p.masks is not None] == ["finished"]
    batches = [complete(p, recipe, pool=pool) for p in parcels.values()]
    masks = batches[0].masks
    for batch in batches[1:]:
        assert_same(masks, batch.masks)
    rows = len(batches[0].targets) if stage.kind == "instance" else 2
    assert masks.shape == (rows, SIZE[0] // stage.stride, SIZE[1] // stage.stride)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 999))
def test_a_package_makes_the_same(package_cache, count, photos):
    """Of any number of crossings, down to none."""
    targets, stage = blobs(count, photos).targets, fp.masks(stride=4)
    wanted = stage.rasterize(targets, count, (64, 96))
    assert_same(wanted, stage.rasterize(targets, count, (64, 96), impl="package"))


@pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")
@settings(max_examples=6, deadline=None)
@given(st.sampled_from(["instance", "overlap", "semantic"]), st.integers(0, 99))
def test_the_kernels_make_the_same_in_their_interpreter(kind, photos):
    targets, stage = blobs(5, photos).targets, fp.masks(stride=4, kind=kind)
    got = stage.rasterize(targets.to(DEVICE), 5, (64, 96), impl="triton").cpu()
    assert_same(stage.rasterize(targets, 5, (64, 96)), got)


def assert_same(a: Tensor, b: Tensor) -> None:
    assert a.dtype == b.dtype
    assert torch.equal(a, b), f"{int((a != b).sum())} pixels differ"


@some
@given(st.integers(0, 99), seeds)
def test_maps_follow_from_the_masks_of_instances(photos, seed):
    """Pixel by pixel: of the instances there, the one with the smallest mask, the later of two."""
    album = blobs(5, photos)

    def made(kind: str) -> fp.Batch:
        recipe = fp.pipe(fp.mosaic(SIZE), fp.masks(stride=2, kind=kind))
        return complete(parcel_of(recipe, album, "finished", seed), recipe)

    batch = made("instance")
    planes = batch.masks
    areas = planes.flatten(1).sum(1)
    labels = torch.full((2, 24, 32), -1, dtype=torch.int32)
    numbers = torch.zeros_like(labels)
    for row in sorted(range(len(planes)), key=lambda i: (-int(areas[i]), i)):
        image = int(batch.owner[row])
        labels[image][planes[row]] = int(batch.labels[row])
        numbers[image][planes[row]] = row - int((batch.owner < image).sum()) + 1
    assert_same(made("semantic").masks, labels)
    assert_same(made("overlap").masks, numbers)


def test_masks_a_pixel_off_are_seen():
    """The law can fail: rings that the device moved by one mask pixel."""
    recipe = fp.pipe(fp.mosaic(SIZE), fp.masks())
    wanted = complete(parcel_of(recipe, blobs(5, 3), "finished", 0), recipe)
    assert len(wanted.targets)
    late = parcel_of(recipe, blobs(5, 3), "warped", 0)
    rings = late.targets.rings
    moved = late.targets.replace(rings=rings.replace(points=rings.points + 4.0))
    with pytest.raises(AssertionError, match="pixels differ"):
        assert_same(wanted.masks, complete(late.replace(targets=moved), recipe).masks)
