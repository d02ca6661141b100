"""DOTA's text labels: four corners in pixels, a class name, a difficulty; headers or none."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fnpipe.data.build import Notes, as_path, build, collect, naming
from fnpipe.data.dataset import Dataset
from fnpipe.data.decode import PIXEL_LIMIT
from fnpipe.data.pairs import folder_photos, mirror, read_lines, scan_pairs
from fnpipe.types import DataError, check_choice


def read_dota(
    images: Path | str,
    labels: Path | str,
    *,
    names: Sequence[str] | None = None,
    difficult_threshold: int = 1,
    rows: str = "raise",
    unreadable: str = "drop",
    scan: str = "header",
    pixel_limit: int = PIXEL_LIMIT,
) -> Dataset:
    """Data set of a folder of photos and one of DOTA texts with the same names.

    A row is ``x1 y1 x2 y2 x3 y3 x4 y4 class difficult``, in pixels; a missing difficulty is 0.
    Lines such as ``imagesource:GoogleEarth`` and ``gsd:null`` are skipped wherever they stand.
    Photos come in the order of their names. ``names`` are the classes in the order of labels, by
    default all that occur, in alphabetical order. Objects of ``difficult_threshold`` or more are
    flagged ``ignore``. Quads get their canonical order and stay whole at the photo's border. Equal
    rows of a file count once. For the other options see :func:`fnpipe.data.coco.read_coco`.

    Raises ``DataError``, which names the file and the row, for a row that cannot be understood
    (unless ``rows="drop"`` leaves it out and reports it), and where no photo at all has a label
    file.
    """
    check_choice("scan", scan, ("header", "decode"))  # no size is written in the labels
    root, notes = Path(os.path.abspath(as_path("images", images))), Notes(rows=rows)
    pairs = [
        (photo, mirror(photo, root, as_path("labels", labels))) for photo in folder_photos(root)
    ]
    kept = scan_pairs(root, pairs, notes, scan=scan, unreadable=unreadable, pixel_limit=pixel_limit)
    found = [row for i, (_, label, _) in enumerate(kept) for row in _rows(label, i, notes)]
    names = sorted({row.name for row in found}) if names is None else list(names)
    objects = [row for row in found if _is_named(row, names, notes)]
    targets = collect(
        [row.owner for row in objects],
        [names.index(row.name) for row in objects],
        scale=torch.ones(len(objects), 2, dtype=torch.float64),
        boxes=[(torch.nan,) * 4] * len(objects),
        ignore=[row.difficult >= difficult_threshold for row in objects],
        quads=[row.corners for row in objects],
    )
    return build(
        root,
        [str(photo.relative_to(root)) for photo, _, _ in kept],
        [size for _, _, size in kept],
        targets,
        notes,
        lambda row: objects[row].place,
        names=tuple(names),
        categories=tuple(range(len(names))),
        task="obb",
        pixel_limit=pixel_limit,
    )


class Row(NamedTuple):
    """An object: its photo, its place in the file, and what the file says."""

    owner: int
    place: str
    corners: tuple[float, ...]
    name: str
    difficult: int


def _rows(label: Path, owner: int, notes: Notes) -> list[Row]:
    rows: dict[tuple[str, ...], Row] = {}
    for place, columns in read_lines(label, notes):
        if ":" in columns[0]:
            continue
        with notes.refusals(), naming(place):
            if len(columns) not in (9, 10):
                raise DataError(f"{len(columns)} columns; wanted 4 corners, class, difficulty")
            corners = tuple(map(float, columns[:8]))
            if not all(map(math.isfinite, corners)):
                raise DataError(f"wanted finite numbers, got {' '.join(columns[:8])}")
            name = columns[8]
            if "." in name and name.replace(".", "", 1).isdigit():
                raise DataError(f"class {name!r}; wanted a name: is this a row of YOLO?")
            difficult = int(columns[9]) if len(columns) == 10 else 0
            if tuple(columns) in rows:
                notes.add("duplicate row", place)
            else:
                rows[tuple(columns)] = Row(owner, place, corners, name, difficult)
    return [*rows.values()]


def _is_named(row: Row, names: Sequence[str], notes: Notes) -> bool:
    if row.name in names:
        return True
    with notes.refusals():
        raise DataError(f"{row.place}: class {row.name!r}; wanted one of {', '.join(names)}")
    return False
