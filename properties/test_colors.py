"""All 16,777,216 colours through HSV: the same words compiled, and what a gain may never do."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import colors, numbers
from torch import Tensor

from fnpipe import numerics
from fnpipe.ops.pixel import quantize, shift_hsv


Planes = tuple[Tensor, Tensor, Tensor]
CHUNK = 2**17
"""Colours at a time: three planes of half a megabyte, in and out, stay in a core's cache."""
BOUND = -1e-2
"""What rounding leaves below 0 at most; the definition promises no less."""
GAINS = [
    (0.0, 1.0, 1.0),
    (0.0, 0.0, 1.0),
    (0.0, 2.0, 1.0),
    (0.0, 1.0, 0.0),
    (0.0, 1.0, 2.0),
    (1.0, 1.0, 1.0),
    (3.0, 1.0, 1.0),
    (5.0, 1.7, 0.6),
    (math.nextafter(6.0, 0.0), 1.0, 1.0),
    (0.09, 1.7, 1.4),
    (5.91, 0.3, 0.6),
    (0.5, 1.0000001, 0.9999999),
    (2.25, 0.123456, 1.987654),
    (4.75, 1.5, 1.1),
    (1.6180339, 0.7, 1.4),
    (3.1415927, 1.9999999, 0.5000001),
]
"""Sixths of a turn, gain of saturation, gain of value: ends, whole sixths, YOLO's, and anything."""


def shift(r: Tensor, g: Tensor, b: Tensor, gains: Tensor) -> tuple[Planes, Planes]:
    """Before and after quantising. Gains are numbers in a tensor: one compilation for all."""
    made = shift_hsv(r, g, b, *gains.unbind(0))
    return made, (quantize(made[0]), quantize(made[1]), quantize(made[2]))


@pytest.fixture(scope="module")
def compiled():
    return numerics.compiled(shift)


def every_color() -> Iterator[Planes]:
    for start in range(0, 2**24, CHUNK):
        codes = torch.arange(start, start + CHUNK, dtype=torch.int32)
        yield tuple((codes >> s & 255).to(torch.float32) for s in (16, 8, 0))


def fault(planes: Planes, made: Planes, kept: Planes, gains: tuple[float, float, float]) -> str:
    """What is wrong with these colours, or nothing."""
    low, high = (f(torch.stack([f(p) for p in made])) for f in (torch.amin, torch.amax))
    if not (low >= BOUND and high <= 255):
        return f"a code of {low} or {high}"  # also where it is NaN
    r, g, b = planes
    grey = (r == g) & (g == b)
    wanted = (r[grey] * gains[2]).clamp(max=255)
    if not all(torch.equal(p[grey], wanted) for p in made):
        return "a grey is not the grey that its value says"
    if gains == (0.0, 1.0, 1.0) and not all(map(torch.equal, kept, planes)):
        return "gains of 1 changed a colour"
    return ""


@pytest.mark.slow
def test_every_color_is_the_same_compiled_and_keeps_its_promises(compiled):
    for planes in every_color():
        for gains in GAINS:
            made, kept = shift(*planes, torch.tensor(gains))
            other_made, other_kept = compiled(*planes, torch.tensor(gains))
            assert fault(planes, made, kept, gains) == "", gains
            for name, wanted, found in (
                ("before quantising", made, other_made),
                ("quantised", kept, other_kept),
            ):
                for channel, a, b in zip("rgb", wanted, found, strict=True):
                    if torch.equal(a.view(torch.int32), b.view(torch.int32)):
                        continue
                    count, first = numerics.count_differences(a, b)
                    color = [int(p[first]) for p in planes]
                    pytest.fail(f"{name}: {count} words of {channel} differ at {gains}, {color}")


@pytest.mark.parametrize("sextants", [0.09, 1.0, 2.5, 3.0, 5.999])
def test_turning_a_hue_there_and_back_loses_a_code_at_most(sextants: float):
    ones = torch.ones(2)
    for planes in every_color():
        there = [quantize(p) for p in shift_hsv(*planes, torch.tensor(sextants), *ones)]
        back = shift_hsv(there[0], there[1], there[2], torch.tensor(6.0 - sextants), *ones)
        for before, after in zip(planes, back, strict=True):
            assert (quantize(after) - before).abs().max() <= 1


gain = numbers(0, 2, 1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(*[numbers(-255, 510, 0, 255)] * 3) | colors, min_size=1, max_size=50),
    st.sampled_from(GAINS).map(lambda g: g[0]),
    gain,
    gain,
)
def test_a_color_that_another_stage_left_out_of_range_gives_no_nan(drawn, sextants, up, value):
    """Contrast and brightness leave codes below 0 and above 255 for the next stage to read."""
    planes = torch.tensor(drawn, dtype=torch.float32).unbind(1)
    made = shift_hsv(*planes, *torch.tensor([sextants, up, value], dtype=torch.float32))
    assert all(torch.isfinite(p).all() for p in made)
    assert all(torch.equal(quantize(p), quantize(p).clamp(0, 255)) for p in made)


def textbook(color: tuple[float, float, float], gains: tuple[float, float, float]) -> list[float]:
    """The hexcone model as it is written everywhere, in float64."""
    high, low = max(color), min(color)
    chroma = high - low
    r, g, b = color
    if chroma == 0:
        hue = 0.0
    elif high == r:
        hue = (g - b) / chroma % 6
    elif high == g:
        hue = (b - r) / chroma + 2
    else:
        hue = (r - g) / chroma + 4
    hue = (hue + gains[0]) % 6
    saturation = min(chroma / high * gains[1], 1) if high else 0.0
    value = min(high * gains[2], 255.0)
    part = value * saturation
    other = part * (1 - abs(hue % 2 - 1))
    base = value - part
    triples = [(part, other, 0), (other, part, 0), (0, part, other)]
    triples += [(0, other, part), (other, 0, part), (part, 0, other)]
    return [base + x for x in triples[min(int(hue), 5)]]


@settings(max_examples=300, deadline=None)
@given(st.lists(colors, min_size=1, max_size=20), st.sampled_from(GAINS))
def test_hue_saturation_and_value_are_the_textbooks(drawn, gains):
    planes = torch.tensor(drawn, dtype=torch.float32).unbind(1)
    made = torch.stack(shift_hsv(*planes, *torch.tensor(gains)), 1).double()
    wanted = torch.tensor([textbook(color, gains) for color in drawn], dtype=torch.float64)
    # Float32 at 255 is good to 2**-17; a hue is a quotient of differences, so some more is lost.
    assert (made - wanted).abs().max() < 1e-2
