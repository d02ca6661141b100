"""Where an output pixel looks, and what it sees there. The one definition of geometry on pixels.

Positions are rounded to the nearest 1/128 pixel (OpenCV rounds to 1/32). From there on all is
integer: two taps a row, two rows, weights that are multiples of 1/128, products of at most 22 bits.
Integer sums have one result whatever their order, so a GPU that fuses multiplications and
additions, a vector unit, and a scalar loop agree without being told to. What a position loses,
1/256 pixel at most, is below the quarter of a code on all but the sharpest of edges.

A source is stored with its border repeated once, (h + 2) x (w + 2) words: the four taps of a point
inside are always there and need no clamping. A point outside its source is fill, whole: it reads
the two words of fill that lie before every source.
"""

from collections.abc import Iterable

import torch
from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor, round

from fnpipe.types import ArgumentError, Image, Sources, Words


FILL = 114
"""The grey of letterboxes and of what lies outside a photo, each channel (YOLOv5's)."""
FILL_WORD = FILL * 0x010101
STEPS = 128
"""Positions are counted in 1/128 pixel."""
TO_CODE = 1.0 / (STEPS * STEPS)


def pack(image: Image) -> Words:
    """A photo [3, h, w] as 2 words of fill and (h + 2) * (w + 2) words, its border repeated once.

    Fill before every source costs 8 bytes and saves a selection after every look-up: a point
    outside reads at -2 instead. Errors: ArgumentError for what holds no codes, such as an image
    that was normalised already.
    """
    if image.dtype != torch.uint8 or image.dim() != 3 or len(image) != 3 or not image.numel():
        raise ArgumentError(
            "image wanted uint8 codes [3, height, width], 1 pixel or more, "
            f"came {image.dtype} {list(image.shape)}"
        )
    _, height, width = image.shape
    words = torch.empty(2 + (height + 2) * (width + 2), dtype=torch.int32)
    padded = words[2:].view(torch.uint8).view(height + 2, width + 2, 4)
    padded[1:-1, 1:-1, :3] = rearrange(image, "c h w -> h w c")
    return enclose(words, width, height)


def enclose(words: Words, width: int, height: int) -> Words:
    """Complete what :func:`pack` returns, in place, where the photo's pixels are in it already.

    Clears their fourth bytes, repeats the border, writes the fill.
    """
    flat = words.numpy()  # half of torch's time: 0.08 ms for a photo of COCO
    flat &= 0xFFFFFF
    flat[:2] = FILL_WORD
    padded = flat[2:].reshape(height + 2, width + 2)
    padded[:, 0], padded[:, -1] = padded[:, 1], padded[:, -2]
    padded[0], padded[-1] = padded[1], padded[-2]
    return words


def pack_image(image: Image) -> tuple[Words, tuple[int, int]]:
    """A photo as :func:`pack` stores it, and its width and height."""
    return pack(image), (image.shape[2], image.shape[1])


def pack_sources(images: Iterable[UInt8[Tensor, "3 _ _"]]) -> Sources:
    """Photos in one buffer, in order (:class:`fnpipe.types.Sources`)."""
    return join_sources(map(pack_image, images))


def join_sources(photos: Iterable[tuple[Words, tuple[int, int]]]) -> Sources:
    """Packed photos, each with its width and height, in one buffer, in order."""
    words, sizes = [], []
    for packed, size in photos:
        words.append(packed)
        sizes.append(size)
    ends = torch.tensor([len(w) for w in words], dtype=torch.int64).cumsum(0)
    shapes = torch.tensor(sizes, dtype=torch.int32).reshape(-1, 2)
    return Sources(
        words=torch.cat(words) if words else torch.zeros(2, dtype=torch.int32),
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), ends])[:-1] + 2,
        sizes=shapes,
        origins=torch.zeros_like(shapes),
        strides=shapes[:, 0] + 2,
    )


def unpack(words: Words, width: int, height: int) -> Image:
    """The photo [3, h, w] that :func:`pack` stored."""
    padded = words[2:].view(torch.uint8).view(height + 2, width + 2, 4)
    return rearrange(padded[1:-1, 1:-1, :3], "h w c -> c h w").contiguous()


def nearest(position: Tensor) -> Tensor:
    """The nearest integer, ties to even, int32."""
    return round(position).to(torch.int32)


def linear(x: Tensor, y: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``a x + b y + c``, in the order that lets a row share its part."""
    return a * x + (b * y + c)


def bias(origin: Tensor) -> Tensor:
    """What :func:`tap` adds to a position to count taps from a window's first column or row.

    A pixel's centre is at half a pixel, hence the 64.
    """
    return 64 - origin * STEPS


def tap(step: Tensor, bias: Tensor, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split a position (1/128 pixel) into the first tap's index, the weight, and whether it misses.

    The index counts in the stored window; the next tap is one further, its weight 0 to 127.
    ``limit`` is the last position inside,
    ``128 * extent - 1``. The third number is negative where the position is outside: integers
    whose signs are or-ed cost a GPU 5 instructions an image point, four comparisons cost it 13.
    """
    shifted = step + bias
    return shifted >> 7, shifted & 127, step | (limit - step)


def mix(
    near: Tensor, far: Tensor, near_below: Tensor, far_below: Tensor, wx: Tensor, wy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Bilinear blend of four packed words by weights of 0 to 127 parts in 128: three sums.

    Each sum is a code times 128 * 128, exact. Red and blue share a word on the way: 255 * 128 has
    15 bits, so neither reaches into the other, and the word stays below 2**31.
    """
    vx = 128 - wx
    vy = 128 - wy
    red_blue = (near & 0xFF00FF) * vx + (far & 0xFF00FF) * wx
    red_blue_below = (near_below & 0xFF00FF) * vx + (far_below & 0xFF00FF) * wx
    green = ((near >> 8) & 255) * vx + ((far >> 8) & 255) * wx
    green_below = ((near_below >> 8) & 255) * vx + ((far_below >> 8) & 255) * wx
    red = (red_blue & 0xFFFF) * vy + (red_blue_below & 0xFFFF) * wy
    blue = (red_blue >> 16) * vy + (red_blue_below >> 16) * wy
    return red, green * vy + green_below * wy, blue


def to_code(sum: Tensor) -> Tensor:
    """A sum of :func:`mix` as a code in [0, 255], float32, exact."""
    return sum.to(torch.float32) * TO_CODE


def blend(
    near: Tensor, far: Tensor, near_below: Tensor, far_below: Tensor, wx: Tensor, wy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Bilinear blend of four packed words: three codes in [0, 255], multiples of 2**-14, exact."""
    red, green, blue = mix(near, far, near_below, far_below, wx, wy)
    return to_code(red), to_code(green), to_code(blue)
