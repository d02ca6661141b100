"""Masks against pycocotools, instance by instance, at the photos' full size.

``python bench/agreement.py [--json] [--out DIR]``

Every polygon of the COCO photos: how well the two masks agree, how far a pixel that only one of
them has lies from the polygon's outline, and whose area is nearer to the polygon's own. Then every
run-length mask: how many pixels differ, decoded, and filled again by the rings traced round it.

pycocotools rounds vertices to fifths of a pixel and walks from one to the next on that grid, so its
outline is up to a fifth of a pixel off; we ask of each pixel's centre which side of the outline it
is on. A pixel whose centre is further away than that is the same in both.
"""

import json
import statistics
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import contract
import numpy as np
import peers
import torch
from contract import Row
from torch import Tensor

from fnpipe.data.rle import decode_rle
from fnpipe.ops import raster
from fnpipe.ops.trace import trace_mask
from fnpipe.testing import rings_of


QUANTILES = {"least": 0.0, "1 %": 0.01, "5 %": 0.05, "25 %": 0.25, "median": 0.5}


def instances() -> Iterator[tuple[Any, int, int]]:
    """Segmentation, height and width of every annotation of both splits."""
    root = peers.shared("coco") / "annotations"
    for split in ("train2017", "val2017"):
        found = json.loads((root / f"instances_{split}.json").read_text())
        sizes = {image["id"]: (image["height"], image["width"]) for image in found["images"]}
        for row in found["annotations"]:
            yield row["segmentation"], *sizes[row["image_id"]]


def fill(rings: list[Tensor], height: int, width: int) -> Tensor:
    """The mask of one instance."""
    return raster.masks(rings_of(rings), (height, width), stride=1)[0]


def distances(rings: list[Tensor], centres: Tensor) -> Tensor:
    """From each centre to the nearest point of an outline."""
    found = []
    for ring in rings:
        a, b = ring, ring.roll(-1, 0)
        square = (b - a).square().sum(-1).clamp(min=1e-12)
        along = (((centres[:, None] - a) * (b - a)).sum(-1) / square).clamp(0, 1)
        gap = centres[:, None] - (a + along[..., None] * (b - a))
        found.append(gap.norm(dim=-1).amin(1))
    return torch.stack(found).amin(0)


def area(ring: Tensor) -> float:
    """Square pixels, by the shoelace formula."""
    (x0, y0), (x1, y1) = ring.T, ring.roll(-1, 0).T
    return abs(float((x0 * y1 - x1 * y0).sum())) / 2


def polygons(segmentations: list[tuple[list[list[float]], int, int]]) -> list[Row]:
    """How the masks of polygons agree."""
    from pycocotools import mask

    ious, gaps, differ, covered = [], [0.0], 0, 0
    errors: dict[str, list[float]] = {"fnpipe/eager": [], "pycocotools": []}
    for parts, height, width in segmentations:
        rings = [torch.tensor(part, dtype=torch.float64).view(-1, 2) for part in parts]
        ours = fill(rings, height, width)
        code = mask.merge(mask.frPyObjects(parts, height, width))
        theirs = torch.from_numpy(np.asarray(mask.decode(code))).bool()
        ious.append(float((ours & theirs).sum() / (ours | theirs).sum()))
        apart = (ours != theirs).nonzero().flip(1) + 0.5
        differ, covered = differ + len(apart), covered + int(ours.sum())
        if len(apart):
            gaps.append(float(distances(rings, apart).amax()))
        if len(rings) == 1:  # the areas of several rings may overlap
            errors["fnpipe/eager"].append(abs(float(ours.sum()) - area(rings[0])))
            errors["pycocotools"].append(abs(float(theirs.sum()) - area(rings[0])))
    values, who = torch.tensor(ious), "fnpipe/eager"
    head = f"{len(ious):,} polygon instances, IoU with pycocotools"
    rows = [
        Row(f"{head}: {name}", who, float(values.quantile(q)), "IoU")
        for name, q in QUANTILES.items()
    ]
    alone = f"{differ:,} pixels, beside {covered:,}, are in one mask only"
    single = "instances of one ring: median difference to the polygon's own area"
    return [
        *rows,
        Row(f"{head}: mean", who, float(values.mean()), "IoU"),
        Row(f"{alone}; furthest from the outline", who, max(gaps), "pixels"),
        *(
            Row(f"{len(error):,} {single}", name, statistics.median(error), "pixels")
            for name, error in errors.items()
        ),
    ]


def runs(segmentations: list[tuple[dict[str, Any], int, int]]) -> list[Row]:
    """How many pixels of run-length masks differ."""
    from pycocotools import mask

    plain = compressed = filled = 0
    for rle, height, width in segmentations:
        code = mask.frPyObjects(rle, height, width)
        wanted = torch.from_numpy(np.asarray(mask.decode(code))).bool()
        plain += int((decode_rle(rle["counts"], height, width) != wanted).sum())
        compressed += int((decode_rle(code["counts"], height, width) != wanted).sum())
        filled += int((fill(trace_mask(wanted), height, width) != wanted).sum())
    head = f"{len(segmentations)} run-length masks, pixels other than pycocotools'"
    return [
        Row(f"{head}: {name}", "fnpipe/eager", count, "pixels")
        for name, count in (("list", plain), ("string", compressed), ("filled by rings", filled))
    ]


def measure(options: Namespace) -> list[Row]:
    """Polygons, then run lengths."""
    torch.set_num_threads(1)
    try:
        import pycocotools  # noqa: F401

        found = list(instances())
    except (FileNotFoundError, ModuleNotFoundError) as error:
        return [Row("masks", "fnpipe/eager", None, "IoU", note=contract.reason(error))]
    return [
        *polygons([row for row in found if isinstance(row[0], list)]),
        *runs([row for row in found if isinstance(row[0], dict)]),
    ]


if __name__ == "__main__":
    contract.main(__file__, measure, description=__doc__)
