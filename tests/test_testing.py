"""The proving kit itself: what it passes, what it finds, and how it says so."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fnpipe as fp
from fnpipe import numerics, testing
from fnpipe.testing import assert_same_bits, prove, rings_of, targets_of


@fp.pointwise
def sepia(r, g, b, strength):
    grey = 0.299 * r + 0.587 * g + 0.114 * b
    return r + (grey - r) * strength, g, b


def gamma(r, g, b, exponent):
    return r**exponent, g, b


def difference(expected: Any, got: Any) -> str:
    with pytest.raises(AssertionError) as found:
        assert_same_bits(expected, got, what="it")
    return str(found.value)


def test_rings_are_written_down_instance_by_instance():
    square = torch.tensor([[0.0, 0], [2, 0], [2, 2], [0, 2]])
    rings = rings_of([square, [(5, 5), (6, 5), (5, 6)]], [], [[]])
    assert rings.points.dtype == torch.float32
    assert rings.points.tolist() == [*square.tolist(), [5, 5], [6, 5], [5, 6]]
    assert rings.ring_offsets.tolist() == [0, 4, 7, 7]
    assert rings.instance_offsets.tolist() == [0, 2, 2, 3]
    assert_same_bits(rings_of(), fp.Rings.empty(0))


def test_targets_are_written_down_by_what_matters():
    made = targets_of([[0, 0, 2, 3], [1, 1, 4, 4]], labels=torch.tensor([7, 5]))
    assert made.boxes.tolist() == [[0, 0, 2, 3], [1, 1, 4, 4]]
    assert (made.labels.tolist(), made.ids.tolist(), made.owner.tolist()) == (
        [7, 5],
        [0, 1],
        [0, 0],
    )
    assert (made.ignore.tolist(), made.visible.tolist()) == ([False] * 2, [1.0] * 2)
    assert_same_bits(targets_of([]), fp.Targets.empty())


def test_words_are_compared_not_values():
    a = torch.tensor([0.0, 1.0, float("nan")])
    assert_same_bits({"a": [a]}, {"a": [a.clone()]})
    assert difference(a, -a) == "it: leaf 0: 3 of 3 words differ, first 0"
    assert difference(a, a.double()) == "it: leaf 0 is torch.float32 against torch.float64"
    assert difference(a, a[:2]).startswith("it: leaf 0 is torch.Size([3]) against torch.Size([2])")
    assert difference([a], (a,)).startswith("it: structure ")


def test_what_is_no_tensor_is_of_one_type_and_equal():
    one = torch.tensor(1.0)
    assert_same_bits([1, "a", None], [1, "a", None])
    assert difference([1.0], [one]) == "it: leaf 0 is 1.0 against tensor(1.)"
    assert difference([one], [1.0]) == "it: leaf 0 is tensor(1.) against 1.0"
    assert difference([1], [True]) == "it: leaf 0 is 1 against True"


def test_what_stands_outside_the_vocabulary_is_named_with_its_line():
    with pytest.raises(AssertionError, match=r"outside the vocabulary:\npow: .*r\*\*exponent"):
        prove(gamma)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """In place of the compiler, a function that the test chooses."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(testing, "_interpret", lambda fn, values: [])
    return lambda fn: monkeypatch.setattr(testing, "compiled", lambda given: fn)


def test_a_sound_function_is_passed(uncompiled):
    uncompiled(sepia.fn)
    assert prove(sepia) == ["vocabulary", "eager on the CPU", "compiled on the CPU"]


def test_a_difference_is_told_by_one_pixel(uncompiled):
    """A planted fault: the last bit of red, where green is 127.5."""

    def planted(r, g, b, strength):
        red, green, blue = sepia.fn(r, g, b, strength)
        wrong = torch.nextafter(red, red + 1)
        return torch.where(g == 127.5, wrong, red), green, blue

    uncompiled(planted)
    with pytest.raises(
        AssertionError, match=r"^compiled on the CPU: \d+ of \d+ words differ; of "
    ) as found:
        prove(sepia, 0.25)
    assert "[0.0, 127.5, 0.0, 0.25] it makes [" in str(found.value)


@pytest.mark.parametrize(
    ("fault", "told"),
    [("none", ""), ("last bit", r"a byte at 2\*\*-\d+"), ("rounding", "codes")],
)
def test_codes_and_the_last_bit_that_triton_makes_are_looked_at(
    fault: str, told: str, monkeypatch: pytest.MonkeyPatch
):
    """In its place a kernel that computes eagerly, with a fault planted in one pixel of blue."""
    pixel_triton = pytest.importorskip("fnpipe.ops.pixel_triton", exc_type=ImportError)

    def paint(stacked: Any, colors: Any, chain: Any, how: Any) -> Any:
        planes = [*chain[0](*stacked[0, :, 0], *colors[0][0])]
        if fault == "last bit":
            planes[2][77] = torch.nextafter(planes[2][77], planes[2][77] + 1)
        for fn, values in zip(chain[1:], colors[1:], strict=True):
            planes = fn(*planes, *values[0])
        codes = torch.stack([*planes]).clamp(0, 255).round()
        if fault == "rounding" and len(chain) == 1:
            codes[2, 77] = (codes[2, 77] + 1) % 256
        return codes.to(how.dtype)[None, :, None]

    monkeypatch.setattr(pixel_triton, "paint_fused", paint)
    strength = [torch.tensor([0.3])]
    if not told:
        return testing._through_triton(sepia.fn, strength)
    with pytest.raises(AssertionError, match=rf"^Triton, {told}: 1 of \d+ words differ"):
        testing._through_triton(sepia.fn, strength)


@pytest.mark.slow
def test_it_compiles_and_interprets():
    """The real thing, an AOT package as well."""
    if numerics.compiler() is None:
        pytest.skip("no C++ compiler")
    tried = prove(sepia, ahead=True)
    assert tried[:4] == [
        *("vocabulary", "eager on the CPU", "compiled on the CPU", "package on the CPU"),
    ]
