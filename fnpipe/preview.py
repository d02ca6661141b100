"""Pictures for people: images with their targets drawn on top. Inputs are only read."""

import colorsys
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torchvision.utils
from jaxtyping import Shaped, UInt8
from PIL import Image as pillow
from PIL import ImageDraw, ImageFont
from torch import Tensor

from fnpipe.types import ArgumentError, Batch, Image, Targets, check_batch, check_whole
from fnpipe.values import brief


FLOATS = 8.0
"""More than any image has that was normalised by a mean and a deviation, as 2.64 by ImageNet's."""
SHARPNESS = 2
"""Targets are drawn this many times too large and shrunk: Pillow's own lines have jagged edges."""
GOLDEN = 0.61803399
"""Steps of this part of a turn give neighbouring labels hues far apart, however many there are."""
GUTTER = 4
"""White pixels between the pictures of a grid."""

Color = tuple[int, int, int]
IGNORED: Color = (150, 150, 150)
WHITE: Color = (255, 255, 255)


def color(label: int) -> Color:
    """A class's own bright colour, the same in every picture."""
    r, g, b = colorsys.hsv_to_rgb((0.56 + label * GOLDEN) % 1.0, 0.78, 1.0)
    return round(r * 255), round(g * 255), round(b * 255)


def to_codes(image: Shaped[Tensor, "3 h w"]) -> Image:
    """A finished image as 8-bit codes; floats are taken to be codes / 255. Errors: ArgumentError
    for another layout, and for floats that are codes."""
    if image.ndim != 3 or image.shape[0] != 3:
        raise ArgumentError(f"image wanted [3, h, w], came {brief(image)}")
    if image.dtype == torch.uint8:
        return image.cpu()
    if image.numel() and (most := float(image.max())) > FLOATS:
        raise ArgumentError(
            f"image wanted 8-bit codes or floats in [0, 1], came floats up to {most:g}"
        )
    return (image.cpu().float() * 255).round().clamp(0, 255).to(torch.uint8)


def instance_rings(targets: Targets, row: int) -> list[Tensor]:
    """The rings of one instance that have an edge, each [p, 2]."""
    rings = targets.rings
    first, last = rings.instance_offsets[row : row + 2].tolist()
    bounds = rings.ring_offsets[first : last + 1].tolist()
    return [rings.points[start:end] for start, end in pairwise(bounds) if end - start > 1]


def is_upright(quad: Shaped[Tensor, "4 2"]) -> bool:
    """Whether every side of an oriented box follows an axis, so that the box itself shows it."""
    sides = (quad.roll(-1, dims=0) - quad).abs()
    return bool((sides.amin(dim=1) < 0.01 * sides.amax()).all())


class Overlay:
    """A transparent sheet over one image; coordinates are the image's own times ``zoom``."""

    size: tuple[int, int]
    zoom: float
    unit: float
    sheet: pillow.Image
    pen: ImageDraw.ImageDraw
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont
    names: list[tuple[float, float, float]]
    """Left, top and width of those that are drawn."""

    def __init__(self, width: int, height: int, *, zoom: float):
        self.size = (width, height)
        self.zoom = zoom * SHARPNESS
        self.unit = SHARPNESS * max(1.0, min(width, height) / 360)
        self.sheet = pillow.new("RGBA", (width * SHARPNESS, height * SHARPNESS))
        self.pen = ImageDraw.Draw(self.sheet)
        self.names = []
        self.font = ImageFont.load_default(11 * self.unit)

    def place(self, points: Tensor) -> list[tuple[float, float]]:
        return [(x * self.zoom, y * self.zoom) for x, y in points.tolist()]

    def region(self, rings: list[Tensor], ink: Color) -> None:
        for ring in map(self.place, rings):
            self.pen.polygon(ring, fill=(*ink, 84))
        self.loops(rings, ink, width=1.0)

    def loops(self, rings: list[Tensor], ink: Color, *, width: float) -> None:
        for ring in map(self.place, rings):
            self.pen.line([*ring, *ring[:2]], fill=ink, width=round(width * self.unit))

    def box(self, box: Tensor, ink: Color, *, width: float = 1.5) -> None:
        """Its outline, inside it; a box thinner than that is a line."""
        x0, y0, x1, y1 = (box * self.zoom).tolist()
        x1, y1 = max(x0, x1 - 1), max(y0, y1 - 1)
        self.pen.rectangle((x0, y0, x1, y1), outline=ink, width=round(width * self.unit))

    def dots(self, keypoints: Tensor, ink: Color) -> None:
        """Full where visible, hollow where labelled but hidden, none where missing."""
        radius = 2.6 * self.unit
        for (x, y), seen in zip(
            self.place(keypoints[:, :2]), keypoints[:, 2].tolist(), strict=True
        ):
            if seen:
                fill, edge = (ink, WHITE) if seen == 2 else (None, ink)
                self.pen.ellipse(
                    (x - radius, y - radius, x + radius, y + radius),
                    fill=fill,
                    outline=edge,
                    width=round(self.unit),
                )

    def tag(self, text: str, box: Tensor, ink: Color) -> None:
        """A name on its class's colour at a box's first corner: above a box that it would hide.

        One that would cover another, earlier name is left out.
        """
        pad = 2 * self.unit
        width = self.font.getlength(text) + 2 * pad
        height = self.font.getbbox("Åg")[3] + pad / 2
        left, top, _, bottom = (box * self.zoom).tolist()
        top -= height if bottom - top < 3 * height else 0
        x = max(0, min(left, self.sheet.width - width))
        y = max(0, min(top, self.sheet.height - height))
        if any(x < a + w and a < x + width and abs(y - b) < height for a, b, w in self.names):
            return
        self.names.append((x, y, width))
        self.pen.rectangle((x, y, x + width, y + height), fill=ink)
        dark = 0.299 * ink[0] + 0.587 * ink[1] + 0.114 * ink[2] > 128
        self.pen.text((x + pad, y), text, font=self.font, fill="black" if dark else "white")

    def over(self, canvas: pillow.Image) -> pillow.Image:
        small = self.sheet.resize(self.size, pillow.Resampling.BOX)
        return pillow.alpha_composite(canvas.convert("RGBA"), small).convert("RGB")


def draw(
    image: Shaped[Tensor, "3 h w"],
    targets: Targets,
    *,
    names: Sequence[str] = (),
    zoom: float = 1.0,
    owner: int | None = None,
) -> UInt8[Tensor, "3 oh ow"]:
    """One image, 8-bit codes or codes / 255, ``zoom`` times as large, with its targets on top.

    Boxes carry ``names[label]`` (the number where there is no name, nothing where it is ""), masks
    are translucent, keypoints are dots (hollow where hidden), an oriented box that is not upright
    is drawn with a thin upright one round it; what is to be ignored is grey. Small objects lie on
    top of large ones, and of names that would cover each other the largest object's is drawn. Of a
    batch's targets, those of image ``owner``. Always a new tensor.
    """
    if not isinstance(targets, Targets):
        raise ArgumentError(f"targets wanted fnpipe.Targets, came {targets!r:.80}")
    if not zoom > 0:
        raise ArgumentError(f"zoom wanted a number > 0, came {zoom!r}")
    canvas = pillow.fromarray(np.ascontiguousarray(to_codes(image).permute(1, 2, 0).numpy()))
    width, height = (max(1, round(side * zoom)) for side in canvas.size)
    canvas = canvas.resize((width, height), pillow.Resampling.LANCZOS)
    overlay = Overlay(width, height, zoom=zoom)
    sides = targets.boxes[:, 2:] - targets.boxes[:, :2]
    order = sides.prod(dim=1).argsort(descending=True, stable=True).tolist()
    rows = [i for i in order if owner is None or targets.owner[i] == owner]
    labels = {i: int(targets.labels[i]) for i in rows}
    inks = {i: IGNORED if targets.ignore[i] else color(labels[i]) for i in rows}
    for i in rows:
        overlay.region(instance_rings(targets, i), inks[i])
    for i in rows:
        tilted = targets.quads.shape[1] and not is_upright(targets.quads[i])
        overlay.box(targets.boxes[i], inks[i], width=0.5 if tilted else 1.5)
        if tilted:
            overlay.loops([targets.quads[i]], inks[i], width=1.5)
        overlay.dots(targets.keypoints[i], inks[i])
    for i in rows:
        text = names[labels[i]] if labels[i] < len(names) else str(labels[i])
        if text:
            overlay.tag(text, targets.boxes[i], inks[i])
    return torch.from_numpy(np.array(overlay.over(canvas))).permute(2, 0, 1).contiguous()


def tile(pictures: Sequence[UInt8[Tensor, "3 _ _"]], *, columns: int = 4) -> UInt8[Tensor, "3 h w"]:
    """Pictures of any sizes in rows, on white, each at the first corner of its place.

    Raises ArgumentError for no picture, and where ``columns`` is not positive.
    """
    check_whole("columns", columns, 1)
    if not pictures:
        raise ArgumentError("pictures wanted at least one, came none")
    height, width = (max(p.shape[axis] for p in pictures) for axis in (1, 2))
    places = torch.full((len(pictures), 3, height, width), 255, dtype=torch.uint8)
    for place, picture in zip(places, pictures, strict=True):
        place[:, : picture.shape[1], : picture.shape[2]] = picture
    return torchvision.utils.make_grid(places, nrow=columns, padding=GUTTER, pad_value=255)


def grid(
    batch: Batch, *, names: Sequence[str] = (), columns: int = 4, cell: int = 320
) -> UInt8[Tensor, "3 h w"]:
    """A batch as one picture: :func:`draw` of every image, long sides of ``cell`` pixels, in rows.

    Raises ArgumentError where ``columns`` or ``cell`` is not positive, and for a batch of no image.
    """
    check_whole("cell", cell, 1)
    check_batch(batch)
    batch = batch.to("cpu")  # at once: a GPU would be waited for at every instance
    zoom = cell / max(batch.images.shape[2:])
    pictures = [
        draw(image, batch.targets, names=names, zoom=zoom, owner=i)
        for i, image in enumerate(batch.images)
    ]
    return tile(pictures, columns=columns)


def save(image: UInt8[Tensor, "3 h w"], path: str | Path | BytesIO) -> None:
    """Write a picture as PNG, whatever the suffix of ``path``. Errors: ArgumentError for floats."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise ArgumentError(f"image wanted uint8[3, h, w], came {brief(image)}")
    pillow.fromarray(image.permute(1, 2, 0).numpy()).save(path, format="PNG")
