"""Colour stages: what they draw, one's own functions, and which options are refused."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.keys import Key
from fnpipe.ops import pixel
from fnpipe.types import ArgumentError


Samples = Callable[..., Key]


@fp.pointwise
def tint(r: Tensor, g: Tensor, b: Tensor, strength: Tensor, warmth: Tensor) -> Any:
    """Towards red."""
    return r + (255.0 - r) * strength, g, b * warmth


@fp.pointwise
def swap(r: Tensor, g: Tensor, b: Tensor) -> Any:
    """Red for blue."""
    return b, g, r


def darken(r: Tensor, g: Tensor, b: Tensor) -> Any:
    """To half."""
    return r * 0.5, g * 0.5, b * 0.5


def test_hsv_draws_sixths_of_a_turn_and_gains(samples: Samples):
    drawn = fp.hsv(hue=0.5, saturation=0.7, value=0.4).draw(samples(4000))
    assert drawn.dtype == torch.float32
    sextants, saturation, value = drawn.unbind(1)
    assert sextants.min() >= 0
    assert sextants.max() < 6
    for found, reach in ((saturation, 0.7), (value, 0.4)):
        assert float((found - 1).abs().max()) == pytest.approx(reach, abs=0.01)
        assert float(found.mean()) == pytest.approx(1, abs=0.03)
    counts = torch.bincount(sextants.long(), minlength=6)
    assert ((counts - 4000 / 6).abs() < 100).all()


def test_a_small_hue_goes_either_way(samples: Samples):
    sextants = fp.hsv(hue=0.015).draw(samples(1000))[:, 0]
    near = torch.minimum(sextants, 6 - sextants)
    assert near.max() <= 0.015 * 6 + 1e-6
    assert 400 < int((sextants > 3).sum()) < 600


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_with_probability_one_less_p_a_sample_keeps_its_colours(samples: Samples, p: float):
    drawn = fp.hsv(hue=0.5, saturation=0.5, value=0.5, p=p).draw(samples(4000))
    kept = (drawn == torch.tensor([0.0, 1.0, 1.0])).all(1)
    assert float(kept.double().mean()) == pytest.approx(1 - p, abs=0.03)


@pytest.mark.parametrize(
    ("make", "low", "high", "rest"),
    [
        (lambda p: fp.brightness(0.4, p=p), 0.6, 1.4, 1.0),
        (lambda p: fp.contrast(0.4, p=p), 0.6, 1.4, 1.0),
        (lambda p: fp.grayscale(p=p), 1.0, 1.0, 0.0),
        (lambda p: fp.solarize(100.0, p=p), 100.0, 100.0, 256.0),
        (lambda p: fp.posterize(3, p=p), 32.0, 32.0, 1.0),
    ],
    ids=["brightness", "contrast", "grayscale", "solarize", "posterize"],
)
def test_other_stages_draw_one_number_or_leave_colours_alone(
    samples: Samples, make: Callable[[float], Any], low: float, high: float, rest: float
):
    sure = make(1.0).draw(samples(2000))
    assert sure.shape == (2000, 1)
    assert sure.dtype == torch.float32
    assert float(sure.min()) >= low - 1e-6
    assert float(sure.max()) <= high + 1e-6
    some = make(0.5).draw(samples(2000))
    acted = some[:, 0] != rest
    assert float(acted.double().mean()) == pytest.approx(0.5, abs=0.05)
    assert torch.equal(some[acted], sure[acted])
    assert (make(0.0).draw(samples(50)) == rest).all()


@pytest.mark.parametrize(
    ("stage", "fn"),
    [
        (fp.hsv(), pixel.shift_hsv),
        (fp.brightness(0.1), pixel.scale_brightness),
        (fp.contrast(0.1), pixel.scale_contrast),
        (fp.grayscale(), pixel.blend_grayscale),
        (fp.solarize(9.0), pixel.solarize),
        (fp.posterize(1), pixel.posterize),
    ],
)
def test_a_stage_runs_the_definition_and_is_written_as_it_was_called(stage: Any, fn: Any):
    assert stage.color is fn
    assert eval(repr(stage), dict(vars(fp))) == stage
    assert pickle.loads(pickle.dumps(stage)) == stage


def test_ones_own_function_stays_a_function():
    planes = [torch.tensor([x]) for x in (55.0, 2.0, 3.0)]
    assert [float(p) for p in swap(*planes)] == [3, 2, 55]
    made = tint(*planes, torch.tensor(0.5), torch.tensor(2.0))
    assert [float(p) for p in made] == [155, 2, 6]
    assert tint.__doc__ == "Towards red."


def test_ones_own_stage_draws_each_parameter_by_its_name(samples: Samples):
    stage = tint.drawn(warmth=2.0, strength=fp.uniform(0.0, 0.5))
    drawn = stage.draw(samples(1000))
    assert (drawn[:, 1] == 2.0).all()
    assert drawn[:, 0].min() >= 0
    assert 0.45 < float(drawn[:, 0].max()) < 0.5
    other = tint.drawn(strength=fp.uniform(0.0, 0.5), warmth=fp.uniform(0.0, 1.0))
    assert torch.equal(other.draw(samples(1000))[:, 0], drawn[:, 0])
    assert swap.drawn().draw(samples(7)).shape == (7, 0)


def test_ones_own_stage_is_a_value():
    stage = tint.drawn(strength=fp.sometimes(0.5, fp.uniform(0.0, 0.5), 0.0), warmth=1.5)
    assert repr(stage) == (
        "tint.drawn(strength=sometimes(0.5, uniform(0.0, 0.5), 0.0), warmth=uniform(1.5, 1.5))"
    )
    assert eval(repr(stage), {**vars(fp), "tint": tint}) == stage
    assert pickle.loads(pickle.dumps(stage)) == stage
    assert stage.name == "tint"
    assert repr(swap.drawn(name="again")) == "swap.drawn(name='again')"
    assert pickle.loads(pickle.dumps(fp.pointwise(darken).drawn())).color is darken


def test_sometimes_in_sometimes_has_chances_of_its_own(samples: Samples):
    inner = fp.sometimes(0.5, fp.uniform(1.0, 1.0), 2.0)
    drawn = fp.sometimes(0.5, inner, 3.0).draw(samples(1000))
    shares = [float((drawn == value).double().mean()) for value in (1.0, 2.0, 3.0)]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.06)  # four deviations


def test_sometimes_draws_the_same_when_it_happens(samples: Samples):
    maybe = fp.sometimes(0.5, fp.uniform(2.0, 3.0), 0.0).draw(samples(1000))
    happened = maybe != 0
    assert 400 < int(happened.sum()) < 600
    assert torch.equal(maybe[happened], fp.uniform(2.0, 3.0).draw(samples(1000))[happened])


def two(r: Tensor, g: Tensor) -> Any:
    return r, g


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fp.hsv(hue=0.6), "hsv: hue wanted a number in [0, 0.5], came 0.6"),
        (lambda: fp.hsv(saturation=2.0), "hsv: saturation wanted a number in [0, 1], came 2.0"),
        (lambda: fp.brightness(1.5), "brightness: amount wanted a number in [0, 1], came 1.5"),
        (lambda: fp.contrast(0.5, p=2.0), "contrast: p wanted a number in [0, 1], came 2.0"),
        (lambda: fp.grayscale(p=-1.0), "grayscale: p wanted a number in [0, 1], came -1.0"),
        (lambda: fp.solarize(300.0), "solarize: threshold wanted a number in [0, 256], came 300.0"),
        (lambda: fp.posterize(0), "posterize: bits wanted one of 1 to 8, came 0"),
        (lambda: fp.posterize(9), "posterize: bits wanted one of 1 to 8, came 9"),
        (lambda: fp.uniform(2.0, 1.0), "uniform: high wanted a number >= 2, came 1.0"),
        (
            lambda: fp.sometimes(7.0, fp.uniform(0.0, 1.0), 0.0),
            "sometimes: p wanted a number in [0, 1], came 7.0",
        ),
        (
            lambda: fp.sometimes(0.5, fp.uniform(0.0, 1.0), float("nan")),
            "sometimes: otherwise wanted a number >= -1e+30, came nan",
        ),
        (
            lambda: tint.drawn(strength=1.0),
            "tint.drawn wanted strength, warmth, came strength",
        ),
        (
            lambda: swap.drawn(strength=1.0),
            "swap.drawn wanted no parameter, came strength",
        ),
        (
            lambda: fp.pointwise(two),
            "pointwise: two wanted to take r, g, b and its parameters, takes "
            "(r: torch.Tensor, g: torch.Tensor) -> Any",
        ),
    ],
)
def test_an_option_out_of_range_is_refused(make: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        make()
