"""Homographies: products, inverses, exact quarter turns, and sizes that fit."""

import math

import pytest
import torch
from torch import Tensor

from fnpipe.ops import maps


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_maps(count: int, *, affine: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    made = torch.randn(count, 3, 3, generator=generator, dtype=torch.float64)
    made = made + torch.eye(3, dtype=torch.float64) * 4
    if affine:
        made[:, 2] = column(0, 0, 1)
    return made


def apply(made: Tensor, x: float, y: float) -> list[float]:
    moved = (made @ column(x, y, 1)).squeeze()
    return (moved[:2] / moved[2]).tolist()


def test_compose_does_the_second_first():
    shift = maps.scale_and_shift(column(1), column(1), column(10), column(20))
    double = maps.scale_and_shift(column(2), column(3), column(0), column(0))
    assert apply(maps.compose(double, shift), 1, 1) == [22, 63]
    assert apply(maps.compose(shift, double), 1, 1) == [12, 23]


def test_compose_is_the_product_and_broadcasts():
    a, b = random_maps(5), random_maps(4)[:, None]
    torch.testing.assert_close(maps.compose(a, b), a @ b, rtol=1e-14, atol=1e-14)
    assert maps.compose(a, b).shape == (4, 5, 3, 3)


def test_an_inverse_undoes():
    made = random_maps(50)
    unit = torch.eye(3, dtype=torch.float64).expand(50, 3, 3)
    torch.testing.assert_close(maps.compose(maps.invert(made), made), unit, rtol=0, atol=1e-12)


def test_the_inverse_of_an_affine_map_is_affine_exactly():
    inverse = maps.invert(random_maps(50, affine=True))
    assert (inverse[:, 2] == column(0, 0, 1)).all()


def test_a_singular_map_has_no_finite_inverse():
    flat = maps.scale_and_shift(column(0), column(1), column(0), column(0))
    assert not maps.invert(flat).isfinite().all()


def test_a_matrix_is_made_of_columns_and_numbers():
    made = maps.matrix([[column(1, 2), 0.0, 5.0], [0.0, 1.0, column(3, 4)], [0.0, 0.0, 1.0]])
    assert made.tolist() == [
        [[1, 0, 5], [0, 1, 3], [0, 0, 1]],
        [[2, 0, 5], [0, 1, 4], [0, 0, 1]],
    ]
    assert made.dtype == torch.float64


@pytest.mark.parametrize(
    ("flips", "point"),
    [
        ((False, False), (0.4, 1.0)),
        ((True, False), (32.6, 1.0)),
        ((False, True), (0.4, 19.0)),
        ((True, True), (32.6, 19.0)),
    ],
)
def test_a_mirror_counts_from_the_other_edge(flips: tuple[bool, bool], point: tuple[float, float]):
    made = maps.mirror(torch.tensor([flips]), torch.tensor([[33.0, 20.0]]))
    assert apply(made, 0.4, 1.0) == list(point)


@pytest.mark.parametrize(
    ("degrees", "sine", "cosine"),
    [(0, 0, 1), (90, 1, 0), (180, 0, -1), (270, -1, 0), (360, 0, 1), (-90, -1, 0), (-450, -1, 0)],
)
def test_quarter_turns_are_exact(degrees: float, sine: float, cosine: float):
    found = torch.stack(maps.sine_cosine(column(degrees)))
    assert found.flatten().tolist() == [sine, cosine]
    assert not torch.signbit(found[found == 0]).any()


def test_sine_and_cosine_are_good_to_the_last_place():
    degrees = torch.linspace(-720, 720, 100_001, dtype=torch.float64)
    sine, cosine = maps.sine_cosine(degrees)
    for found, wanted in ((sine, math.sin), (cosine, math.cos)):
        # The reference's own argument is rounded to 2**-53 of up to 4 pi.
        exact = column(*(wanted(math.radians(d)) for d in degrees.tolist()))
        assert (found - exact).abs().max() < 2e-15
    assert (sine * sine + cosine * cosine - 1).abs().max() < 4e-16


@pytest.mark.parametrize(
    ("size", "box", "fitted"),
    [
        ((640, 480), (640, 640), (640, 480)),
        ((1733, 977), (512, 512), (512, 289)),
        ((9000, 6), (640, 640), (640, 1)),
        ((6, 9000), (640, 640), (1, 640)),
        ((1, 1), (640, 480), (480, 480)),
        ((1, 500), (640, 640), (1, 640)),
        ((3, 2), (7, 7), (7, 5)),
    ],
)
def test_case_12_64_a_fitted_side_is_a_whole_pixel_at_least(
    size: tuple[int, int], box: tuple[int, int], fitted: tuple[int, int]
):
    """4.67 rounds to 5, 288.65 to 289, and 0.43 to 1."""
    found, gain = maps.fit(torch.tensor([size], dtype=torch.float64), *box)
    assert found.tolist() == [list(fitted)]
    assert gain.tolist() == [[fitted[0] / size[0], fitted[1] / size[1]]]
