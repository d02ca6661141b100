"""Mosaic: where tiles lie, where seams run, who the partners are."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.keys import Key
from fnpipe.types import ArgumentError


Samples = Callable[..., Key]
SIZES = torch.tensor([[640, 480], [100, 300], [64, 64], [9000, 6], [33, 47]] * 200)


def extents(placed: Any) -> tuple[Tensor, Tensor]:
    """The corners of every tile's photo in the frame: [b, t, 2] each."""
    sizes = SIZES[placed.sources.clamp(min=0)].double()
    low = placed.maps[..., :2, 2]
    gain = placed.maps.diagonal(dim1=-2, dim2=-1)[..., :2]
    return low, low + gain * sizes


def test_four_photos_touch_the_point_where_they_meet(samples: Samples):
    placed = fp.mosaic((320, 480)).place(samples(), SIZES)
    low, high = extents(placed)
    centre = placed.seams[..., 0]
    for tile, (right, below) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        ends = torch.stack(
            [(low if right else high)[:, tile, 0], (low if below else high)[:, tile, 1]], 1
        )
        torch.testing.assert_close(ends, centre, rtol=0, atol=1e-9)
    assert placed.frames.tolist() == [[480, 320]] * 1000


def test_the_point_lies_anywhere_in_the_frame_edges_and_all(samples: Samples):
    centre = fp.mosaic((3, 5)).place(samples(3000), SIZES.repeat(3, 1)).seams[..., 0]
    assert centre[:, 0].unique().tolist() == [0, 1, 2, 3, 4, 5]
    assert centre[:, 1].unique().tolist() == [0, 1, 2, 3]
    counts = torch.bincount(centre[:, 1].long())
    assert ((counts - 750).abs() < 100).all()


def test_photos_are_fitted_into_the_size(samples: Samples):
    low, high = extents(fp.mosaic((320, 480)).place(samples(), SIZES))
    sides = high - low
    assert (sides.round() - sides).abs().max() < 1e-9
    assert (sides.amin(-1) > 0.999).all()
    full = torch.tensor([480.0, 320.0], dtype=torch.float64)
    assert (sides <= full + 1e-9).all()
    assert (((sides - full).abs() < 1e-9).any(-1)).all()


def test_nine_photos_lie_in_cells_as_large_as_the_frame(samples: Samples):
    placed = fp.mosaic(100, tiles=9).place(samples(), SIZES)
    low, high = extents(placed)
    first, second = placed.seams.unbind(-1)
    assert (second - first == 100).all()
    assert (first >= -50).all()
    assert (first <= 50).all()
    torch.testing.assert_close(high[:, 0], first, rtol=0, atol=1e-9)
    torch.testing.assert_close(low[:, 8], second, rtol=0, atol=1e-9)
    gap_before, gap_after = low[:, 4] - first, second - high[:, 4]
    assert (gap_before >= -1e-9).all()
    assert ((gap_after - gap_before).round().clamp(0, 1) == (gap_after - gap_before).round()).all()


def test_the_sample_itself_comes_first_and_partners_are_any_others(samples: Samples):
    placed = fp.mosaic(64).place(samples(), SIZES)
    assert placed.sources[:, 0].tolist() == [*range(1000)]
    others = placed.sources[:, 1:]
    assert (others != torch.arange(1000)[:, None]).all()
    assert others.min() >= 0
    assert others.max() < 1000
    assert len(others.unique()) > 900


def test_a_set_of_one_photo_is_its_own_partner(samples: Samples):
    placed = fp.mosaic(64, tiles=9).place(samples(1), SIZES[:1])
    assert placed.sources.tolist() == [[0] * 9]


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_a_sample_is_alone_with_probability_one_less_p(samples: Samples, p: float):
    placed = fp.mosaic((320, 480), p=p).place(samples(), SIZES)
    alone = (placed.sources[:, 1:] < 0).all(1)
    assert torch.equal(alone, (placed.sources < 0).any(1))
    assert torch.equal(alone, placed.seams.isinf().flatten(1).all(1))
    assert float(alone.double().mean()) == pytest.approx(1 - p, abs=0.05)


@pytest.mark.parametrize("tiles", [4, 9])
def test_a_sample_alone_is_letterboxed(samples: Samples, tiles: int):
    placed = fp.mosaic((320, 480), tiles=tiles, p=0.0).place(samples(50), SIZES)
    frames = SIZES[:50].double()
    maps, _ = fp.letterbox((320, 480)).move(torch.zeros(50, 0, dtype=torch.float64), frames)
    assert torch.equal(placed.maps[:, 0], maps)


def test_p_changes_no_mosaic_of_those_that_are_made(samples: Samples):
    sure = fp.mosaic(64).place(samples(), SIZES)
    rare = fp.mosaic(64, p=0.5).place(samples(), SIZES)
    made = (rare.sources >= 0).all(1)
    assert made.any()
    for a, b in zip(sure, rare, strict=True):
        assert torch.equal(a[made], b[made])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fp.mosaic(64, tiles=5), "mosaic: tiles wanted 4 or 9, came 5"),
        (lambda: fp.mosaic(64, p=1.1), "mosaic: p wanted a number in [0, 1], came 1.1"),
        (
            lambda: fp.mosaic(-64),
            "mosaic: size wanted pixels, one number or (height, width), each >= 1, came -64",
        ),
    ],
)
def test_an_option_out_of_range_is_refused(make: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        make()
