"""YOLO's text labels: a file a photo, a row an instance, fractions of the photo.

A row is a class and then: ``x y w h``, a box by its centre ("detect"); ``x y x y ...``, a polygon
of three points or more ("segment"); ``x y w h`` and K keypoints of D numbers ("pose"); four corners
("obb"). Positions are continuous: 0 is the left or upper side of the photo, 1 the other.
"""

import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from fnpipe.data.build import (
    Notes,
    Numbers,
    as_path,
    build,
    collect,
    collector_paused,
    naming,
)
from fnpipe.data.dataset import TASKS, Dataset
from fnpipe.data.decode import PIXEL_LIMIT
from fnpipe.data.pairs import (
    Pair,
    find_photos,
    folder_photos,
    mirror,
    read_lines,
    scan_pairs,
    swap_folder,
)
from fnpipe.ops.points import check_keypoint_flip
from fnpipe.types import ArgumentError, DataError, check_choice


SPLITS = ("train", "val", "validation", "valid", "test", "minival")
"""Keys that data sets have."""
FAR = 10.0
"""Sides of a photo. A fraction beyond is a position in pixels."""


def read_yolo(
    data: Path | str,
    *,
    split: str = "train",
    task: str = "detect",
    root: Path | str | None = None,
    labels: str = "labels",
    box_rows: str = "raise",
    rows: str = "raise",
    unreadable: str = "drop",
    scan: str = "header",
    keypoint_flip: Sequence[int] | None = None,
    pixel_limit: int = PIXEL_LIMIT,
) -> Dataset:
    """Data set of one ``split`` of a ``data.yaml``: its keys path, names, kpt_shape, flip_idx.

    A split is a folder, searched with its subfolders in the order of names; a text file with one
    photo a line, in its order; or a list of these. Folders and text files are relative to ``root``
    (by default ``path``, relative to the yaml file), lines of a text file to its folder. What is
    not there by a name with ``../`` before it is looked for without; backslashes part folders where
    no file is called so.
    In a photo's path, the last part that is ``images`` becomes ``labels``, and the last suffix
    ``.txt``; with ``labels="images"``, or without such a part, the text lies beside the photo.

    Labels count the ids of ``names`` in ascending order. ``task`` says what instances carry beside
    a box. "detect" takes a polygon's hull, and a pose's box where ``kpt_shape`` is given; "segment"
    does ``box_rows`` to a row that is a box: "raise", make it a "rectangle", or "drop" it.
    A keypoint of two numbers is visible unless both are 0; a flag of 0 makes one missing. Equal
    rows of a file count once. The report tells apart photos without a label file and with an empty
    one. ``rows="drop"`` leaves out each row that cannot be understood, and two photos' shared label
    file counts for both; all of them are in the report. For the other options see
    :func:`fnpipe.data.coco.read_coco`; ``keypoint_flip`` is by default ``flip_idx``.

    Raises ``DataError``, which names the file and the row, for what cannot be understood: an
    unknown class, another number of columns, NaN, pixels; two photos with one label file; and where
    no photo at all has a label file.
    """
    source = as_path("data", data)
    if not isinstance(labels, str):
        raise ArgumentError(f"labels wanted a folder's name, came {labels!r:.80}")
    with naming(source):
        config = _load(source)
        base = Path(os.path.abspath(source.parent / str(config.get("path") or "")))
        base = base if root is None else Path(os.path.abspath(root))
        if not config.get(split):
            there = [name for name in SPLITS if config.get(name)]
            raise DataError(f"no split {split!r}; there are {', '.join(there) or 'none'}")
        classes, shape = _classes(config), _keypoint_shape(config)
        photos = [*find_photos(config[split], base)]
        if not photos:
            raise DataError(f"split {split!r}: no photos in {config[split]} of {base}")
        flip = config.get("flip_idx") or () if keypoint_flip is None else keypoint_flip
        rules = Rules(task, classes, shape, box_rows)
        _check(rules, flip, scan)
    pairs = [(photo, swap_folder(photo, labels)) for photo in photos]
    return _assemble(base, pairs, rules, flip, Notes(rows=rows), unreadable, scan, pixel_limit)


def read_yolo_folders(
    images: Path | str,
    labels: Path | str,
    names: Sequence[str] | Mapping[int, str],
    *,
    task: str = "detect",
    keypoint_shape: tuple[int, int] = (0, 0),
    keypoint_flip: Sequence[int] = (),
    box_rows: str = "raise",
    rows: str = "raise",
    unreadable: str = "drop",
    scan: str = "header",
    pixel_limit: int = PIXEL_LIMIT,
) -> Dataset:
    """Data set of a folder of photos and one of YOLO texts with the same subfolders and names.

    ``names`` are the classes, by id; ``keypoint_shape`` is how many keypoints a pose has, and of
    how many numbers (2 or 3). All else as in :func:`read_yolo`.
    """
    base = Path(os.path.abspath(as_path("images", images)))
    pairs = [
        (photo, mirror(photo, base, as_path("labels", labels))) for photo in folder_photos(base)
    ]
    rules = Rules(task, _classes({"names": names}), keypoint_shape, box_rows)
    _check(rules, keypoint_flip, scan)
    notes = Notes(rows=rows)
    return _assemble(base, pairs, rules, keypoint_flip, notes, unreadable, scan, pixel_limit)


class Rules(NamedTuple):
    """What rows may hold; ``shape`` is K and D, or 0 and 0 where there are no keypoints."""

    task: str
    classes: dict[int, str]
    shape: tuple[int, int]
    box_rows: str


class Row(NamedTuple):
    """An instance in fractions: its place, and as much of the rest as the task wants."""

    owner: int
    place: str
    id: int
    box: Numbers
    pose: Numbers = ()
    polygon: Numbers = ()


def _assemble(
    root: Path,
    pairs: list[Pair],
    rules: Rules,
    flip: Sequence[int],
    notes: Notes,
    unreadable: str,
    scan: str,
    pixel_limit: int,
) -> Dataset:
    kept = scan_pairs(root, pairs, notes, scan=scan, unreadable=unreadable, pixel_limit=pixel_limit)
    with collector_paused():
        found = (_rows(label, owner, rules, notes) for owner, (_, label, _) in enumerate(kept))
        rows = [*chain.from_iterable(found)]
    sizes = torch.tensor([size for _, _, size in kept], dtype=torch.float64).reshape(-1, 2)
    labels = {id: label for label, id in enumerate(rules.classes)}
    targets = collect(
        [row.owner for row in rows],
        [labels[row.id] for row in rows],
        scale=sizes[[row.owner for row in rows]],
        boxes=[row.box for row in rows],
        outlines=[[row.polygon] for row in rows] if rules.task == "segment" else None,
        poses=[row.pose for row in rows] if rules.task == "pose" else None,
        keypoints=rules.shape[0] if rules.task == "pose" else 0,
        quads=[row.polygon for row in rows] if rules.task == "obb" else None,
    )
    return build(
        root,
        [str(p.relative_to(root) if p.is_relative_to(root) else p) for p, _, _ in kept],
        [size for _, _, size in kept],
        targets,
        notes,
        lambda row: rows[row].place,
        names=tuple(rules.classes.values()),
        categories=tuple(rules.classes),
        keypoint_flip=tuple(flip) if rules.task == "pose" else (),
        task=rules.task,
        pixel_limit=pixel_limit,
    )


def _check(rules: Rules, flip: Sequence[int], scan: str) -> None:
    check_choice("task", rules.task, TASKS)
    check_choice("box_rows", rules.box_rows, ("raise", "rectangle", "drop"))
    check_choice("scan", scan, ("header", "decode"))  # fractions need the photo's size
    k, d = rules.shape
    if rules.task == "pose" and d not in (2, 3):
        got = [k, d] if k or d else "none"
        raise DataError(f"kpt_shape: wanted [keypoints, 2 or 3] for poses, got {got}")
    if rules.task == "pose" and flip:
        check_keypoint_flip(flip, k)


def _load(source: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(source.read_text(encoding="utf-8"))
    except IsADirectoryError:
        raise DataError("a folder; wanted the file that names its splits, data.yaml") from None
    except OSError as error:
        raise DataError(str(error.strerror)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"not YAML ({error})") from error
    if not isinstance(config, dict):
        raise DataError(f"wanted keys and values, got {config!r:.80}")
    return config


def _classes(config: Mapping[str, Any]) -> dict[int, str]:
    """Names by id, ids ascending."""
    names, count = config.get("names"), config.get("nc")
    if count is not None and type(count) is not int:
        raise DataError(f"nc: wanted a whole number, got {count!r:.80}")
    if names is None and count is not None:
        names = [str(id) for id in range(count)]
    if not names:
        raise DataError("names: wanted the classes, got none")
    ids = names if isinstance(names, Mapping) else ()
    if not isinstance(names, list | tuple | Mapping) or not all(str(id).isdigit() for id in ids):
        raise DataError(f"names: wanted a list, or names by their number, got {names!r:.80}")
    pairs = names.items() if isinstance(names, Mapping) else enumerate(names)
    classes = {int(id): str(name) for id, name in sorted((int(id), name) for id, name in pairs)}
    if count is not None and count != len(classes):
        raise DataError(f"nc is {count}, but there are {len(classes)} names")
    return classes


def _keypoint_shape(config: Mapping[str, Any]) -> tuple[int, int]:
    shape = config.get("kpt_shape") or (0, 0)
    try:
        k, d = map(int, shape)
    except (TypeError, ValueError):
        raise DataError(f"kpt_shape: wanted [keypoints, 2 or 3], got {shape!r:.80}") from None
    return k, d


def _rows(label: Path, owner: int, rules: Rules, notes: Notes) -> Iterator[Row]:
    """The rows of one label file, equal ones once."""
    seen = set()
    for place, columns in read_lines(label, notes):
        with notes.refusals(), naming(place):
            values = _numbers(columns)
            row = _row(values, owner, place, rules)
            if values in seen:
                notes.add("duplicate row", place)
            elif row is None:
                notes.add("box row dropped", place)
            else:
                yield row
            seen.add(values)


def _numbers(columns: Sequence[str]) -> tuple[float, ...]:
    try:
        return tuple(map(float, columns))
    except ValueError:
        row = " ".join(columns)
        raise DataError(f"wanted numbers with blanks between, got {row:.60}") from None


def _row(values: Numbers, owner: int, place: str, rules: Rules) -> Row | None:
    """One instance, or None for a box row that is to be dropped."""
    if not all(map(math.isfinite, values)):
        raise DataError("wanted finite numbers, got " + " ".join(map(str, values)))
    id, *numbers = values
    if id not in rules.classes:
        ids = sorted(rules.classes)
        raise DataError(f"class {id:g}; wanted one of {len(ids)} ids, {ids[0]} to {ids[-1]}")
    _check_columns(len(values), rules)
    k, d = rules.shape
    posed = len(numbers) == 4 + k * d
    is_box = len(numbers) == 4 or (posed and rules.task in ("detect", "pose"))
    positions = numbers[:4] if is_box else numbers
    if max(map(abs, positions)) > FAR:
        raise DataError(f"position {max(positions, key=abs):g}; wanted fractions of the photo")
    row = Row(owner, place, int(id), _sides(positions) if is_box else _hull(positions))
    if rules.task == "pose":
        return row._replace(pose=_pose(numbers[4:], d))
    if rules.task == "segment" and is_box:
        if rules.box_rows == "raise":
            raise DataError('a box among polygons; pass box_rows="rectangle" or "drop" to allow it')
        x0, y0, x1, y1 = row.box
        corners = (x0, y0, x1, y0, x1, y1, x0, y1)
        return row._replace(polygon=corners) if rules.box_rows == "rectangle" else None
    return row._replace(polygon=array("d", positions))  # a quarter of a tuple's bytes


def _check_columns(columns: int, rules: Rules) -> None:
    k, d = rules.shape
    if rules.task == "pose":
        wanted, right = f"{5 + k * d} (class, box, {k} keypoints of {d})", columns == 5 + k * d
    elif rules.task == "obb":
        wanted, right = "9 (class, 4 corners)", columns == 9
    else:
        wanted = "5 (class, box) or an odd number from 7 up (class, polygon)"
        right = columns == 5 or (columns >= 7 and columns % 2 == 1) or columns == 5 + k * d
    if not right:
        raise DataError(f"{columns} columns; wanted {wanted}")


def _sides(box: Numbers) -> Numbers:
    x, y, width, height = box
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _hull(points: Numbers) -> Numbers:
    x, y = points[::2], points[1::2]
    return min(x), min(y), max(x), max(y)


def _pose(numbers: Numbers, d: int) -> Numbers:
    """Keypoints as x, y, flag; (0, 0, 0) where they are missing."""
    pose: list[int | float] = []
    for point in zip(*(numbers[i::d] for i in range(d)), strict=True):
        x, y, flag = point if d == 3 else (*point, 2.0 * any(point))
        if flag not in (0, 1, 2):
            raise DataError(f"keypoint flag {flag:g}; wanted 0, 1 or 2")
        pose += (x, y, flag) if flag else (0, 0, 0)
    return pose
