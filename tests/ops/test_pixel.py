"""Colour arithmetic: known colours, what may never change, and who refuses what is no code."""

import pytest
import torch
from torch import Tensor

from fnpipe.numerics import audit
from fnpipe.ops import pixel
from fnpipe.ops.image import adjust_hsv
from fnpipe.types import ArgumentError


def planes(*colors: tuple[float, float, float]) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue = torch.tensor(colors, dtype=torch.float32).unbind(1)
    return red, green, blue


def shift(
    *colors: tuple[float, float, float], sextants: float = 0.0, up: float = 1.0, value: float = 1.0
) -> list[list[float]]:
    """Colours after a turn of the hue and gains of saturation and value, quantised."""
    gains = (torch.tensor(x) for x in (sextants, up, value))
    made = pixel.shift_hsv(*planes(*colors), *gains)
    return torch.stack([pixel.quantize(p) for p in made], 1).tolist()


RED, YELLOW, GREEN = (255.0, 0.0, 0.0), (255.0, 255.0, 0.0), (0.0, 255.0, 0.0)
CYAN, BLUE, MAGENTA = (0.0, 255.0, 255.0), (0.0, 0.0, 255.0), (255.0, 0.0, 255.0)
CIRCLE = [RED, YELLOW, GREEN, CYAN, BLUE, MAGENTA]


@pytest.mark.parametrize("step", range(6))
def test_a_sixth_of_a_turn_is_the_next_pure_colour(step: int):
    turned = CIRCLE[step:] + CIRCLE[:step]
    assert shift(*CIRCLE, sextants=float(step)) == [[*c] for c in turned]


def test_half_a_sixth_lies_between_two_pure_colours():
    assert shift(RED, GREEN, BLUE, sextants=0.5) == [[255, 128, 0], [0, 255, 128], [128, 0, 255]]


def test_saturation_blends_towards_the_highest_channel_and_is_limited():
    color = (200.0, 100.0, 50.0)
    assert shift(color, up=0.0) == [[200, 200, 200]]
    assert shift(color, up=0.5) == [[200, 150, 125]]
    assert shift(color, up=2.0) == [[200, 67, 0]]
    assert shift((200.0, 50.0, 50.0), up=2.0) == [[200, 0, 0]]


def test_value_scales_and_is_limited():
    color = (200.0, 120.0, 50.0)
    assert shift(color, value=0.5) == [[100, 60, 25]]
    assert shift(color, value=0.0) == [[0, 0, 0]]
    assert shift(color, value=2.0) == [[255, 153, 64]]


@pytest.mark.parametrize("up", [0.0, 0.3, 1.0, 1.9])
@pytest.mark.parametrize("sextants", [0.0, 0.09, 3.0, 5.9])
def test_case_82_saturation_does_not_tint_what_has_none(sextants: float, up: float):
    greys = [(255.0, 255.0, 255.0), (128.0, 128.0, 128.0), (0.0, 0.0, 0.0)]
    assert shift(*greys, sextants=sextants, up=up) == [[*g] for g in greys]


@pytest.mark.parametrize("code", [128, 255])
def test_case_84_a_grey_image_keeps_its_codes(code: int):
    image = torch.full((3, 4, 5), float(code))
    turn, one = torch.tensor(0.1), torch.tensor(1.0)
    assert torch.equal(adjust_hsv(image, turn, one, one), image)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_case_85_black_stays_black_and_finite_in_every_dtype(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, 16, 16), generator=generator).float()
    image[:, 4:12, 4:12] = 0
    made = adjust_hsv(image, torch.tensor(0.2), torch.tensor(1.7), torch.tensor(1.4)).to(dtype)
    assert torch.isfinite(made).all()
    assert not made[:, 4:12, 4:12].any()


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 256.0), (float("nan"), float("nan"))])
def test_case_86_an_image_that_holds_no_codes_is_refused(low: float, high: float):
    image = torch.linspace(low, high, 12).view(3, 2, 2)
    one = torch.tensor(1.0)
    with pytest.raises(ArgumentError) as caught:
        adjust_hsv(image, torch.tensor(0.1), one, one)
    assert str(caught.value) == (
        f"adjust_hsv: image wanted codes in [0, 255], came [{low:g}, {high:g}]; "
        "change colours before normalising"
    )


def test_adjust_hsv_counts_in_turns_of_any_number_and_in_batches():
    image = torch.tensor(CIRCLE).T.reshape(3, 2, 3).expand(4, 3, 2, 3).contiguous()
    turns = torch.tensor([0.0, 1.0, -2.0, 1 / 3])
    made = adjust_hsv(image, turns, torch.ones(4), torch.ones(4))
    assert all(torch.equal(made[i], image[i]) for i in range(3))
    turned = torch.tensor(CIRCLE[2:] + CIRCLE[:2]).T.reshape(3, 2, 3)
    assert torch.equal(pixel.quantize(made[3]), turned)


def test_adjust_hsv_takes_an_image_without_pixels():
    empty, one = torch.zeros(3, 0, 4), torch.tensor(1.0)
    assert adjust_hsv(empty, one, one, one).shape == (3, 0, 4)


def apply(fn, colors: list[tuple[float, float, float]], parameter: float) -> list[list[float]]:
    return torch.stack(fn(*planes(*colors), torch.tensor(parameter)), 1).tolist()


def test_brightness_multiplies():
    assert apply(pixel.scale_brightness, [(10.0, 100.0, 200.0)], 1.5) == [[15, 150, 300]]


def test_contrast_moves_away_from_the_middle():
    colors = [(127.5, 27.5, 227.5)]
    assert apply(pixel.scale_contrast, colors, 0.5) == [[127.5, 77.5, 177.5]]
    assert apply(pixel.scale_contrast, colors, 0.0) == [[127.5, 127.5, 127.5]]
    assert apply(pixel.scale_contrast, colors, 1.0) == [[127.5, 27.5, 227.5]]


def test_grayscale_blends_to_luma():
    ((r, g, b),) = apply(pixel.blend_grayscale, [(100.0, 50.0, 200.0)], 1.0)
    assert r == g == b == pytest.approx(0.299 * 100 + 0.587 * 50 + 0.114 * 200)
    assert apply(pixel.blend_grayscale, [(100.0, 50.0, 200.0)], 0.0) == [[100, 50, 200]]


def test_solarize_inverts_from_its_threshold_on():
    assert apply(pixel.solarize, [(127.0, 128.0, 255.0)], 128.0) == [[127, 127, 0]]
    assert apply(pixel.solarize, [(0.0, 128.0, 255.0)], 256.0) == [[0, 128, 255]]


def test_posterize_rounds_down():
    assert apply(pixel.posterize, [(31.0, 32.0, 255.0)], 32.0) == [[0, 32, 224]]
    assert apply(pixel.posterize, [(31.0, 32.0, 255.0)], 1.0) == [[31, 32, 255]]


def test_quantize_goes_to_the_nearest_and_at_a_tie_to_the_even_code():
    given = [-0.1, -0.0, 0.5, 1.5, 2.5, 113.49999, 254.5, 255.5, 300.0]
    made = pixel.quantize(torch.tensor(given))
    assert made.tolist() == [0, 0, 0, 2, 2, 113, 254, 255, 255]
    assert not torch.signbit(made).any()


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (pixel.shift_hsv, 3),
        (pixel.scale_brightness, 1),
        (pixel.scale_contrast, 1),
        (pixel.blend_grayscale, 1),
        (pixel.solarize, 1),
        (pixel.posterize, 1),
    ],
)
def test_every_operation_keeps_to_the_vocabulary(fn, count: int):
    one = torch.ones(4)
    assert audit(fn, *(one * x for x in (9.0, 30.0, 7.0)), *[one] * count) == ()
