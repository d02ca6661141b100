"""Colour arithmetic on planes: the one definition of every pointwise operation.

A plane is float32, codes in [0, 255], any shape. These functions are read three times: eagerly by
torch, by ``torch.compile``, and by Triton (:mod:`fnpipe.ops.reread`), so they use the vocabulary of
:mod:`fnpipe.numerics` only and their brackets carry weight: ``a * (1 / b)`` is not ``a / b``, and
``(a + b) + c`` is not ``a + (b + c)``.
"""

from torch import clamp, floor, maximum, minimum, where

from fnpipe.types import Plane


ROUNDING = 12582912.0
"""1.5 * 2**23. Adding and subtracting it rounds a float32 in [0, 2**22] to the nearest integer,
ties to even, on every machine, and turns -0.0 into 0.0."""


def shift_hsv(
    r: Plane, g: Plane, b: Plane, sextants: Plane, saturation: Plane, value: Plane
) -> tuple[Plane, Plane, Plane]:
    """Rotate the hue by ``sextants`` sixths of a turn, [0, 6), and scale saturation and value.

    Codes in [0, 255] in and out, not yet quantised (a hair below 0 can occur). Saturation is
    limited to 1 and value to 255. Greys stay grey, black stays black, hue wraps; with gains of 1
    and no rotation an 8-bit colour is unchanged. Gains are >= 0.

    The hexcone model of A. R. Smith, "Color Gamut Transform Pairs", SIGGRAPH 1978, with hue kept in
    units of chroma: the textbook divides by chroma for the hue and by the maximum for the
    saturation; here both divisions meet in one ratio. Hue counts from red in sixths; measured from
    the *smallest* channel it is never negative, so one wrap is enough, and where two channels tie
    both spellings give the same point (0 and 6 are one hue).
    """
    high = maximum(maximum(r, g), b)
    low = minimum(minimum(r, g), b)
    chroma = high - low
    past_blue = chroma * 5.0 + (r - b)
    past_green = chroma * 3.0 + (b - g)
    past_red = chroma + (g - r)
    hue = where(b == low, past_red, where(r == low, past_green, past_blue)) + chroma * sextants
    turn = chroma * 6.0
    hue = where(hue >= turn, hue - turn, hue)
    top = clamp(high * value, max=255.0)
    # A grey has no hue to divide by; its share is 0 whatever the ratio, so 1 keeps out NaN. Nor has
    # a colour of no light: contrast before this can leave (-20, -20, 0), whose product is 0.
    area = high * chroma
    ratio = (top * minimum(chroma * saturation, high)) / where(area > 0.0, area, 1.0)
    to_red = minimum(clamp(chroma * 2.0 - abs(hue - chroma * 3.0), min=0.0), chroma)
    to_green = minimum(clamp(abs(hue - chroma * 2.0) - chroma, min=0.0), chroma)
    to_blue = minimum(clamp(abs(hue - chroma * 4.0) - chroma, min=0.0), chroma)
    return top - ratio * to_red, top - ratio * to_green, top - ratio * to_blue


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
