"""Operations on whole images, for use by hand: layout, types and ranges round plane arithmetic."""

from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from typing import Any, TypeVar

import torch
from jaxtyping import Float32, TypeCheckError, jaxtyped
from torch import Tensor

from fnpipe.ops.pixel import shift_hsv
from fnpipe.types import ArgumentError
from fnpipe.values import brief


F = TypeVar("F", bound=Callable[..., Any])


def typed(fn: F) -> F:
    """Check shapes and dtypes at a public edge; inert while compiling, which cannot trace checks.

    What does not fit is told in one line, by ArgumentError.
    Annotations inside the package stay bare: a check costs 94 us a call, the bare call 10. It is
    built at the first call: beartype's import is half the time that ``import fnpipe`` takes.
    """

    @cache
    def checked() -> Callable[..., Any]:
        from beartype import beartype

        return jaxtyped(fn, typechecker=beartype)

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        try:
            return checked()(*args, **kwargs)
        except TypeCheckError:
            wanted = [
                f"{p.name} {p.annotation.__name__}" for p in signature(fn).parameters.values()
            ]
            came = map(brief, (*args, *kwargs.values()))
            raise ArgumentError(
                f"{fn.__name__} wanted {', '.join(wanted)}; came {', '.join(came)}"
            ) from None

    return call  # type: ignore[return-value]


@typed
def adjust_hsv(
    image: Float32[Tensor, "*batch 3 h w"],
    turns: Float32[Tensor, "*batch"],
    saturation: Float32[Tensor, "*batch"],
    value: Float32[Tensor, "*batch"],
) -> Float32[Tensor, "*batch 3 h w"]:
    """Turn the hue by ``turns``, any number of them, and scale saturation and value, gains >= 0.

    Codes in [0, 255] in and out, not quantised; greys and black stay what they are. The formula is
    :func:`fnpipe.ops.pixel.shift_hsv`. Errors: ArgumentError for codes outside [0, 255], as of an
    image that was normalised already: its hue means nothing. The range is not looked at while
    compiling.

    >>> red = torch.tensor([255.0, 0.0, 0.0]).view(3, 1, 1)
    >>> third, one = torch.tensor(1 / 3), torch.tensor(1.0)
    >>> adjust_hsv(red, third, one, one).flatten().round().tolist()
    [0.0, 255.0, 0.0]
    """
    if not torch.compiler.is_compiling():
        low, high = (float(x) for x in image.aminmax()) if image.numel() else (0.0, 0.0)
        if not (low >= 0.0 and high <= 255.0):
            raise ArgumentError(
                f"adjust_hsv: image wanted codes in [0, 255], came [{low:g}, {high:g}]; "
                "change colours before normalising"
            )
    red, green, blue = image.unbind(-3)
    sextants = (turns - turns.floor()) * 6.0
    gains = (p[..., None, None] for p in (sextants, saturation, value))
    return torch.stack(shift_hsv(red, green, blue, *gains), dim=-3)
