"""Whole pictures: every backend's bytes are eager's, and eager's are what the words say."""

import pickle
import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenes import (
    ALBUM,
    SIZE,
    Album,
    assert_seen,
    batches,
    draw,
    exact_scenes,
    finishes,
    photo,
    pipelines,
    render,
    seeds,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fnpipe as fp
from fnpipe import cuts
from fnpipe.numerics import count_differences
from fnpipe.ops import render as definitions
from fnpipe.ops.maps import matrix as matrix_of
from fnpipe.ops.maps import scale_and_shift, sine_cosine
from fnpipe.ops.warp import pack_sources
from fnpipe.ops.windows import cut, measure
from fnpipe.packing import packed
from fnpipe.stages.stage import Placed, stage
from fnpipe.types import Plan, Sources


many = settings(max_examples=200, deadline=None)
some = settings(max_examples=50, deadline=None)


def assert_same(who: str, expected: Tensor, got: Tensor) -> None:
    count, first = count_differences(expected, got)
    assert count == 0, f"{who}: {count} of {expected.numel()} words differ, first at {first}"
    assert got.stride() == expected.stride(), f"{who}: another layout"


@many
@given(exact_scenes())
def test_a_pixel_shows_what_the_words_say(scene: tuple[Album, Plan]):
    album, plan = scene
    assert_seen(definitions.warp, album, plan)


# Backends

PROJECTED = fp.pipe(
    fp.mosaic(SIZE, p=0.9),
    fp.affine(degrees=180, translate=0.3, scale=0.9, shear=20, perspective=0.004, p=0.9),
    fp.hsv(hue=0.5, saturation=0.7, value=0.4),
    fp.contrast(0.9, p=0.5),
    fp.flip(horizontal=0.5, vertical=0.5),
    fp.finish(torch.bfloat16, channels_last=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)),
)
NINE = fp.pipe(
    fp.mosaic(SIZE, tiles=9, p=0.9),
    fp.affine(degrees=180, translate=0.5, scale=0.9, shear=30),
    fp.grayscale(p=0.3),
    fp.flip(horizontal=0.5),
    fp.hsv(hue=0.1, saturation=1, value=1),
    fp.finish(torch.float32),
)


TILTED = fp.pipe(
    fp.letterbox(SIZE),
    fp.affine(degrees=180, translate=0.3, scale=0.9, shear=20, perspective=0.004, p=0.9),
    fp.hsv(hue=0.5, saturation=0.7, value=0.4),
    fp.flip(horizontal=0.5, vertical=0.5),
    fp.finish(torch.bfloat16, channels_last=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)),
)
FOUR = fp.pipe(
    fp.mosaic(SIZE, p=0.9),
    fp.affine(translate=0.1, scale=0.9),
    fp.hsv(hue=0.015, saturation=0.7, value=0.4),
    fp.flip(horizontal=0.5),
    fp.finish(torch.uint8),
)


def graphs() -> int:
    """How many graphs were compiled so far."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_case_110_batches_of_any_size_share_a_compilation(device: torch.device):
    """Two graphs, each compiled for any batch and for a batch of one. Boxes are no part of them."""
    before = graphs()

    def check(ids: list[int], seed: int) -> None:
        sources, plan = draw(TILTED, ids, seed=seed)
        got = TILTED.render(plan.to(device), sources.to(device), backend="compiled")
        assert_same(f"a batch of {len(ids)}", TILTED.render(plan, sources), got.cpu())

    for count in (16, 16, 16, 7, 1):
        check([i % len(ALBUM) for i in range(count)], count)
    some(given(batches, seeds)(check))()
    assert graphs() - before <= 4
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("last", [False, True], ids=["planes apart", "channels last"])
def test_a_package_makes_eagers_bytes(package_cache: None, last: bool):
    """Each plane is written in its place: in memory of its own, or in the gaps of the others."""
    finish = fp.finish(torch.bfloat16, channels_last=True)
    pipeline = fp.pipe(*FOUR.stages[:-1], finish) if last else FOUR

    def check(ids: list[int], seed: int) -> None:
        sources, plan = draw(pipeline, ids, seed=seed)
        expected = pipeline.render(plan, sources)
        memory: list[Tensor] = []

        def empty(count: int, *, dtype: torch.dtype) -> Tensor:
            memory.append(torch.empty(count, dtype=dtype))
            return memory[0]

        got = pipeline.render(plan, sources, backend="package", empty=empty)
        assert_same("package", expected, got)
        assert got.data_ptr() == memory[0].data_ptr()
        assert got.numel() == memory[0].numel()

    some(given(batches, seeds)(check))()


def assert_triton_same(
    pipeline: fp.Pipeline, sources: Sources, plan: Plan, device: torch.device, **options: Any
) -> None:
    """``options`` choose the block, and so the speed; the interpreter wants few, large steps."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from fnpipe.ops.render_triton import render_fused

    recipe = pipeline.recipe(plan.size)
    with warnings.catch_warnings():
        # Lanes that a selection throws away divide by zero, and NumPy speaks up for them.
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        got = render_fused(
            sources.to(device), plan.to(device), recipe.chain, recipe.finish, **options
        )
    assert_same("triton", pipeline.render(plan, sources), got.cpu())


@some
@given(st.one_of(st.sampled_from([PROJECTED, NINE]), pipelines()), batches, seeds)
def test_triton_makes_eagers_bytes(device: torch.device, pipeline: fp.Pipeline, ids, seed):
    sources, plan = draw(pipeline, ids, seed=seed)
    assert_triton_same(pipeline, sources, plan, device, block=(32, 64, 1, 4))


LEVEL = fp.pipe(fp.mosaic((32, 48), p=0.5), fp.affine(scale=0.9), fp.hsv(hue=0.1))


@pytest.mark.parametrize("block", [(32, 4, 8, 4), (8, 16, 2, 1), (8, 8, 1, 2)])
@pytest.mark.parametrize("pipeline", [PROJECTED, NINE, LEVEL], ids=["projected", "nine", "level"])
def test_triton_makes_the_same_bytes_by_any_block(device: torch.device, pipeline, block):
    assert_triton_same(pipeline, *draw(pipeline, [0, 5]), device, block=block)


@some
@given(exact_scenes(), st.data())
def test_triton_shows_what_eager_shows(device: torch.device, scene: tuple[Album, Plan], data):
    album, plan = scene
    pipeline = fp.pipe(data.draw(finishes))
    assert_triton_same(pipeline, pack_sources(album.images), plan, device, block=(4, 8, 1, 4))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_case_111_a_probability_is_no_branch(p: float):
    """Whether a stage acts on a sample is a number of the plan, so all share one recipe."""
    pipeline = fp.pipe(
        fp.mosaic(SIZE, p=p), fp.affine(scale=0.5, p=p), fp.hsv(hue=0.1, p=p), fp.grayscale(p=p)
    )
    sure = fp.pipe(fp.mosaic(SIZE), fp.affine(scale=0.5), fp.hsv(hue=0.1), fp.grayscale())
    assert pipeline.recipe(SIZE) == sure.recipe(SIZE)
    sources, plan = draw(pipeline, range(8))
    assert [tuple(p.shape) for p in plan.colors] == [(8, 3), (8, 1)]
    assert_same("itself", pipeline.render(plan, sources), pipeline.render(plan, sources))


# Where a look-up may go


class LookUps(TorchDispatchMode):
    """Remembers which words were read."""

    def __init__(self, words: Tensor) -> None:
        super().__init__()
        self.words = words
        self.read: list[Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.gather.default and args[0].data_ptr() == self.words.data_ptr():
            self.read.append(args[2])
        return func(*args, **(kwargs or {}))


def assert_inside(sources: Sources, plan: Plan) -> None:
    """All four words of a pixel lie in the block of one photo that its picture is made of."""
    with LookUps(sources.words) as seen:
        definitions.warp(sources, plan)
    assert len(seen.read) == 4
    starts = sources.offsets - 2
    pixels = (len(plan), *plan.size)
    blocks = torch.stack([torch.searchsorted(starts, i, right=True) - 1 for i in seen.read])
    assert all(int(i.min()) >= 0 and int(i.max()) < len(sources.words) for i in seen.read)
    assert (blocks == blocks[0]).all()
    allowed = plan.sources.clamp(min=0)[:, None, None]
    assert (blocks[0].view(pixels)[..., None] == allowed).any(-1).all()


HUGE = 2.0**99
numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 128.0, -128.0, HUGE, -HUGE]),
    st.floats(-HUGE, HUGE, width=32),
    st.floats(-1e3, 1e3, width=32),
)


@many
@given(exact_scenes(), st.data())
def test_no_map_looks_outside_its_photo(scene: tuple[Album, Plan], data):
    album, plan = scene
    sources = pack_sources(album.images)
    assert_inside(sources, plan)
    count = plan.maps.numel()
    wild = torch.tensor(data.draw(st.lists(numbers, min_size=count, max_size=count)))
    wild = wild.view(plan.maps.shape)
    assert_inside(sources, plan.replace(maps=wild, projective=True))
    near = wild.clamp(-(2.0**26), 2.0**26)
    assert_inside(sources, plan.replace(maps=near))


@some
@given(pipelines(), batches, seeds)
def test_windows_hold_all_that_a_plan_looks_at(pipeline: fp.Pipeline, ids, seed):
    sources, plan = draw(pipeline, ids, seed=seed)
    small, local = cut(sources, plan)
    assert_same("windows", pipeline.render(plan, sources), pipeline.render(local, small))
    assert_inside(small, local)


@some
@given(pipelines(), batches, seeds)
def test_a_kernel_fetches_the_windows_that_the_host_cuts(
    device: torch.device, pipeline: fp.Pipeline, ids, seed
):
    # Interpreters before that hand NumPy 2.4 an array for the number of a program.
    least = "3.8" if device.type == "cpu" else None
    pytest.importorskip("triton", minversion=least, reason="Triton is not installed, or too old")
    from fnpipe.ops.windows_triton import fetch_words

    sources, plan = draw(pipeline, ids, seed=seed)
    windows, _ = measure(sources, plan)
    words = fetch_words(windows.to(device), sources.words.to(device))
    assert torch.equal(words.cpu(), cut(sources, plan)[0].words)


# Where the pipeline is cut


@some
@given(pipelines(), batches, seeds)
def test_wherever_it_is_cut_the_bytes_are_the_same(pipeline: fp.Pipeline, ids, seed):
    key = fp.key(seed=seed, epoch=0, sample=torch.tensor(ids))
    whole = pack_sources(ALBUM.images)
    expected = render(pipeline, ids, seed=seed)
    for where in cuts.CUTS:
        parcel = cuts.draw(ALBUM, pipeline, key)
        parcel = cuts.add_pixels(parcel, pipeline, where, "eager", ALBUM, None)
        sent = pickle.loads(pickle.dumps(packed(parcel))).unpack()
        batch = cuts.complete(sent, pipeline, pool=whole)
        assert_same(where, expected, batch.images)


# Geometry that is exact


@stage
class turned:
    """Turn by a fixed angle about the frame's centre."""

    degrees: float
    name: str = "turned"
    projective = False

    def draw(self, key: fp.Key) -> Tensor:
        return torch.full((len(key.sample), 1), self.degrees, dtype=torch.float64)

    def move(self, drawn: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        sine, cosine = sine_cosine(drawn[:, 0])
        x, y = (frames * 0.5).unbind(1)
        rows = [
            [cosine, sine, x - (cosine * x + sine * y)],
            [0.0 - sine, cosine, y - (cosine * y - sine * x)],
            [0.0, 0.0, 1.0],
        ]
        return matrix_of(rows), frames


photos = st.builds(photo, st.integers(1, 40), st.integers(1, 40), seed=st.integers(0, 9))
both = fp.flip(horizontal=1, vertical=1)
sure = st.sampled_from([0.0, 1.0])


@many
@given(photos)
def test_half_a_turn_is_both_flips(image: Tensor):
    album = Album([image])
    half = render(fp.pipe(turned(180.0)), [0], album=album)
    assert_same("half a turn", render(fp.pipe(both), [0], album=album), half)
    assert torch.equal(half[0], image.flip(1, 2))


@many
@given(photos, sure, sure, st.lists(st.just(fp.affine()), max_size=1))
def test_a_flip_twice_is_none(image: Tensor, horizontal, vertical, between):
    """Also with a map between them, which makes matrices of both."""
    once = fp.flip(horizontal=horizontal, vertical=vertical)
    again = fp.flip(horizontal=horizontal, vertical=vertical, name="again")
    made = render(fp.pipe(once, *between, again), [0], album=Album([image]))
    assert torch.equal(made[0], image)


@many
@given(photos)
def test_no_stage_leaves_the_photo(image: Tensor):
    assert torch.equal(render(fp.pipe(), [0], album=Album([image]))[0], image)
    assert torch.equal(render(fp.pipe(fp.affine()), [0], album=Album([image]))[0], image)


@many
@given(photos, sure, sure)
def test_a_flip_permutes_what_comes_before_it(image: Tensor, horizontal, vertical):
    """However the photo was moved, and though the flip is written before the colour."""
    moved = fp.pipe(fp.affine(degrees=30, scale=0.4), fp.hsv(hue=0.2, saturation=0.5))
    flipped = fp.pipe(moved, fp.flip(horizontal=horizontal, vertical=vertical))
    album = Album([image])
    axes = [axis for axis, on in ((3, horizontal), (2, vertical)) if on]
    assert torch.equal(
        render(flipped, [0], album=album), render(moved, [0], album=album).flip(axes)
    )


@stage
class pasted:
    """Photos side by side at whole pixels, unscaled, a seam at every corner that they share."""

    corners: tuple[tuple[int, int], ...]
    seams: tuple[tuple[int, ...], tuple[int, ...]]
    name: str = "pasted"

    def place(self, key: fp.Key, sizes: Tensor) -> Placed:
        count, tiles = len(key.sample), len(self.corners)
        shift = torch.tensor(self.corners, dtype=torch.float64).expand(count, tiles, 2)
        one = torch.ones(count, tiles, dtype=torch.float64)
        return Placed(
            sources=torch.arange(tiles).expand(count, tiles),
            maps=scale_and_shift(one, one, shift[..., 0], shift[..., 1]),
            seams=torch.tensor(self.seams, dtype=torch.float64).expand(count, 2, -1),
            frames=torch.tensor([[SIZE[1], SIZE[0]]], dtype=torch.float64).expand(count, 2),
        )


@settings(many, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whole_pixel_tiles_are_a_pasted_canvas(data: st.DataObject):
    """One look-up a pixel shows what writing the photos on a canvas, cell by cell, shows."""
    grid = data.draw(st.integers(2, 3))
    height, width = SIZE
    seams = [
        sorted(data.draw(st.lists(st.integers(-5, n + 5), min_size=grid - 1, max_size=grid - 1)))
        for n in (width, height)
    ]
    images = [data.draw(photos) for _ in range(grid * grid)]
    corners = [
        (data.draw(st.integers(-30, width)), data.draw(st.integers(-30, height))) for _ in images
    ]
    wide, high = ([-1000, *cuts, 1000] for cuts in seams)
    canvas = torch.full((3, height, width), 114, dtype=torch.uint8)
    for tile, (image, (x, y)) in enumerate(zip(images, corners, strict=True)):
        row, column = divmod(tile, grid)
        x0, x1 = max(x, wide[column], 0), min(x + image.shape[2], wide[column + 1], width)
        y0, y1 = max(y, high[row], 0), min(y + image.shape[1], high[row + 1], height)
        if x0 < x1 and y0 < y1:
            canvas[:, y0:y1, x0:x1] = image[:, y0 - y : y1 - y, x0 - x : x1 - x]
    layout = pasted(tuple(corners), (tuple(seams[0]), tuple(seams[1])))
    assert torch.equal(render(fp.pipe(layout), [0], album=Album(images))[0], canvas)


# Half precision is for colours, never for positions


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_case_115_positions_stay_fine_in_half_precision(dtype: torch.dtype):
    """A ramp 1024 wide: the identity is exact, a turn is as good as the dtype can write it."""
    ramp = (torch.arange(1024) // 4).to(torch.uint8).expand(3, 1024, 1024).contiguous()
    album = Album([ramp])
    same = render(fp.pipe(fp.finish(dtype)), [0], album=album)
    assert torch.equal(same[0], (ramp.float() * (1 / 255)).to(dtype))
    full, half = (
        render(fp.pipe(turned(10.0), fp.finish(d)), [0], album=album)
        for d in (torch.float32, dtype)
    )
    assert_same("rounded once", full.to(dtype), half)
    assert (full - half.float()).abs().max() <= 1 / 128
