"""What a COCO file lists: its photos and its categories, by id."""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from fnpipe.data.build import Notes, scan_photos
from fnpipe.data.pairs import leads_out, with_slashes
from fnpipe.types import DataError


Json = dict[str, Any]
Id = int | str
Photos = dict[Id, tuple[str, tuple[int, int]]]
"""File name, and width and height, by id."""


def load(source: Path) -> Json:
    """A file's lists of objects, those of photos and categories with ids. Errors: DataError."""
    try:
        content: Any = source.read_bytes()
        content = content.decode(json.detect_encoding(content))  # one copy at a time: 450 MB
        document = json.loads(content)
    except OSError as error:
        raise DataError(str(error.strerror)) from error
    except ValueError as error:
        raise DataError(f"not JSON ({error})") from error
    wanted = ("images", "annotations", "categories")
    if not isinstance(document, dict) or any(type(document.get(k)) is not list for k in wanted):
        raise DataError(f"wanted an object with the lists {', '.join(wanted)}")
    for kind in wanted:
        other = next((entry for entry in document[kind] if type(entry) is not dict), None)
        if other is not None:
            raise DataError(f"{kind}: wanted objects, got {other!r:.80}")
        nameless = next((entry for entry in document[kind] if "id" not in entry), None)
        if nameless is not None and kind != "annotations":
            raise DataError(f"{kind}: no 'id' in {nameless!r:.80}")
    if any("segments_info" in entry for entry in document["annotations"]):
        raise DataError("panoptic annotations; wanted those of instances, an object each")
    return document


def find_photos(
    entries: list[Json],
    root: Path,
    notes: Notes,
    stay_inside: bool,
    *,
    scan: str,
    **options: Any,
) -> Photos:
    """The photos below ``root`` that can be read, by id, in the file's order; equal entries once.

    Errors: DataError.
    """
    listed: dict[Id, str] = {}
    unique = []
    for photo in entries:
        file = _file_name(photo, root, stay_inside)
        if isinstance(photo["id"], int | str) and listed.get(photo["id"]) == file:
            notes.add("duplicate photo", f"image {photo['id']}: {file}")
            continue
        _check_id(photo["id"], listed, "image", text=True)
        listed[photo["id"]] = file
        unique.append(photo)
    files = listed.values()
    sizes = scan_photos([root / file for file in files], notes, scan=scan, **options)
    photos: Photos = {}
    for photo, file, size in zip(unique, files, sizes, strict=True):
        if size is None:
            continue
        said = photo.get("width", size[0]), photo.get("height", size[1])
        if scan == "trust":
            said = size = _said(photo)
        if said != size:
            notes.add("size differs", _differs(root / file, size, said))
        photos[photo["id"]] = file, size
    return photos


def number(entries: list[Json]) -> dict[Id, int]:
    """The number of each photo by its id: the id, or its place in the list where ids are text."""
    ids = dict.fromkeys(photo["id"] for photo in entries)
    texts = any(isinstance(id, str) for id in ids)
    return {id: place if texts else id for place, id in enumerate(ids)}


def find_categories(entries: list[Json]) -> dict[int, Json]:
    """Categories by id, ids ascending. Errors: DataError."""
    kinds: dict[int, Json] = {}
    for kind in entries:
        _check_id(kind["id"], kinds, "category")
        kinds[kind["id"]] = kind
    return dict(sorted(kinds.items()))


def _file_name(photo: Json, root: Path, stay_inside: bool) -> str:
    name = photo.get("file_name")
    if not isinstance(name, str):
        raise DataError(f"image {photo['id']}: no 'file_name' that is text")
    name = with_slashes(root, name)
    if stay_inside and leads_out(name):
        raise DataError(
            f"image {photo['id']}: file_name {name!r} leads out of the image folder; "
            "pass stay_inside=False to allow it"
        )
    return name


def _said(photo: Json) -> tuple[int, int]:
    """Width and height as the file has them, to be trusted."""
    width, height = sides = photo.get("width"), photo.get("height")
    if not all(isinstance(side, int | float) and side >= 1 and side == int(side) for side in sides):
        raise DataError(
            f"image {photo['id']}: wanted a width and a height in whole pixels, got {width!r} and "
            f"{height!r}"
        )
    return int(width), int(height)  # type: ignore[arg-type]


def _differs(photo: Path, size: tuple[int, int], said: tuple[Any, Any]) -> str:
    told = f"{photo}: {size[0]} x {size[1]}, not {said[0]!r} x {said[1]!r}"
    turned = ", its sides exchanged: do its labels lie as it is shown, turned by EXIF?"
    return told + turned if said == size[::-1] else told


def _check_id(id: object, others: Container[object], what: str, *, text: bool = False) -> None:
    if not (isinstance(id, int) and -(2**63) <= id < 2**63) and not (text and isinstance(id, str)):
        raise DataError(f"{what} {id!r}: wanted an integer id of 64 bits")
    if id in others:
        raise DataError(f"{what} {id}: two have this id")
