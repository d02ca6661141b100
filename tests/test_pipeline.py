"""Composing stages, drawing plans, and one sample by hand; what each refuses, in its own words."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.ops.warp import pack_sources
from fnpipe.ops.windows import gather
from fnpipe.pipeline import Alone, Photos
from fnpipe.testing import targets_of
from fnpipe.types import ArgumentError, Sample, Targets


def photo(width: int, height: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


def boxed(*boxes: tuple[float, float, float, float], quads: Any = None) -> Targets:
    """Instances of one photo: boxes, and quads where they are given."""
    return targets_of(boxes, **({} if quads is None else {"quads": torch.tensor(quads)}))


class Album:
    """Photos in memory without targets."""

    def __init__(self, *images: Tensor) -> None:
        self.images = images
        self.sizes = torch.tensor([[i.shape[2], i.shape[1]] for i in images])
        self.targets = Targets.empty()
        self.offsets = torch.zeros(len(images) + 1, dtype=torch.int64)
        self.keypoint_flip = ()
        self.asked: list[int] = []

    def read(self, index: int) -> Tensor:
        self.asked.append(index)
        return self.images[index]


def sample_of(image: Tensor, targets: Targets | None = None, *, id: int = 0) -> Sample:
    return Sample(image, Targets.empty() if targets is None else targets, id)


def at(sample: int, *, seed: int = 0, epoch: int = 0) -> fp.Key:
    return fp.key(seed=seed, epoch=epoch, sample=sample)


# Composing


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fp.pipe(fp.flip(), fp.hsv(), fp.flip()),
            "pipe: the name 'flip' is there 2 times; draws depend on it, so give one of them "
            "another: name='flip2'",
        ),
        (
            lambda: fp.pipe(fp.flip(), fp.mosaic(64)),
            "pipe: mosaic(64) chooses the photos and must be first",
        ),
        (
            lambda: fp.pipe(fp.finish(), fp.keep(), fp.hsv()),
            "pipe: finish() must be last, came before hsv()",
        ),
        (
            lambda: fp.pipe(fp.masks(), fp.masks(kind="overlap", name="more")),
            "pipe: masks(kind='overlap', name='more') is the second masks, and a batch has one "
            "kind of them",
        ),
        (
            lambda: fp.pipe(fp.flip),
            "pipe: wanted stages, came <class 'fnpipe.stages.geometry.flip'>; call it: flip(...)",
        ),
        (
            lambda: fp.pipe(SimpleNamespace(name="half", draw=None)),
            "pipe: wanted stages, came namespace(name='half', draw=None); a stage of geometry has "
            "name, projective, draw and move",
        ),
        (
            lambda: fp.pipe(abs),
            "pipe: wanted stages, came <built-in function abs>; a function of three planes "
            "becomes one by fnpipe.pointwise(fn).drawn(...)",
        ),
    ],
    ids=[
        *("a name twice", "a layout later", "a finish earlier", "masks twice", "a class"),
        *("half a stage", "a function"),
    ],
)
def test_what_makes_no_pipeline_is_refused(make: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        make()


def test_a_pipeline_is_written_as_it_was_built():
    made = fp.pipe(fp.mosaic(64, tiles=9), fp.pipe(fp.hsv(hue=0.5), fp.flip(horizontal=0.5)))
    assert repr(made) == "pipe(mosaic(64, tiles=9), hsv(hue=0.5), flip(horizontal=0.5))"
    assert repr(fp.pipe()) == "pipe()"


def test_a_recipe_is_what_pixels_depend_on_besides_numbers():
    one = fp.pipe(fp.mosaic(64), fp.affine(degrees=10.0), fp.hsv(hue=0.1), fp.finish())
    other = fp.pipe(fp.mosaic(64, p=0.5), fp.hsv(value=0.9, name="b"), fp.finish())
    assert one.recipe((64, 64)) == other.recipe((64, 64))
    assert one.recipe((64, 64)) != one.recipe((32, 64))
    tilted = fp.pipe(fp.affine(perspective=0.001))
    assert tilted.recipe((8, 8)).projective
    assert not one.recipe((8, 8)).projective


# Drawing


def test_images_of_differing_size_are_refused():
    album = Album(photo(8, 6), photo(6, 8))
    key = fp.key(seed=0, epoch=0, sample=torch.tensor([0, 1]))
    with pytest.raises(ArgumentError) as caught:
        fp.pipe(fp.hsv()).draw(key, album)
    assert str(caught.value) == (
        "draw: images would differ in size ((8, 6) and others); "
        "begin with letterbox, resize, crop or mosaic"
    )
    assert fp.pipe(fp.resize(4)).draw(key, album).size == (4, 4)


def test_a_batch_of_none_is_refused():
    key = fp.key(seed=0, epoch=0, sample=torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="wanted at least one sample, came none"):
        fp.pipe(fp.resize(4)).draw(key, Album(photo(8, 6)))


def test_a_map_that_looks_beyond_32_bits_is_refused():
    album = Album(photo(9000, 1))
    tiny = fp.pipe(fp.resize(1), fp.crop(600, position="center"))
    key = fp.key(seed=0, epoch=0, sample=torch.tensor([0]))
    with pytest.raises(ArgumentError) as caught:
        tiny.draw(key, album)
    assert str(caught.value) == (
        "plan: sample 0 looks more than 2.09715e+06 pixels away from its photo; draw a milder map"
    )


def test_geometry_multiplies_in_order_and_colour_waits():
    """Crop at the middle, then a flip, then twice as large; the colour between is no map."""
    album = Album(photo(20, 10))
    pipeline = fp.pipe(
        fp.crop((4, 8), position="center"),
        fp.flip(horizontal=1.0),
        fp.hsv(hue=0.5),
        fp.resize((8, 16)),
    )
    plan = pipeline.draw(fp.key(seed=0, epoch=0, sample=torch.tensor([0])), album)
    corner = plan.forward[0, 0] @ torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)
    assert corner.tolist() == [16, 0, 1]
    assert plan.mirror.tolist() == [[False, False]]
    assert plan.size == (8, 16)
    assert [tuple(c.shape) for c in plan.colors] == [(1, 3)]


def test_a_last_flip_stays_out_of_the_maps_but_not_out_of_the_targets():
    album = Album(photo(20, 10))
    key = fp.key(seed=0, epoch=0, sample=torch.tensor([0]))
    plan = fp.pipe(fp.flip(horizontal=1.0)).draw(key, album)
    assert plan.mirror.tolist() == [[True, False]]
    assert plan.maps[0, 0].tolist() == [[128, 0, 0], [0, 128, 0], [0, 0, 1]]
    assert plan.forward[0, 0].tolist() == [[-1, 0, 20], [0, 1, 0], [0, 0, 1]]


def test_every_photo_is_read_once_and_an_empty_tile_reads_none():
    album = Album(*(photo(8, 6, seed=i) for i in range(3)))
    key = fp.key(seed=0, epoch=0, sample=torch.tensor([2, 2, 0]))
    plan = fp.pipe(fp.mosaic(8, p=0.0)).draw(key, album)
    assert plan.sources.tolist() == [[2, -1, -1, -1], [2, -1, -1, -1], [0, -1, -1, -1]]
    sources, local = gather(plan, album.read)
    assert album.asked == [0, 2]
    assert local.sources.tolist() == [[1, -1, -1, -1], [1, -1, -1, -1], [0, -1, -1, -1]]
    assert len(sources) == 2


def test_no_photo_makes_no_source():
    assert len(pack_sources([])) == 0


# One sample by hand


def test_no_stage_leaves_a_sample_as_it_is():
    image, targets = photo(13, 7), boxed((1, 2, 5, 6), (0, 0, 13, 7))
    made, moved = fp.pipe()(at(4), sample_of(image, targets, id=4))
    assert torch.equal(made, image)
    assert torch.equal(moved.boxes, targets.boxes)
    assert torch.equal(moved.labels, targets.labels)


def test_a_sample_moves_with_its_boxes():
    pipeline = fp.pipe(fp.flip(horizontal=1.0), fp.finish(torch.float16))
    made, moved = pipeline(at(0), sample_of(photo(800, 400), boxed((355, 10, 660, 250))))
    assert made.dtype == torch.float16
    assert made.shape == (3, 400, 800)
    assert moved.boxes.tolist() == [[140, 10, 445, 250]]


def test_case_63_a_vertical_flip_alone_and_inside_a_pipeline():
    sample = sample_of(photo(800, 400), boxed((355, 10, 660, 250)))
    flip = fp.flip(vertical=1.0)
    for pipeline in (fp.pipe(flip), fp.pipe(fp.pipe(fp.hsv(), fp.pipe(flip)), fp.finish())):
        assert pipeline(at(0), sample)[1].boxes.tolist() == [[355, 150, 660, 390]]


def test_the_key_of_another_sample_is_refused():
    with pytest.raises(ArgumentError, match=re.escape("key is of sample [3], sample.id is 5")):
        fp.pipe()(at(3), sample_of(photo(4, 4), id=5))
    batch = fp.key(seed=0, epoch=0, sample=torch.tensor([5, 6]))
    with pytest.raises(ArgumentError, match=re.escape("key is of sample [5, 6], sample.id is 5")):
        fp.pipe()(batch, sample_of(photo(4, 4), id=5))


def test_a_mosaic_of_a_sample_without_a_data_set_is_refused():
    with pytest.raises(ArgumentError) as caught:
        fp.pipe(fp.mosaic(8))(at(0), sample_of(photo(4, 4)))
    assert str(caught.value) == ("mosaic(8) needs partners: pass a sample of a data set (data[i])")


def test_a_sample_alone_is_a_data_set_of_one():
    alone = Alone(sample_of(photo(7, 5), boxed((0, 0, 1, 1))))
    assert isinstance(alone, Photos)
    assert alone.sizes.tolist() == [[7, 5]]
    assert alone.offsets.tolist() == [0, 1]


def test_by_default_all_stay_of_which_anything_is_visible():
    sample = sample_of(photo(20, 20), boxed((0, 0, 11, 20), (0, 0, 10.5, 4), (0, 0, 9, 9)))
    crop = fp.crop((20, 10), position="center")

    def ids(*more: Any) -> list[int]:
        return fp.pipe(crop, *more)(at(0), sample)[1].ids.tolist()

    assert ids() == [0, 1, 2]
    assert ids(fp.keep(visible=0.5)) == [0, 1]
    assert ids(fp.keep(side=5.0)) == [0]
    assert ids(fp.keep(visible=0.5), fp.keep(side=5.0, name="large")) == [0]


@pytest.mark.parametrize(("width", "height"), [(9000, 6), (6, 9000), (1, 1), (1, 500)])
def test_case_12_a_very_long_photo_goes_through_every_stage(width: int, height: int):
    pipeline = fp.pipe(
        fp.letterbox(640),
        fp.affine(degrees=5.0, scale=0.5, translate=0.1),
        fp.hsv(hue=0.01, saturation=0.7, value=0.4),
        fp.flip(horizontal=0.5),
        fp.finish(torch.float32),
    )
    made, _ = pipeline(at(0), sample_of(photo(width, height)))
    assert made.shape == (3, 640, 640)
    assert torch.isfinite(made).all()


def test_case_12_and_through_a_mosaic():
    album = Album(photo(9000, 6), photo(6, 9000), photo(1, 1), photo(1, 500))
    key = fp.key(seed=0, epoch=0, sample=torch.arange(4))
    pipeline = fp.pipe(fp.mosaic(640), fp.affine(scale=0.5), fp.finish(torch.float32))
    sources, plan = gather(pipeline.draw(key, album), album.read)
    made = pipeline.render(plan, sources)
    assert made.shape == (4, 3, 640, 640)
    assert torch.isfinite(made).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_case_116_oriented_boxes_are_float32_whatever_the_images_are(dtype: torch.dtype):
    """300 squared is beyond float16; corners of 900 are whole only to a half in it."""
    quads = [[[300.25, 310.5], [900.75, 310.5], [900.75, 610.125], [300.25, 610.125]]]
    targets = boxed((300.25, 310.5, 900.75, 610.125), quads=quads)
    pipeline = fp.pipe(fp.flip(horizontal=1.0), fp.finish(dtype))
    _, moved = pipeline(at(0), sample_of(photo(1000, 700), targets))
    assert moved.quads.dtype == torch.float32
    x, y = moved.quads[0].amin(0).tolist()
    assert (x, y) == pytest.approx((99.25, 310.5), abs=1e-3)
    assert moved.quads[0].amax(0).tolist() == pytest.approx([699.75, 610.125], abs=1e-3)


def test_case_117_a_resize_neither_wraps_nor_leaves_the_range_of_its_neighbours():
    white, _ = fp.pipe(fp.resize(48))(at(0), sample_of(torch.full_like(photo(224, 224), 255)))
    assert (white == 255).all()
    image = photo(224, 224).clamp(100, 110)
    made, _ = fp.pipe(fp.resize(48))(at(0), sample_of(image))
    assert made.min() >= 100
    assert made.max() <= 110


@pytest.mark.parametrize("count", [1, 4])
def test_case_113_images_lie_in_memory_as_asked_for(count: int):
    album = Album(*(photo(9, 7, seed=i) for i in range(count)))
    key = fp.key(seed=0, epoch=0, sample=torch.arange(count))
    for channels_last, order in ((True, torch.channels_last), (False, torch.contiguous_format)):
        pipeline = fp.pipe(fp.hsv(), fp.finish(torch.uint8, channels_last=channels_last))
        sources, plan = gather(pipeline.draw(key, album), album.read)
        made = pipeline.render(plan, sources)
        assert made.is_contiguous(memory_format=order)
        assert all(torch.equal(made[i], album.images[i]) for i in range(count))


def test_case_86_an_image_of_floats_is_refused():
    image = torch.linspace(-1, 1, 48).view(3, 4, 4)
    album = Album(image)
    with pytest.raises((ArgumentError, TypeError), match=r"uint8|UInt8"):
        pack_sources([album.read(0)])


def test_case_82_84_a_grey_photo_stays_grey_through_every_gain():
    pipeline = fp.pipe(fp.hsv(hue=0.5, saturation=1.0, value=0.0))
    for code in (0, 128, 255):
        grey = torch.full((3, 5, 6), code, dtype=torch.uint8)
        made, _ = pipeline(at(0, seed=3), sample_of(grey))
        assert torch.equal(made, grey)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_case_85_a_black_patch_stays_black_and_finite(dtype: torch.dtype):
    image = photo(16, 16)
    image[:, 4:12, 4:12] = 0
    pipeline = fp.pipe(fp.hsv(hue=0.5, saturation=1.0, value=1.0), fp.finish(dtype))
    for seed in range(5):
        made, _ = pipeline(at(0, seed=seed), sample_of(image))
        assert torch.isfinite(made).all()
        assert not made[:, 4:12, 4:12].any()
