"""A law is trusted after a planted bug fails it: each bug here was a real one somewhere."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from laws import TABLE, assert_same_words, columns, mutant
from scenes import assert_known_draws, assert_seen, exact_scenes
from torch import Tensor

from fnpipe import keys, numerics
from fnpipe.ops import pixel, render, warp


hunt = settings(
    max_examples=2000, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
)
"""Found again each time, and not made small. Hypothesis takes numbers from the sources it tests, so
any edit makes other examples: a rare one is the first or the thousandth."""


def law_of_words(fn: Callable[..., Any], bug: Callable[..., Any]) -> Callable[[], None]:
    """What makes every backend equal: the same words for the same columns."""
    inputs = next(names.split() for known, names in TABLE if known is fn)

    def run(one: Callable[..., Any], column: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
        made = one(*(column[name] for name in inputs))
        return {fn.__name__: made if isinstance(made, tuple) else (made,)}

    @hunt
    @given(columns())
    def law(column: dict[str, Tensor]) -> None:
        assert_same_words("the mutant", run(fn, column), run(bug, column), column)

    return law


def contracted(r: Tensor, g: Tensor, b: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    """``scale_contrast`` with its product and sum in one rounding, as a GPU would fuse them."""
    wide = factor.double()
    return tuple(((p - 127.5).double() * wide + 127.5).float() for p in (r, g, b))


def reordered(r: Tensor, g: Tensor, b: Tensor, strength: Tensor) -> tuple[Tensor, ...]:
    """``blend_grayscale`` with the brackets of its luma moved."""
    luma = 0.299 * r + (0.587 * g + 0.114 * b)
    return tuple(p + (luma - p) * strength for p in (r, g, b))


@pytest.mark.parametrize(
    ("fn", "bug"),
    [
        (pixel.posterize, mutant(pixel.posterize, "floor(r / step)", "floor(r * (1.0 / step))")),
        (pixel.scale_contrast, contracted),
        (pixel.blend_grayscale, reordered),
        (pixel.shift_hsv, mutant(pixel.shift_hsv, "-6.0 * one", "6.0 * one")),
        (pixel.shift_hsv, mutant(pixel.shift_hsv, "hue >= 3.0", "hue > 9.0")),
        (pixel.shift_hsv, mutant(pixel.shift_hsv, "(g < b, 4.0", "(g > b, 4.0")),
        (pixel.quantize, mutant(pixel.quantize, "+ ROUNDING) - ROUNDING", "+ 0.5).floor()")),
        (pixel.solarize, mutant(pixel.solarize, "r >= threshold", "r > threshold")),
        (warp.nearest, mutant(warp.nearest, "round(position)", "torch.floor(position + 0.5)")),
        (warp.mix, mutant(warp.mix, "vy = 128 - wy", "vy = 127 - wy")),
        (warp.tap, mutant(warp.tap, "(limit - step)", "(limit - step - 1)")),
    ],
    ids=[
        "a reciprocal for a division",
        "a product and a sum in one rounding",
        "a sum in another order",
        "a hue on the wrong side of red",
        "a hue that does not wrap",
        "a hue in another sixth where blue ties with green",
        "ties away from zero",
        "a threshold that is not included",
        "ties upwards",
        "weights that do not add up",
        "a position too many outside",
    ],
)
def test_another_word_is_seen(fn: Callable[..., Any], bug: Callable[..., Any]):
    with pytest.raises(AssertionError, match=r"the mutant: \w+\[\d\] differs in \d+ of 1036 words"):
        law_of_words(fn, bug)()


# Geometry


def law_of_looks() -> None:
    """A pixel shows what the words say, by :func:`scenes.look`."""

    @hunt
    @given(exact_scenes())
    def law(scene: Any) -> None:
        assert_seen(render.warp, *scene)

    law()


@pytest.mark.parametrize(
    ("module", "name", "old", "new"),
    [
        (render, "look", ">= 0.0 for i", "> 0.0 for i"),
        (render, "look", "width - x, x)", "width - 1 - x, x)"),
        (render, "look", "float32, device=device) + 0.5)[None, None, :]", "float32))[None, None]"),
        (render, "look", "second = where(inside, first + stride", "second = where(inside, first"),
        (render, "choose", "row * grid + column, None", "column * grid + row, None"),
        (render, "_tabulate", "* STEPS - 1", "* STEPS"),
        (render, "_tabulate", "torch.full_like(last[:1], -1)", "last[:1]"),
        (render, "bias", "64 - origin", "63 - origin"),
        (render, "tap", "shifted & 127", "shifted & 126"),
        (warp, "enclose", "padded[:, 1], padded[:, -2]", "padded[:, 1], padded[:, -3]"),
        (warp, "enclose", "padded[0], padded[-1] =", "padded[-1], padded[0] ="),
    ],
    ids=[
        "a seam belongs to the tile before it",
        "a mirror by pixel indices",
        "a centre without its half",
        "one row twice",
        "tiles in columns",
        "a row of look-ups too many",
        "an empty tile that is photo 0",
        "a position off by one",
        "a weight without its last bit",
        "a border from one column too far",
        "borders above and below exchanged",
    ],
)
def test_another_look_is_seen(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, old: str, new: str
):
    monkeypatch.setattr(module, name, mutant(getattr(module, name), old, new))
    with pytest.raises((AssertionError, IndexError)):
        law_of_looks()


# Randomness


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("_draw", "sample, epoch, digest(name)), int", "epoch, sample, digest(name)), int"),
        ("_draw", "int(seed)", "(int(seed) >> 32) & MASK | (int(seed) & MASK) << 32"),
        ("_draw", "digest(name)), int", "digest(name) + 1), int"),
        ("_philox_on_host", "product[::-1]", "product"),
        ("_philox_on_host", "even ^= odd", "even |= odd"),
        ("_key_schedule", "np.arange(10", "np.arange(1, 11"),
    ],
    ids=[
        "sample and epoch exchanged",
        "the seed's halves exchanged",
        "another digest",
        "products that do not cross",
        "or for exclusive or",
        "keys a round too far",
    ],
)
def test_other_draws_are_seen(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str):
    monkeypatch.setattr(keys, name, mutant(getattr(keys, name), old, new))
    with pytest.raises(AssertionError):
        assert_known_draws()


# The divisor contract


def test_a_number_that_divides_is_named_with_its_line():
    bug = mutant(pixel.posterize, "floor(b / step)", "floor(b / 32)")
    one = torch.ones(1)
    assert numerics.audit(pixel.posterize, one, one, one, one) == ()
    (finding,) = numerics.audit(bug, one, one, one, one)
    assert finding.reason == numerics.SCALAR_DIVISOR
    assert finding.where.startswith("<mutant posterize>:3")


def divisions_by_numbers(source: str) -> list[int]:
    """The lines where something that is no number is divided by one."""

    def is_number(node: ast.expr) -> bool:
        return all(
            isinstance(n, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
            for n in ast.walk(node)
        )

    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and is_number(node.right)
        and not is_number(node.left)
    ]


@pytest.mark.parametrize("module", [pixel, warp, render], ids=lambda m: m.__name__)
def test_no_pixel_is_divided_by_a_number(module: Any):
    """On CUDA ``x / 255`` is another word than on the CPU in 38 % of all cases."""
    assert divisions_by_numbers(Path(module.__file__).read_text()) == []


def test_a_division_by_a_number_would_be_found():
    assert divisions_by_numbers("y = 1 / 255\nz = x / 255\nw = x * (1 / 255)\nv = x / y") == [2]
