"""What Triton reads of a definition, and what it is kept from reading otherwise than torch does."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


reread_module = pytest.importorskip("fnpipe.ops.reread", reason="Triton is not installed")
Unreadable = reread_module.Unreadable


def remainder(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return r % 2.0, g, b


def remains(r: Tensor, g: Tensor, b: Tensor) -> Any:
    r %= 2.0
    return r, g, b


def power(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return r**2.2, g, b


def method(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return r.clamp(0.0), g, b


def strange(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return torch.sigmoid(r), g, b


def least(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return min(r, g), g, b


def whole(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return r.to(torch.float32) * 2**3 + abs(g), torch.where(g > 1, b, r), b / 7.0


def divides(r: Tensor, g: Tensor, b: Tensor) -> Any:
    """A division that is written short."""
    r /= g
    return r, g, b


def calls(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return divides(r, g, b)


@pytest.mark.parametrize(
    ("fn", "line", "what"),
    [
        (remainder, 1, "%"),
        (remains, 1, "%"),
        (power, 1, "**"),
        (method, 1, "r.clamp"),
        (strange, 1, "torch.sigmoid"),
    ],
)
def test_what_triton_reads_otherwise_is_refused_with_its_line(
    fn: Callable[..., Any], line: int, what: str
):
    """A remainder there has the sign of the dividend, in torch that of the divisor."""
    with pytest.raises(Unreadable) as caught:
        reread_module.reread(fn)
    at = fn.__code__.co_firstlineno + line
    assert str(caught.value) == (
        f"{__file__}:{at}: {fn.__name__} uses {what}, which has no Triton spelling; "
        f"known are {reread_module.KNOWN}"
    )


def test_other_builtins_are_refused():
    with pytest.raises(Unreadable, match=r"^least uses 'min' \(builtin_function_or_method\)"):
        reread_module.reread(least)


def test_a_function_without_a_source_is_refused():
    made: dict[str, Any] = {}
    exec("def hidden(r, g, b): return r, g, b", made)
    with pytest.raises(Unreadable, match=r"^the source of <function hidden"):
        reread_module.reread(made["hidden"])


def test_a_lambda_is_refused():
    swap = lambda r, g, b: (b, g, r)  # noqa: E731
    with pytest.raises(Unreadable, match=r"is not written with def$"):
        reread_module.reread(swap)


@pytest.mark.parametrize("fn", [whole, divides, calls])
def test_the_vocabulary_is_read(fn: Callable[..., Any]):
    assert reread_module.reread(fn) is reread_module.reread(fn)


@pytest.mark.parametrize("fn", [whole, divides])
def test_every_division_is_the_correctly_rounded_one(fn: Callable[..., Any]):
    """Also ``a /= b``: Triton's own is up to two units in the last place off."""
    text = inspect.getsource(reread_module.reread(fn).fn)
    assert "_div(" in text
    assert "/" not in text
