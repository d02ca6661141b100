"""Pictures of small plans, worked out by hand; dtypes, layouts, and what is outside."""

import pytest
import torch
from torch import Tensor

from fnpipe.numerics import audit
from fnpipe.ops import pixel, render
from fnpipe.ops.warp import pack, pack_sources
from fnpipe.types import ArgumentError, Finish, Plan, Sources


FILL = 114.0
NEVER = (0.0, 0.0, -1.0)
IDENTITY = ((128.0, 0.0, 0.0), (0.0, 128.0, 0.0), (0.0, 0.0, 1.0))


def flat(code: int, width: int = 4, height: int = 4) -> Tensor:
    return torch.full((3, height, width), code, dtype=torch.uint8)


def ramp(width: int) -> Tensor:
    """One row of 0, 16, 32, ..."""
    return (torch.arange(width) * 16).to(torch.uint8).expand(3, 1, width)


def plan(
    maps: list[tuple[tuple[float, ...], ...]],
    sources: list[int],
    size: tuple[int, int],
    *,
    across: list[tuple[float, float, float]] | None = None,
    down: list[tuple[float, float, float]] | None = None,
    mirror: tuple[bool, bool] = (False, False),
    projective: bool = False,
    colors: tuple[Tensor, ...] = (),
) -> Plan:
    """One picture."""
    tiles, one = len(maps), torch.zeros(1, dtype=torch.int64)
    return Plan(
        ids=one,
        epochs=one,
        sources=torch.tensor([sources]),
        maps=torch.tensor([maps]),
        forward=torch.eye(3, dtype=torch.float64).expand(1, tiles, 3, 3),
        splits=torch.tensor([[across or [], down or []]]).view(1, 2, -1, 3),
        mirror=torch.tensor([mirror]),
        colors=colors,
        size=size,
        projective=projective,
    )


def see(sources: Sources, made: Plan) -> list[list[float]]:
    """The red of the one picture."""
    red, green, blue = render.warp(sources, made)
    assert torch.equal(red, green)
    assert torch.equal(red, blue)
    return red[0].tolist()


def test_the_identity_shows_the_photo():
    photo = torch.arange(24, dtype=torch.uint8).view(1, 4, 6).expand(3, 4, 6)
    seen = see(pack_sources([photo]), plan([IDENTITY], [0], (4, 6)))
    assert torch.equal(torch.tensor(seen), photo[0].float())


def test_half_a_pixel_further_is_half_of_each():
    shifted = ((128.0, 0.0, 64.0), (0.0, 128.0, 0.0), (0.0, 0.0, 1.0))
    assert see(pack_sources([ramp(4)]), plan([shifted], [0], (1, 5))) == [[8, 24, 40, FILL, FILL]]


def test_the_border_is_repeated_within_half_a_pixel_and_fill_begins_beyond():
    fine = ((32.0, 0.0, -16.0), (0.0, 128.0, 0.0), (0.0, 0.0, 1.0))
    seen = see(pack_sources([ramp(2)]), plan([fine], [0], (1, 10)))
    # Positions 0, 1/4, 1/2, ... of a photo 2 wide: its left edge is inside, its right edge is not.
    assert seen == [[0, 0, 0, 4, 8, 12, 16, 16, FILL, FILL]]


def test_a_seam_gives_each_pixel_to_one_tile():
    """Pixel 2 has its centre on the seam at 2.5, and a seam belongs to the tile past it."""
    sources = pack_sources([flat(10, 8, 8), flat(20, 8, 8)])
    made = plan([IDENTITY] * 4, [0, 1, 1, 0], (5, 5), across=[(1, 0, -2.5)], down=[(0, 1, -1.5)])
    assert see(sources, made) == [[10, 10, 20, 20, 20], *[[20, 20, 10, 10, 10]] * 4]


def test_nine_tiles_lie_in_rows():
    sources = pack_sources([flat(10 * i, 8, 8) for i in range(9)])
    seams = [(1.0, 0.0, -1.0), (1.0, 0.0, -2.0)]
    made = plan(
        [IDENTITY] * 9, [*range(9)], (3, 3), across=seams, down=[(0, 1, -1.0), (0, 1, -2.0)]
    )
    assert see(sources, made) == [[0, 10, 20], [30, 40, 50], [60, 70, 80]]


def test_tiles_do_not_bleed_into_each_other():
    """Half a pixel before the seam the taps of one tile would reach into the other."""
    sources = pack_sources([flat(0, 3, 1), flat(200, 3, 1)])
    half = ((128.0, 0.0, 64.0), (0.0, 128.0, 0.0), (0.0, 0.0, 1.0))
    back = ((128.0, 0.0, -192.0), (0.0, 128.0, 0.0), (0.0, 0.0, 1.0))
    made = plan([half, back] * 2, [0, 1] * 2, (1, 4), across=[(1, 0, -2)], down=[NEVER])
    assert see(sources, made) == [[0, 0, 200, 200]]


def test_an_empty_tile_is_fill():
    sources = pack_sources([flat(10)])
    made = plan([IDENTITY] * 4, [-1, 0, -1, -1], (2, 4), across=[(1, 0, -2)], down=[NEVER])
    assert see(sources, made) == [[FILL, FILL, 10, 10]] * 2


def test_a_mirror_counts_from_the_other_end():
    photo = torch.arange(6, dtype=torch.uint8).view(1, 2, 3).expand(3, 2, 3)
    sources = pack_sources([photo])
    assert see(sources, plan([IDENTITY], [0], (2, 3), mirror=(True, False))) == [
        [2, 1, 0],
        [5, 4, 3],
    ]
    assert see(sources, plan([IDENTITY], [0], (2, 3), mirror=(False, True))) == [
        [3, 4, 5],
        [0, 1, 2],
    ]


def test_a_projective_map_divides_and_shows_nothing_behind_the_camera():
    """Depth 1 - x / 4: pixel centres 0.5 to 3.5 see 0.5 / 0.875 and so on, then it is behind."""
    tilted = ((128.0, 0.0, 0.0), (0.0, 128.0, 0.0), (-0.25, 0.0, 1.0))
    sources = pack_sources([flat(50, 40, 40)])
    seen = see(sources, plan([tilted], [0], (1, 8), projective=True))
    assert seen == [[50, 50, 50, 50, *[FILL] * 4]]


def test_a_pixel_on_the_horizon_is_fill():
    tilted = ((128.0, 0.0, 0.0), (0.0, 128.0, 0.0), (-2.0, 0.0, 1.0))
    sources = pack_sources([flat(50)])
    assert see(sources, plan([tilted], [0], (1, 2), projective=True)) == [[FILL, FILL]]


def test_colour_stages_run_in_order_with_an_images_own_parameters():
    planes = same(torch.full((2, 1, 1), 100.0))
    colors = (torch.tensor([[1.0], [0.5]]), torch.tensor([[2.0], [0.0]]))
    red, _, _ = render.paint(planes, colors, (pixel.scale_brightness, pixel.scale_contrast))
    assert red.flatten().tolist() == [72.5, 127.5]


def same(plane: torch.Tensor) -> render.Planes:
    """One plane for all three channels."""
    return plane, plane, plane


CODES = same(torch.tensor([[[-3.0, 0.5, 1.5, 114.0, 254.5, 300.0]]]))
WHOLE = [0, 0, 2, 114, 254, 255]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_finished_images_have_the_dtype_and_layout_asked_for(
    dtype: torch.dtype, channels_last: bool
):
    made = render.finish(CODES, Finish(dtype, channels_last))
    assert made.shape == (1, 3, 1, 6)
    assert made.dtype == dtype
    wanted = torch.tensor(WHOLE, dtype=torch.float32)
    if dtype != torch.uint8:
        wanted = wanted * (1 / 255)
    assert torch.equal(made[0, 1, 0], wanted.to(dtype))


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("channels_last", [False, True])
def test_case_113_the_layout_is_as_requested_also_for_one_image(count: int, channels_last: bool):
    planes = same(torch.rand(count, 5, 7) * 255)
    made = render.finish(planes, Finish(torch.uint8, channels_last))
    wanted = (105, 1, 21, 3) if channels_last else (105, 35, 7, 1)
    assert made.stride() == wanted


def test_a_mean_and_a_deviation_are_a_product_and_a_sum():
    how = Finish(torch.float32, scale=(0.5, 0.25, 2.0), offset=(1.0, 0.0, -1.0))
    made = render.finish(CODES, how)
    assert made[0, :, 0, 3].tolist() == [58.0, 28.5, 227.0]


def test_words_hold_finished_codes():
    low, middle, high = (torch.full((2, 3, 4), c) for c in (1.4, 2.6, 300.0))
    planes = (low, middle, high)
    words = render.to_words(planes)
    assert (words == (1 | 3 << 8 | 255 << 16)).all()
    for dtype in (torch.uint8, torch.float16):
        for channels_last in (False, True):
            how = Finish(dtype, channels_last)
            made = render.from_words(words, how)
            assert torch.equal(made, render.finish(planes, how))
            assert made.stride() == render.finish(planes, how).stride()


def far(pixels: float, *, projective: bool = False) -> Plan:
    """A frame of 640 x 480 whose upper left corner looks ``pixels`` away."""
    moved = ((128.0, 0.0, 128.0 * pixels), (0.0, 128.0, 0.0), (0.0, 0.0, 1.0))
    return plan([moved], [0], (480, 640), projective=projective)


def test_a_plan_that_looks_too_far_is_refused():
    render.check_reach(far(2.0**21 - 640.0))
    with pytest.raises(ArgumentError) as caught:
        render.check_reach(far(2.0**21 - 639.0))
    assert str(caught.value) == (
        "plan: sample 0 looks more than 2.09715e+06 pixels away from its photo; draw a milder map"
    )


def test_a_plan_of_no_number_is_refused():
    with pytest.raises(ArgumentError, match="sample 0 looks more than"):
        render.check_reach(far(float("nan")))


def test_a_projective_plan_is_bounded_by_its_renderer():
    render.check_reach(far(2.0**30, projective=True))


@pytest.mark.parametrize(("width", "height"), [(9000, 6), (6, 9000), (1, 1), (1, 500), (500, 1)])
def test_case_12_very_long_photos_are_seen(width: int, height: int):
    """Looked at as a whole: a row of samples across the longer side, none of it fill."""
    photo = flat(7, width, height)
    rows = ((width * 16.0, 0.0, 0.0), (0.0, height * 16.0, 0.0), (0.0, 0.0, 1.0))
    assert see(pack_sources([photo]), plan([rows], [0], (8, 8))) == [[7.0] * 8] * 8


def test_the_renderer_keeps_to_the_vocabulary():
    tilted = ((128.0, 0.0, 0.0), (0.0, 128.0, 0.0), (-0.01, 0.0, 1.0))
    sources = pack_sources([flat(50)])
    colors = (torch.tensor([[1.0, 1.1, 0.9]]),)
    for projective in (False, True):
        made = plan([tilted], [0], (2, 2), projective=projective, colors=colors)
        for dtype in (torch.uint8, torch.bfloat16):
            how = Finish(dtype, True, offset=(0.0, 0.1, 0.2))
            assert audit(render.render, sources, made, (pixel.shift_hsv,), how) == ()


def test_two_photos_lie_one_after_the_other_with_fill_between():
    first, second = flat(1, 2, 1), flat(2, 1, 3)
    sources = pack_sources([first, second])
    assert sources.offsets.tolist() == [2, 2 + 12 + 2]
    assert sources.sizes.tolist() == [[2, 1], [1, 3]]
    assert torch.equal(sources.words, torch.cat([pack(first), pack(second)]))
