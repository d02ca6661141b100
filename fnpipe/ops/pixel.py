"""Colour arithmetic on planes: the one definition of every pointwise operation.

A plane is float32, codes in [0, 255], any shape. These functions are read three times: eagerly by
torch, by ``torch.compile``, and by Triton (:mod:`fnpipe.ops.reread`), so they use the vocabulary of
:mod:`fnpipe.numerics` only and their brackets carry weight: ``a * (1 / b)`` is not ``a / b``, and
``(a + b) + c`` is not ``a + (b + c)``.
"""

from torch import clamp, div, floor, maximum, minimum, ones_like, where

from fnpipe.types import Plane


ROUNDING = 12582912.0
"""1.5 * 2**23. Adding and subtracting it rounds a float32 in [0, 2**22] to the nearest integer,
ties to even, on every machine, and turns -0.0 into 0.0."""
SMALL = 2.0**-30
"""A colour whose product of maximum and chroma is below this counts as grey or black. Codes as a
warp gives them, multiples of 2**-14, are below it only where they are."""
LARGE = 2.0**60
"""No picture has a product of maximum and chroma like this: what divides is far from infinity."""


def reciprocal(x: Plane) -> Plane:
    """``1 / x`` correctly rounded, for x in [2**-60, 2**60]. A GPU needs no slow path there."""
    return div(ones_like(x), x)


def shift_hsv(
    r: Plane, g: Plane, b: Plane, sextants: Plane, saturation: Plane, value: Plane
) -> tuple[Plane, Plane, Plane]:
    """Rotate the hue by ``sextants`` sixths of a turn, [0, 6), and scale saturation and value.

    Codes in [0, 255] in and out, not yet quantised (a hair below 0 can occur). Saturation is
    limited to 1 and value to 255. Greys stay grey, black stays black, hue wraps; with gains of 1
    and no rotation an 8-bit colour is unchanged. Gains are >= 0.

    The hexcone model of A. R. Smith, "Color Gamut Transform Pairs", SIGGRAPH 1978. Sorting the
    channels by two swaps gives the hue without a case a channel: its sixth, and its place there,
    upwards or downwards. The textbook divides by chroma for the hue and by the maximum for the
    saturation; here both come of one reciprocal, that of their product.
    """
    upper = maximum(g, b)
    high = maximum(r, upper)
    middle = minimum(r, upper)
    lower = minimum(g, b)
    chroma = high - minimum(middle, lower)
    # Of two numbers where() makes torch's default dtype, which a user may have changed.
    one = ones_like(high)
    sixth = where(r < upper, where(g < b, 4.0 * one, -2.0), where(g < b, -6.0 * one, 0.0))
    share = reciprocal(clamp(high * chroma, min=SMALL, max=LARGE))
    hue = abs(((middle - lower) * high) * share + sixth) + (sextants - 3.0)
    hue = where(hue >= 3.0, hue - 6.0, hue)
    top = clamp(high * value, max=255.0)
    depth = top * clamp((chroma * chroma) * share * saturation, min=0.0, max=1.0)
    # How far each channel is below the highest, from hue counted from cyan, [-3, 3).
    red = clamp(2.0 - abs(hue), min=0.0, max=1.0)
    green = clamp(abs(hue + 1.0) - 1.0, min=0.0, max=1.0)
    blue = clamp(abs(hue - 1.0) - 1.0, min=0.0, max=1.0)
    return top - depth * red, top - depth * green, top - depth * blue


def scale_brightness(r: Plane, g: Plane, b: Plane, factor: Plane) -> tuple[Plane, Plane, Plane]:
    """Multiply codes by ``factor`` >= 0; what leaves [0, 255] is cut when quantised."""
    return r * factor, g * factor, b * factor


def scale_contrast(r: Plane, g: Plane, b: Plane, factor: Plane) -> tuple[Plane, Plane, Plane]:
    """Move codes away from middle grey (127.5) by ``factor`` >= 0: 0 is flat, 1 the identity.

    The pivot is a constant, not the picture's mean as in Pillow: a mean is a sum over the picture,
    and the order of a float sum differs between machines.
    """
    return (
        (r - 127.5) * factor + 127.5,
        (g - 127.5) * factor + 127.5,
        (b - 127.5) * factor + 127.5,
    )


def blend_grayscale(r: Plane, g: Plane, b: Plane, strength: Plane) -> tuple[Plane, Plane, Plane]:
    """Blend towards luma by ``strength`` in [0, 1]. Weights of ITU-R BT.601."""
    luma = (0.299 * r + 0.587 * g) + 0.114 * b
    return r + (luma - r) * strength, g + (luma - g) * strength, b + (luma - b) * strength


def solarize(r: Plane, g: Plane, b: Plane, threshold: Plane) -> tuple[Plane, Plane, Plane]:
    """Invert every code at or above ``threshold``; 256 leaves all as they are."""
    return (
        where(r >= threshold, 255.0 - r, r),
        where(g >= threshold, 255.0 - g, g),
        where(b >= threshold, 255.0 - b, b),
    )


def posterize(r: Plane, g: Plane, b: Plane, step: Plane) -> tuple[Plane, Plane, Plane]:
    """Round codes down to multiples of ``step`` >= 1: 2 ** (8 - bits) keeps that many bits."""
    return floor(r / step) * step, floor(g / step) * step, floor(b / step) * step


def quantize(plane: Plane) -> Plane:
    """Codes to the nearest whole code in [0, 255], ties to even, still float32, never -0.0."""
    return (clamp(plane, min=0.0, max=255.0) + ROUNDING) - ROUNDING
