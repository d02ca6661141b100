"""Photos as upright RGB: decoded by what a file contains, whatever its name says.

Pillow decodes every kind. torchvision's JPEG reader returns the same bits in less time (1.9 ms for
2.5 at 640 x 480), but torchvision 0.29 deprecates it, it tells stderr of every broken bit, and its
neighbour for PNG ends the process on some files.
"""

import contextlib
import io
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image as pillow
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from fnpipe.ops.warp import enclose, pack
from fnpipe.types import DataError, Image, Words


SUFFIXES = frozenset(
    f".{name}"
    for name in (
        "avif bmp dib gif heic heif ico jfif jp2 jpe jpeg jpg mpo pbm pgm png pnm ppm tif tiff webp"
    ).split()
)
"""What folders are searched for, whatever the case. Decoding does not look at a file's name.

HEIC, a telephone's photos, is not decoded: it is among them to be reported."""
PIXEL_LIMIT = 2**30
"""Largest width times height: DOTA's largest photo has 0.81e9 pixels, a bomb claims any number."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "PPM", "JPEG2000", "ICO")
_FLIPS = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}
_ORIENTATION, _BITS_PER_SAMPLE = 0x0112, 0x0102
_PLACES = ((0x0111, 0x0144), (0x0117, 0x0145))
"""Offsets and byte counts, of strips and of tiles."""
_METADATA = {b"eXIf", b"iTXt", b"tEXt", b"zTXt"}

File = io.BufferedReader | io.BytesIO
T = TypeVar("T")


def read_image(path: Path | str, *, pixel_limit: int = PIXEL_LIMIT) -> Image:
    """Photo as uint8 [3, height, width], codes 0 to 255, RGB, upright by its EXIF (else XMP) tag.

    Grey is repeated, a palette looked up, CMYK converted (Adobe's inverted form too). Of several
    frames comes the first. Of samples deeper than 8 bits come the high 8 bits. Transparency is
    dropped, not blended: the colour stored beneath it comes out, as from OpenCV and torchvision.
    Pixels lie interleaved in memory (channels last).
    Raises ``DataError``, which names the file and the reason, where it is missing, cut short,
    broken, of another kind, or has more than ``pixel_limit`` pixels. Never writes.
    """
    return _guarded(path, lambda file: _decode(file, pixel_limit))


def read_packed(
    path: Path | str, *, contents: bytes | None = None, pixel_limit: int = PIXEL_LIMIT
) -> tuple[Words, tuple[int, int]]:
    """Photo as :func:`fnpipe.ops.warp.pack` stores what :func:`read_image` returns; width, height.

    An upright JPEG in colour is decoded into its place, without a copy between: on photos of COCO
    2.4 ms for 3.6. Where the file's ``contents`` are given, they are decoded, and the path only
    names them. Raises the same errors.
    """
    return _guarded(path, lambda file: _decode_packed(file, pixel_limit), contents)


def scan_image(path: Path | str, *, pixel_limit: int = PIXEL_LIMIT) -> tuple[int, int]:
    """Width and height, in pixels, that :func:`read_image` will return, from the header if it can.

    A JPEG, PNG or GIF whose last bytes are not its format's end, and a BMP or TIFF that tells of
    more bytes than there are, is decoded to see: a truncated file is found for the price of one
    more small read. Raises as :func:`read_image` does.
    """

    def scan(file: File) -> tuple[int, int]:
        size = _measure(file, pixel_limit)
        if _may_be_cut(file, pixel_limit):
            _decode(file, pixel_limit)
        return size

    return _guarded(path, scan)


def _guarded(path: Path | str, act: Callable[[File], T], contents: bytes | None = None) -> T:
    """Run ``act`` on the open file; whatever goes wrong becomes a ``DataError`` with its name."""
    _keep_memory()
    try:
        with open(path, "rb") if contents is None else io.BytesIO(contents) as file:
            return act(file)
    except MemoryError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise DataError(f"{path}: {error} Raise PIL.Image.MAX_IMAGE_PIXELS to read it") from error
    except Exception as error:  # parsers of broken files raise whatever they trip over
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path}: {reason}") from error


@cache
def _keep_memory() -> None:
    """Let the C library keep what a photo took for the next one, once a process.

    glibc gives memory back that is more than twice the largest piece ever freed, so it learns from
    a piece of 32 MB, none of it touched. Without, a quarter of the time is faults of pages.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


def _decode(file: File, pixel_limit: int) -> Image:
    photo = _identify(file, pixel_limit)
    photo.load()
    orientation = _orientation(photo)
    image = torch.from_numpy(_to_rgb(photo)).permute(2, 0, 1)
    return _turn(image, orientation)


def _decode_packed(file: File, pixel_limit: int) -> tuple[Words, tuple[int, int]]:
    photo = _identify(file, pixel_limit)
    if not (isinstance(photo, _Jpeg) and photo.mode == "RGB" and _orientation(photo) == 1):
        image = _decode(file, pixel_limit)
        return pack(image), (image.shape[2], image.shape[1])
    width, height = photo.size
    words = np.empty(2 + (width + 2) * (height + 2), np.int32)
    inside, stride = words[2 + (width + 2) + 1 :], 4 * (width + 2)
    photo.canvas = pillow.frombuffer("RGBX", photo.size, inside, "raw", "RGBX", stride, 1)
    photo.load()
    return enclose(torch.from_numpy(words), width, height), (width, height)


def _measure(file: File, pixel_limit: int) -> tuple[int, int]:
    photo = _identify(file, pixel_limit)
    if photo.format == "PNG" and _tells_late(file):
        photo.load()
    width, height = photo.size
    return (height, width) if _orientation(photo) >= 5 else (width, height)


def _turn(image: Image, orientation: int) -> UInt8[Tensor, "3 _ _"]:
    """Undo one of EXIF's eight orientations; anything else counts as upright."""
    if orientation >= 5:
        image = image.transpose(1, 2)
    if orientation in _FLIPS:
        image = image.flip(_FLIPS[orientation])
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _to_rgb(photo: pillow.Image) -> np.ndarray:
    """Codes as uint8 [height, width, 3] of any mode that Pillow loads."""
    if photo.mode.startswith("I;16") or (photo.mode == "I" and photo.format == "PPM"):
        bits = getattr(photo, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
        grey = (np.asarray(photo).astype(np.int64) >> (bits - 8)).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    photo.info.pop("transparency", None)  # else Pillow warns that it is about to be dropped
    return np.array(photo.convert("RGB"))


class _Jpeg(JpegImageFile):
    """A JPEG, or the one that a stereo pair (MPO) begins with."""

    canvas: pillow.Image | None = None
    """Where :meth:`load` writes to, four bytes a pixel, if not to memory of Pillow's own."""

    def load_prepare(self) -> None:
        if self.canvas is not None:
            self._mode, self.im = self.canvas.mode, self.canvas.im
        super().load_prepare()

    def _read_dpi_from_exif(self) -> None:
        """Leave resolution alone: Pillow would warn of broken EXIF while looking for it."""


def _identify(file: File, pixel_limit: int) -> pillow.Image:
    """The photo, its pixels unread: ``PIL.Image.open``, but with a limit of one's own.

    Pillow's limit belongs to the process, so one thread cannot lift it for one file.
    """
    file.seek(0)
    prefix = file.read(16)
    pillow.init()
    for name in _FORMATS:
        factory, accepts = pillow.OPEN.get(name, (None, None))
        factory = _Jpeg if name == "JPEG" else factory
        if factory and accepts and accepts(prefix) is True:
            file.seek(0)
            try:
                photo = factory(file, "")
            except SyntaxError as error:
                raise DataError(f"not a readable {name} file ({error})") from error
            break
    else:
        unknown = "HEIC, which is not read; save it as JPEG" if prefix[4:11] == b"ftyphei" else None
        raise DataError(
            unknown or "not an image of a known kind" if prefix else "the file is empty"
        )
    width, height = photo.size
    if width * height > pixel_limit:
        raise DataError(
            f"{width} x {height} is more than pixel_limit={pixel_limit} pixels; "
            "pass a larger pixel_limit to read it"
        )
    if photo.mode == "F" or (photo.mode == "I" and photo.format != "PPM"):
        raise DataError(f"samples are 32 bits deep (mode {photo.mode}); wanted 8 or 16")
    return photo


def _may_be_cut(file: File, pixel_limit: int) -> bool:
    """Whether a photo lacks its format's end in its last 64 bytes (some cameras pad with zeros).

    Or is shorter than its header says, where formats have no end.
    """
    file.seek(0)
    head = file.read(6)
    end = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND", b"GI": b"\x00;"}.get(head[:2])
    size = file.seek(0, io.SEEK_END)
    if head[:2] == b"BM":
        return int.from_bytes(head[2:], "little") > size
    if head[:2] in (b"II", b"MM"):
        return _stop(_identify(file, pixel_limit)) > size
    file.seek(max(0, size - 64))
    return end is not None and end not in file.read()


def _stop(photo: pillow.Image) -> int:
    """Where the last strip or tile of a TIFF ends."""
    tags: dict[int, tuple[int, ...]] = photo.tag_v2  # type: ignore[attr-defined]
    starts, sizes = (tags.get(strip, tags.get(tile, ())) for strip, tile in _PLACES)
    return max(map(sum, zip(starts, sizes, strict=False)), default=0)


def _tells_late(file: File) -> bool:
    """Whether a PNG has EXIF or text behind its pixels, where opening it does not look."""
    here = file.tell()
    file.seek(8)
    names = []
    while len(head := file.read(8)) == 8:
        names.append(head[4:])
        file.seek(int.from_bytes(head[:4], "big") + 4, io.SEEK_CUR)
    file.seek(here)
    return b"IDAT" in names and not _METADATA.isdisjoint(names[names.index(b"IDAT") :])


def _orientation(photo: pillow.Image) -> int:
    """EXIF orientation of what Pillow opened, 1 to 8, else XMP's copy of it, else 1 (upright)."""
    if photo.format == "TIFF":
        return 1  # Pillow turns these itself
    info = photo.info
    exif = info.get("exif", b"")
    if "Raw profile type exif" in info:  # ImageMagick's place for it in a PNG: lines of hex digits
        exif = exif or bytes.fromhex("".join(info["Raw profile type exif"].split("\n")[3:]))
    number = _exif_orientation(exif.removeprefix(b"Exif\0\0"))
    if number is None:
        xmp = info.get("XML:com.adobe.xmp") or info.get("xmp") or b""
        xmp = xmp.encode() if isinstance(xmp, str) else xmp
        found = re.search(rb'tiff:Orientation(?:="|>)([0-9])', xmp)
        number = int(found[1]) if found else 1
    return number if 1 <= number <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    """The orientation in EXIF's first directory. Pillow's reading warns of every other tag."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    with contextlib.suppress(struct.error):  # cut short
        if order is not None:
            (start,) = struct.unpack_from(f"{order}I", exif, 4)
            (count,) = struct.unpack_from(f"{order}H", exif, start)
            for entry in range(start + 2, start + 2 + 12 * count, 12):
                tag, kind = struct.unpack_from(f"{order}HH", exif, entry)
                if tag == _ORIENTATION:
                    number = {1: "B", 4: "I"}.get(kind, "H")
                    return struct.unpack_from(order + number, exif, entry + 8)[0]
    return None
