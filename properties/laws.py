"""What several laws share: the table of operations, planes to try them on, and comparison in bits.

A law says how a failure looks: how many words differ, which came first, and what went in there.
"""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from fnpipe.numerics import count_differences
from fnpipe.ops import pixel, warp
from fnpipe.ops.render import finish
from fnpipe.testing.strategies import colors as colors
from fnpipe.testing.strategies import numbers as numbers
from fnpipe.types import Finish


SHAPE = (2, 7, 74)
"""Two pictures of 1036 pixels in all: whole vectors of 4, 8 and 16 lanes, and a rest of each."""


class Row(NamedTuple):
    """An operation, and the columns of numbers that it takes."""

    fn: Callable[..., Any]
    inputs: str


TABLE = [
    Row(pixel.shift_hsv, "r g b sextants saturation value"),
    Row(pixel.scale_brightness, "r g b value"),
    Row(pixel.scale_contrast, "r g b value"),
    Row(pixel.blend_grayscale, "r g b strength"),
    Row(pixel.solarize, "r g b threshold"),
    Row(pixel.posterize, "r g b step"),
    Row(pixel.quantize, "a"),
    Row(pixel.reciprocal, "divisor"),
    Row(warp.linear, "x y a b c"),
    Row(warp.nearest, "position"),
    Row(warp.tap, "steps bias limit"),
    Row(warp.mix, "near far near_below far_below wx wy"),
    Row(warp.blend, "near far near_below far_below wx wy"),
    Row(warp.to_code, "sum"),
]
"""Every operation on pixels."""

MEAN = (-2.117904, -2.035714, -1.804444)
FINISHES = [
    *(Finish(d, last) for d in (torch.uint8, torch.float32) for last in (False, True)),
    *(Finish(d, last) for d in (torch.float16, torch.bfloat16) for last in (False, True)),
    Finish(torch.float32, scale=(0.017125, 0.017507, 0.017429), offset=MEAN),
]
"""Every dtype and layout, and one with a mean and a deviation."""


def below(high: int, *, low: int = 0) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([low, high]), st.integers(low, high))


word = st.one_of(st.sampled_from([0, 0xFFFFFF, 0xFF00FF, 0x00FF00]), st.integers(0, 0xFFFFFF))
centre = st.integers(0, 8191).map(lambda i: i + 0.5)
whole = st.integers(-(2**23), 2**23).map(lambda i: i / 2)
gain = numbers(0, 2, 1)
coefficient = numbers(-1e4, 1e4, 0, 0.5, 1, 128, 255)
COLUMNS = {
    "sextants": numbers(0, float(np.nextafter(np.float32(6), np.float32(0))), 1, 2, 3, 4, 5),
    "saturation": gain,
    "value": gain,
    "strength": numbers(0, 1),
    "threshold": numbers(0, 256, 127, 128),
    # 41 * (1 / 41) is below 1: where a division by a step and its reciprocal part.
    "step": st.one_of(
        st.sampled_from([41.0, 47.0, 55.0]), st.integers(1, 128).map(float), numbers(1, 128)
    ),
    "divisor": numbers(2.0**-60, 2.0**60, 2.0**-30, 1, 255, 65025),
    "x": centre,
    "y": centre,
    "a": coefficient,
    "b": coefficient,
    "c": coefficient,
    "position": st.one_of(numbers(-(2.0**30), 2.0**30), whole),
    "steps": below(2**30, low=-(2**30)),
    "bias": below(2**17).map(lambda origin: 64 - 128 * origin),
    "limit": below(2**17).map(lambda extent: 128 * extent - 1),
    **dict.fromkeys(("near", "far", "near_below", "far_below"), word),
    "wx": below(127),
    "wy": below(127),
    "sum": below(255 << 14),
}
"""What each column of numbers may hold."""


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Tensor]:
    """A column of every name, each a few numbers over and over, so that all kinds meet."""
    length = int(np.prod(SHAPE))
    drawn = {name: draw(st.lists(kind, min_size=1, max_size=7)) for name, kind in COLUMNS.items()}
    triples = draw(st.lists(colors, min_size=1, max_size=64))
    drawn |= zip("rgb", zip(*triples, strict=True), strict=True)
    return {name: torch.from_numpy(_tile(values, length)) for name, values in drawn.items()}


def _tile(values: Any, length: int) -> Any:
    dtype = np.int32 if isinstance(values[0], int) else np.float32
    return np.resize(np.array(values, dtype), length)


NAMES = ("r", "g", "b", *COLUMNS)


def everything(*tensors: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """All results of the table and of every finish: one function, to be compiled once."""
    column = dict(zip(NAMES, tensors, strict=True))
    found = {}
    for fn, inputs in TABLE:
        result = fn(*(column[name] for name in inputs.split()))
        found[fn.__name__] = result if isinstance(result, tuple) else (result,)
    planes = tuple(column[name].view(SHAPE) for name in "rgb")
    for how in FINISHES:
        found[describe(how)] = (finish(planes, how),)
    return found


def describe(how: Finish) -> str:
    shifted = " with a mean" if any(how.offset) else ""
    return f"finish {how.dtype} {'last' if how.channels_last else 'first'}{shifted}"


def assert_same_words(
    who: str,
    expected: dict[str, tuple[Tensor, ...]],
    got: dict[str, tuple[Tensor, ...]],
    column: dict[str, Tensor],
) -> None:
    """Errors: AssertionError that says how many words differ, which first, and from what."""
    inputs = {fn.__name__: names.split() for fn, names in TABLE}
    for name, results in expected.items():
        for part, (a, b) in enumerate(zip(results, got[name], strict=True)):
            count, first = count_differences(a, b)
            if first is None:
                continue
            given = {n: column[n][first].item() for n in inputs.get(name, ())}
            raise AssertionError(
                f"{who}: {name}[{part}] differs in {count} of {a.numel()} words, first at {first}: "
                f"{a.flatten()[first].item()!r} became {b.cpu().flatten()[first].item()!r}, "
                f"of {given}"
            )


def mutant(fn: Callable[..., Any], old: str, new: str) -> Any:
    """``fn`` with a bug planted in its source: the only ``old`` becomes ``new``."""
    source = inspect.getsource(fn)
    assert source.count(old) == 1, f"{fn.__name__} has {source.count(old)} of {old!r}"
    module = ModuleType("mutant")
    module.__dict__.update(inspect.unwrap(fn).__globals__)
    exec(compile(source.replace(old, new), f"<mutant {fn.__name__}>", "exec"), module.__dict__)
    return getattr(module, fn.__name__)
