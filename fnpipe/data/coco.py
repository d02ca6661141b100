"""COCO's JSON: boxes, polygons, run-length masks, crowds, keypoints."""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from fnpipe.data.build import (
    FAULTS,
    Notes,
    Numbers,
    as_path,
    build,
    collect,
    collector_paused,
    naming,
)
from fnpipe.data.coco_file import Id, Json, Photos, find_categories, find_photos, load, number
from fnpipe.data.dataset import TASKS, Dataset
from fnpipe.data.decode import PIXEL_LIMIT
from fnpipe.data.rle import decode_rle
from fnpipe.ops.points import check_keypoint_flip
from fnpipe.ops.trace import trace_mask
from fnpipe.types import DataError, Targets, check_choice


T = TypeVar("T")


def read_coco(
    annotations: Path | str,
    images: Path | str,
    *,
    task: str = "detect",
    crowd: str = "ignore",
    rows: str = "raise",
    unreadable: str = "drop",
    scan: str = "header",
    keypoint_flip: Sequence[int] | None = None,
    stay_inside: bool = True,
    pixel_limit: int = PIXEL_LIMIT,
) -> Dataset:
    """Data set of a COCO file ``annotations`` and the folder ``images`` that its names start from.

    Photos keep the file's order, instances their order within a photo; labels count the categories
    by ascending id. Coordinates are pixels; keypoints, which COCO gives as pixel indices, gain 0.5.
    A photo without annotations is background. The report tells of annotations of photos that the
    file does not list, of photos whose size is not what the file says (the photo is right), and
    of all that :mod:`fnpipe.data.build` mends.

    - ``task``: what an instance carries beside its box. "detect": nothing; the box is ``bbox``, or
      the hull of the segmentation where there is none. "segment": rings, of polygons or traced
      round masks; the box is their hull. "pose": keypoints. "obb": a quad, from the key ``obb``
      (eight numbers, its corners; no standard), else from ``bbox``.
    - ``crowd``: flag regions of ``iscrowd`` as "ignore", or "drop" them.
    - ``rows``: "drop" an annotation that cannot be understood, and report it, or "raise".
    - ``unreadable``: "drop" missing and broken photos with their annotations, or "raise".
    - ``scan``: check a photo's "header" and last bytes; or all its pixels ("decode"); or only that
      it is there ("trust"), and believe the sizes in the file. Where they are wrong, as often for
      photos that EXIF turns, reading the photo is an error.
    - ``keypoint_flip``: the keypoint that takes each one's place in a mirrored image; by default
      "left" and "right" change places in the keypoints' names, if they occur.
    - ``stay_inside``: raise where a file name leads out of ``images``, by ".." or as an absolute
      path. Names are literal, but a backslash parts folders where no file is called so; links are
      followed.

    Where ids of photos are text, ``image_ids`` are their places in the file's list, from 0.

    Raises ``DataError``, which names the file and the entry, for what cannot be understood.
    """
    check_choice("task", task, TASKS)
    check_choice("crowd", crowd, ("ignore", "drop"))
    source, root = as_path("annotations", annotations), as_path("images", images)
    notes = Notes(rows=rows)
    looks: dict[str, Any] = {"scan": scan, "unreadable": unreadable, "pixel_limit": pixel_limit}
    with naming(source), collector_paused():
        document = load(source)
        photos = find_photos(document["images"], root, notes, stay_inside, **looks)
        kinds = find_categories(document["categories"])
        listed = number(document["images"])
        keep = partial(_keep, listed=listed, photos=photos, crowd=crowd, notes=notes)
        instances = [*filter(None, _each(document["annotations"], keep, notes))]
        _check_orphans(document["annotations"], notes)
        k = _keypoint_count(kinds.values(), instances) if task == "pose" else 0
        places = {id: (row, size) for row, (id, (_, size)) in enumerate(photos.items())}
        labels = {id: label for label, id in enumerate(kinds)}
        read = partial(_row, labels=labels, places=places, task=task, k=k)
        del document["annotations"]
        found = [*_each(_drain(instances), read, notes)]
    flip = _flip_by_name(kinds.values()) if keypoint_flip is None else tuple(keypoint_flip)
    if k and keypoint_flip is not None:
        check_keypoint_flip(flip, k)
    return build(
        root,
        [file for file, _ in photos.values()],
        [size for _, size in photos.values()],
        _collect(found, task, k),
        notes,
        lambda row: f"{source}: annotation {found[row].id}",
        image_ids=torch.tensor([listed[id] for id in photos], dtype=torch.int64),
        names=tuple(str(kind.get("name", id)) for id, kind in kinds.items()),
        categories=tuple(kinds),
        keypoint_flip=flip if k else (),
        task=task,
        pixel_limit=pixel_limit,
    )


class Row(NamedTuple):
    """An instance in pixels, uncut: its id in the file, and as much as the task wants."""

    id: Any
    owner: int
    label: int
    box: Numbers
    ignore: bool
    outline: Sequence[Numbers]
    pose: Numbers
    quad: Numbers


def _drain(instances: list[Json]) -> Iterator[Json]:
    """Annotations from first to last, let go one by one: of COCO they take a gigabyte."""
    instances.reverse()
    while instances:
        yield instances.pop()


def _each(instances: Iterable[Json], read: Callable[[Json], T], notes: Notes) -> Iterator[T]:
    """What ``read`` makes of annotations, without those that it refuses: an error names the id."""
    for instance in instances:
        try:  # a with statement would be a third of the time
            made = read(instance)
        except FAULTS as error:
            with notes.refusals(), naming(f"annotation {instance.get('id')}"):
                raise error
        else:
            yield made


def _keep(
    instance: Json, listed: dict[Id, int], photos: Photos, crowd: str, notes: Notes
) -> Json | None:
    """An annotation of a photo that is there, if it is wanted; notes why not."""
    photo, name = instance["image_id"], f"annotation {instance.get('id')}"
    if not isinstance(photo, Hashable):
        raise ValueError(f"image_id {photo!r:.80}; wanted an integer or text")
    if photo not in listed:
        notes.add("orphan annotation", f"{name}: no image {photo!r}")
    elif photo not in photos:
        notes.add("annotation of a dropped photo", f"{name}: image {photo}")
    elif crowd == "drop" and _is_crowd(instance):
        notes.add("crowd dropped", name)
    else:
        return instance
    return None


def _check_orphans(instances: list[Json], notes: Notes) -> None:
    """Errors: DataError where there are annotations, and all are of photos unknown to the file."""
    if instances and notes.counts["orphan annotation"] == len(instances):
        raise DataError(
            f"none of {len(instances)} annotations is of a photo that the file lists; the first "
            f"has image_id {instances[0]['image_id']!r}"
        )


def _row(
    instance: Json,
    labels: dict[int, int],
    places: dict[Id, tuple[int, tuple[int, int]]],
    task: str,
    k: int,
) -> Row:
    owner, size = places[instance["image_id"]]
    return Row(
        instance.get("id"),
        owner,
        _label(instance, labels),
        _box(instance, size),
        _is_crowd(instance),
        _outline(instance, size) if task == "segment" else (),
        _pose(instance, k) if task == "pose" else (),
        _corners(instance, size) if task == "obb" else (),
    )


def _collect(rows: list[Row], task: str, k: int) -> Targets:
    return collect(
        [row.owner for row in rows],
        [row.label for row in rows],
        scale=torch.ones(len(rows), 2, dtype=torch.float64),
        boxes=[row.box for row in rows],
        ignore=[row.ignore for row in rows],
        outlines=[row.outline for row in rows] if task == "segment" else None,
        poses=[row.pose for row in rows] if task == "pose" else None,
        keypoints=k,
        quads=[row.quad for row in rows] if task == "obb" else None,
    )


def _is_crowd(instance: Json) -> bool:
    given = instance.get("iscrowd") or 0
    if given not in (0, 1):
        raise ValueError(f"iscrowd: wanted 0 or 1, got {given!r}")
    return bool(given)


def _label(instance: Json, labels: dict[int, int]) -> int:
    id = instance["category_id"]
    label = labels.get(id) if isinstance(id, Hashable) else None  # type: ignore[arg-type]
    if label is None:
        raise ValueError(f"category_id {id!r:.80}; wanted one of {[*labels]}")
    return label


def _box(instance: Json, size: tuple[int, int]) -> Numbers:
    """Sides x0, y0, x1, y1 of ``bbox``, else of the segmentation, else NaN."""
    if not instance.get("bbox"):
        points = [*chain.from_iterable(_outline(instance, size))]
        x, y = points[::2], points[1::2]
        return (min(x), min(y), max(x), max(y)) if points else (math.nan,) * 4
    x, y, width, height = _finite("bbox", instance["bbox"], 4)
    return x, y, x + width, y + height


def _corners(instance: Json, size: tuple[int, int]) -> Numbers:
    if "obb" in instance:
        return _finite("obb", instance["obb"], 8)
    x0, y0, x1, y1 = _box(instance, size)
    return x0, y0, x1, y0, x1, y1, x0, y1


def _pose(instance: Json, k: int) -> Numbers:
    """Keypoints as x, y, flag: half a pixel from their index, or all 0 where they are missing."""
    pose = _finite("keypoints", instance.get("keypoints") or (0,) * 3 * k, 3 * k)
    points = zip(pose[::3], pose[1::3], pose[2::3], strict=True)
    if not {0, 1, 2}.issuperset(pose[2::3]):
        raise ValueError(f"keypoints: wanted flags 0, 1 or 2, got {sorted(set(pose[2::3]))}")
    return [n for x, y, flag in points for n in ((x + 0.5, y + 0.5, flag) if flag else (0, 0, 0))]


def _outline(instance: Json, size: tuple[int, int]) -> list[Numbers]:
    """Rings as x, y, x, y, ... A mask must be as large as its photo, else it lies elsewhere."""
    parts = instance.get("segmentation") or []
    if isinstance(parts, dict):
        height, width = parts["size"]
        if (width, height) != size:
            raise ValueError(
                f"segmentation: RLE of size [{height}, {width}]; wanted [{size[1]}, {size[0]}], "
                "the photo's height and width"
            )
        rings = trace_mask(decode_rle(parts["counts"], height, width))
        return [ring.flatten().tolist() for ring in rings]
    for part in parts:
        if not isinstance(part, list) or len(part) % 2:
            raise ValueError(f"segmentation: wanted lists of x, y, x, y, ..., got {part!r:.80}")
    return [_finite("segmentation", part) for part in parts if part]


def _finite(key: str, numbers: Any, wanted: int | None = None) -> Numbers:
    """``numbers``, checked to be that many, and neither NaN nor infinite."""
    try:
        count, finite = len(numbers), math.isfinite(sum(numbers))
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{key}: wanted numbers, got {numbers!r:.80}") from error
    if wanted is not None and count != wanted:
        raise ValueError(f"{key}: wanted {wanted} numbers, got {count}")
    if not finite:
        raise ValueError(f"{key}: wanted finite numbers, got {numbers!r:.80}")
    return numbers


def _keypoint_count(kinds: Iterable[Json], instances: list[Json]) -> int:
    """Keypoints of a pose: as many as the categories name, else as the first annotation has."""
    named = {len(kind["keypoints"]) for kind in kinds if kind.get("keypoints")}
    if len(named) > 1:
        raise DataError(f"categories: wanted poses of one length, got {sorted(named)} keypoints")
    given = (len(instance["keypoints"]) // 3 for instance in instances if instance.get("keypoints"))
    count = named.pop() if named else next(given, 0)
    if not count:
        raise DataError("no keypoints, of a category or an annotation, for task 'pose'")
    return count


def _flip_by_name(kinds: Iterable[Json]) -> tuple[int, ...]:
    """Which keypoint's name a keypoint's becomes when left and right change places, or empty."""
    other = {"left": "right", "right": "left"}
    found = set()
    for kind in kinds:
        names = [str(name).lower() for name in kind.get("keypoints") or ()]
        mirrored = [re.sub("left|right", lambda side: other[side[0]], name) for name in names]
        if names != mirrored and sorted(names) == sorted(mirrored):
            found.add(tuple(names.index(name) for name in mirrored))
    return found.pop() if len(found) == 1 else ()
