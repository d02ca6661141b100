"""How a photo is stored, and what a position sees: by hand, in whole numbers."""

import pytest
import torch
from torch import Tensor

from fnpipe.ops import warp
from fnpipe.types import ArgumentError


def numbered(width: int, height: int) -> Tensor:
    """A photo whose red is x, green y, blue 200."""
    red = torch.arange(width).expand(height, width)
    green = torch.arange(height)[:, None].expand(height, width)
    return torch.stack([red, green, torch.full((height, width), 200)]).to(torch.uint8)


def test_a_photo_is_stored_with_its_border_repeated():
    words = warp.pack(numbered(3, 2))
    assert words[:2].tolist() == [0x727272] * 2
    stored = words[2:].view(4, 5)
    assert [[w & 255 for w in row] for row in stored.tolist()] == [[0, 0, 1, 2, 2]] * 4
    assert [row[0] >> 8 & 255 for row in stored.tolist()] == [0, 0, 1, 1]
    assert (stored >> 16 == 200).all()


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 9), (9, 1), (7, 5)])
def test_what_was_packed_comes_back(width: int, height: int):
    image = numbered(width, height)
    assert torch.equal(warp.unpack(warp.pack(image), width, height), image)


def test_a_photo_may_lie_in_memory_as_it_likes():
    image = numbered(6, 4)
    seen = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert torch.equal(warp.pack(seen), warp.pack(image))


@pytest.mark.parametrize(
    ("image", "came"),
    [
        (torch.linspace(-1, 1, 12).view(3, 2, 2), "torch.float32 [3, 2, 2]"),
        (torch.zeros(1, 2, 2, dtype=torch.uint8), "torch.uint8 [1, 2, 2]"),
        (torch.zeros(3, 0, 2, dtype=torch.uint8), "torch.uint8 [3, 0, 2]"),
    ],
)
def test_case_86_a_photo_that_holds_no_codes_is_refused(image: Tensor, came: str):
    with pytest.raises(ArgumentError) as caught:
        # Past the checks of shapes that tests are run under.
        getattr(warp.pack, "__wrapped__", warp.pack)(image)
    assert str(caught.value) == (
        f"image wanted uint8 codes [3, height, width], 1 pixel or more, came {came}"
    )


def test_nearest_rounds_ties_to_even():
    given = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 2.0**30])
    assert warp.nearest(given).tolist() == [0, 2, 2, 0, -2, 0, 2**30]
    assert warp.nearest(given).dtype == torch.int32


def test_linear_is_a_x_and_then_the_part_of_the_row():
    a, b, c = torch.tensor(2.0), torch.tensor(3.0), torch.tensor(5.0)
    assert warp.linear(torch.tensor(7.0), torch.tensor(11.0), a, b, c) == 2 * 7 + 3 * 11 + 5


@pytest.mark.parametrize(
    ("step", "index", "weight", "inside"),
    [
        (-1, 0, 63, False),
        (0, 0, 64, True),
        (63, 0, 127, True),
        (64, 1, 0, True),
        (65, 1, 1, True),
        (128 * 3 - 1, 3, 63, True),
        (128 * 3, 3, 64, False),
        (2**30, 2**23, 64, False),
        (-(2**30), -(2**23), 64, False),
    ],
)
def test_a_position_has_a_first_tap_a_weight_and_may_miss(
    step: int, index: int, weight: int, inside: bool
):
    """In a photo 3 wide, whose column c is stored at c + 1; the centre of column 0 is at 64."""
    bias, limit = (torch.tensor(x, dtype=torch.int32) for x in (64, 128 * 3 - 1))
    first, wx, miss = warp.tap(torch.tensor(step, dtype=torch.int32), bias, limit)
    assert (int(first), int(wx), int(miss) >= 0) == (index, weight, inside)


def test_a_window_counts_taps_from_its_own_origin():
    step, limit = (torch.tensor(x, dtype=torch.int32) for x in (1000, 128 * 20 - 1))
    whole = warp.tap(step, warp.bias(torch.tensor(0, dtype=torch.int32)), limit)
    window = warp.tap(step, warp.bias(torch.tensor(5, dtype=torch.int32)), limit)
    assert [int(x) for x in window] == [int(whole[0]) - 5, int(whole[1]), int(whole[2])]


def word(red: int, green: int, blue: int) -> Tensor:
    return torch.tensor(red | green << 8 | blue << 16, dtype=torch.int32)


def test_four_words_blend_by_parts_of_128():
    near, far = word(10, 20, 30), word(50, 60, 255)
    below, far_below = word(0, 0, 255), word(255, 255, 0)
    wx, wy = torch.tensor(32, dtype=torch.int32), torch.tensor(100, dtype=torch.int32)
    sums = warp.mix(near, far, below, far_below, wx, wy)
    parts = ((10, 50, 0, 255), (20, 60, 0, 255), (30, 255, 255, 0))
    for found, (a, b, c, d) in zip(sums, parts, strict=True):
        assert int(found) == (a * 96 + b * 32) * 28 + (c * 96 + d * 32) * 100


def test_the_largest_sum_stays_apart_from_its_neighbour():
    full, most = word(255, 255, 255), torch.tensor(127, dtype=torch.int32)
    assert [int(s) for s in warp.mix(full, full, full, full, most, most)] == [255 << 14] * 3


def test_a_sum_is_a_code_exactly():
    sums = torch.tensor([0, 1, 255 << 14, (114 << 14) + 8192], dtype=torch.int32)
    assert warp.to_code(sums).tolist() == [0.0, 2.0**-14, 255.0, 114.5]
