"""Targets to files that other tools open, and that the readers read back.

Data sets and batches alike: both are :class:`fnpipe.types.Targets` of photos of known sizes.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from jaxtyping import Float64, UInt8
from PIL import Image as pillow
from torch import Tensor

from fnpipe.data.dataset import TASKS
from fnpipe.data.pairs import leads_out
from fnpipe.types import ArgumentError, Image, Rings, Sizes, Targets, check_choice


T = TypeVar("T")


def write_images(
    folder: Path | str,
    images: UInt8[Tensor, "b 3 h w"] | Sequence[Image],
    *,
    file_names: Sequence[str],
) -> None:
    """Save uint8 images [3, h, w] below ``folder``; a suffix names the format (PNG keeps bits).

    Raises ``ArgumentError`` for a name that leads out of the folder, where two are one, and unless
    there are as many as images.
    """
    names = _match("file_names", file_names, (), len(images))
    paths = _below(Path(folder), [*map(Path, names)])
    for path, image in zip(paths, images, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(image.cpu().permute(1, 2, 0).contiguous().numpy()).save(path)


def write_coco(
    path: Path | str,
    targets: Targets,
    sizes: Sizes,
    *,
    file_names: Sequence[str],
    names: Sequence[str],
    categories: Sequence[int] | None = None,
    image_ids: Sequence[int] | None = None,
    keypoint_names: Sequence[str] = (),
) -> None:
    """Write targets in pixels as a COCO file, in which photo ``i`` is ``file_names[i]``.

    ``targets.owner`` counts the rows of ``sizes``, which are widths and heights. Label ``i``
    becomes ``categories[i]``, called ``names[i]``; by default ids are 1, 2, ... Keypoints lose half
    a pixel, which the reader adds; ``ignore`` becomes ``iscrowd``; quads become the key ``obb``.

    :func:`fnpipe.data.coco.read_coco` reads the same bits: boxes with "detect", rings with
    "segment", keypoints with "pose" (but nearer than 1e-8 pixels to a border), quads with "obb".
    The visible share of an instance is not written. Raises ``ArgumentError`` where lengths do not
    fit.
    """
    ids = _match("image_ids", image_ids, range(1, len(sizes) + 1), len(sizes))
    kinds = _match("categories", categories, range(1, len(names) + 1), len(names))
    files = _match("file_names", file_names, (), len(sizes))
    targets, k = targets.to("cpu"), targets.keypoints.shape[1]
    points = _match("keypoint_names", keypoint_names or None, [f"point {i}" for i in range(k)], k)
    owner, labels = targets.owner.tolist(), targets.labels.tolist()
    document = {
        "images": [
            {"id": id, "file_name": file, "width": width, "height": height}
            for id, file, (width, height) in zip(ids, files, sizes.tolist(), strict=True)
        ],
        "annotations": [
            {"id": row + 1, "image_id": ids[owner[row]], "category_id": kinds[labels[row]], **shape}
            for row, shape in enumerate(_shapes(targets))
        ],
        "categories": [
            {"id": id, "name": name, **({"keypoints": points} if k else {})}
            for id, name in zip(kinds, names, strict=True)
        ],
    }
    Path(path).write_text(json.dumps(document), encoding="utf-8")


def write_yolo(
    folder: Path | str,
    targets: Targets,
    sizes: Sizes,
    *,
    file_names: Sequence[str],
    names: Sequence[str],
    categories: Sequence[int] | None = None,
    keypoint_flip: Sequence[int] = (),
    task: str = "detect",
) -> None:
    """Write targets in pixels as YOLO texts below ``folder/labels``, and ``folder/data.yaml``.

    The photos belong to ``folder/images/<file_names[i]>``. Label ``i`` becomes class
    ``categories[i]``, by default ``i``. Fractions are written in full: whatever is a point (rings,
    keypoints, quads) reads back to the same bits; a side of a box, which is a sum of two, does
    from 0.001 pixels from the border on, and otherwise within 1e-11 pixels.

    What YOLO has no words for: rows flagged ``ignore`` are left out; the rings of an instance
    become one (:func:`join`), which reads back as one, since a hole is written in the same way;
    "segment" writes a box row for an instance without rings. Raises ``ArgumentError`` where lengths
    do not fit, the targets are of another task, or a name leads out of the folder, and where two
    photos would have one text.
    """
    check_choice("task", task, TASKS)
    files = _match("file_names", file_names, (), len(sizes))
    ids = _match("categories", categories, range(len(names)), len(names))
    k, base = targets.keypoints.shape[1], Path(folder)
    if (task == "pose" and not k) or (task == "obb" and not targets.quads.shape[1]):
        raise ArgumentError(f"targets: wanted those of task {task!r}, got none")
    paths = _below(base / "labels", [Path(file).with_suffix(".txt") for file in files])
    targets = targets.to("cpu")
    shapes = _fractions(targets, sizes.cpu(), task)
    texts: list[list[str]] = [[] for _ in files]
    for owner, label, ignore, shape in zip(
        *(column.tolist() for column in (targets.owner, targets.labels, targets.ignore)),
        shapes,
        strict=True,
    ):
        if not ignore:
            texts[owner].append(" ".join([str(ids[label]), *map(repr, shape)]))
    for path, rows in zip(paths, texts, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    config = {"path": ".", "train": "images", "names": dict(zip(ids, names, strict=True))}
    if task == "pose":
        config |= {"kpt_shape": [k, 3], "flip_idx": list(keypoint_flip)}
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    (base / "data.yaml").write_text(text, encoding="utf-8")


def join(rings: Sequence[Float64[Tensor, "_ 2"]]) -> Float64[Tensor, "p 2"]:
    """One ring of several: each is tied to those before it by one line, walked there and back.

    The line joins the nearest two vertices, as Ultralytics' ``merge_multi_segment`` has it: a tool
    that paints outlines paints as little of it as can be. All vertices stay. By even-odd the lines
    fill nothing, and the ring fills what an odd number of ``rings`` hold: their union where none
    overlap.
    """
    joined, *others = rings
    for ring in others:
        gaps = torch.cdist(joined, ring, compute_mode="donot_use_mm_for_euclid_dist")
        here, there = divmod(int(gaps.argmin()), len(ring))
        joined = torch.cat([joined[: here + 1], ring[there:], ring[: there + 1], joined[here:]])
    return joined


def _below(folder: Path, files: Sequence[Path]) -> list[Path]:
    """The paths of files below a folder. Errors: ArgumentError where one leads out, two are one."""
    for file in files:
        if leads_out(str(file)):
            raise ArgumentError(f"file_names: {str(file)!r} leads out of {folder}")
    paths = [folder / os.path.normpath(file) for file in files]
    twice = [str(path) for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise ArgumentError(f"file_names: two photos would be written to {twice[0]}")
    return paths


def _match(name: str, given: Sequence[T] | None, default: Sequence[T], count: int) -> list[T]:
    values = list(default if given is None else given)
    if len(values) != count:
        raise ArgumentError(f"{name}: wanted {count}, got {len(values)}")
    return values


def _shapes(targets: Targets) -> Iterator[dict[str, Any]]:
    """COCO's keys of each instance, in pixels."""
    sides = targets.boxes.double()
    boxes = torch.cat([sides[:, :2], sides[:, 2:] - sides[:, :2]], 1).tolist()
    poses = targets.keypoints.double()
    poses[..., :2] -= 0.5 * (poses[..., 2:] > 0)
    for row, (box, pose, quad, rings) in enumerate(
        zip(boxes, poses, targets.quads.double(), _rings(targets.rings), strict=True)
    ):
        shape = {
            "bbox": box,
            "area": sum(map(_area, rings)) if rings else box[2] * box[3],
            "iscrowd": int(targets.ignore[row]),
            "segmentation": [ring.flatten().tolist() for ring in rings],
        }
        if len(pose):
            shape["keypoints"] = [n for x, y, v in pose.tolist() for n in (x, y, int(v))]
            shape["num_keypoints"] = int((pose[:, 2] > 0).sum())
        if len(quad):
            shape["obb"] = quad.flatten().tolist()
        yield shape


def _fractions(targets: Targets, sizes: Sizes, task: str) -> Iterator[list[float]]:
    """YOLO's columns after the class, of each instance."""
    scale = sizes[targets.owner].double()[:, None]
    low, high = targets.boxes.double().view(-1, 2, 2).split(1, 1)
    boxes = torch.cat([(low + high) / 2, high - low], 1).div(scale).flatten(1)
    if task == "detect":
        yield from boxes.tolist()
    elif task == "obb":
        yield from (targets.quads.double() / scale).flatten(1).tolist()
    elif task == "pose":
        x_y, flags = targets.keypoints.double().split([2, 1], 2)
        poses = torch.cat([x_y / scale, flags], 2).flatten(1)
        yield from torch.cat([boxes, poses], 1).tolist()
    else:
        for box, rings, size in zip(boxes, _rings(targets.rings), scale, strict=True):
            yield (join(rings) / size).flatten().tolist() if rings else box.tolist()


def _rings(rings: Rings) -> Iterator[list[Float64[Tensor, "p 2"]]]:
    """The rings of each instance."""
    single = rings.points.double().split(rings.ring_offsets.diff().tolist())
    for start, stop in pairwise(rings.instance_offsets.tolist()):
        yield list(single[start:stop])


def _area(ring: Float64[Tensor, "p 2"]) -> float:
    """Square pixels, by the shoelace formula."""
    (x0, y0), (x1, y1) = ring.T, ring.roll(-1, 0).T
    return abs(float((x0 * y1 - x1 * y0).sum())) / 2
