"""Polygons to masks: milliseconds a batch, on one CPU thread and on the GPU where there is one.

``python bench/raster.py [--json] [--out DIR] [--mosaics 64] [--spans 30 60 120 480]``

The instances of so many mosaics of real photos, 640 x 640, on masks of 160 x 160; then 500 of them
blown up or shrunk to one span each, as cost must follow the instance.
"""

import json
from argparse import ArgumentParser, Namespace
from functools import partial

import contract
import numpy as np
import peers
import torch
from contract import Contestant, Row

from fnpipe.ops import raster
from fnpipe.testing import rings_of


UNIT = "ms/batch"
SIZE, STRIDE = 640, 4
SIDE = SIZE // STRIDE
contract.FROM_SECONDS[UNIT] = lambda seconds: 1e3 * seconds

Instance = list[np.ndarray]
"""Rings, each [points, 2] float32 in pixels."""


def read_photos() -> list[tuple[list[Instance], tuple[int, int]]]:
    """Instances and width, height of the 128 training photos."""
    annotations = peers.shared("coco") / "annotations"
    found = json.loads((annotations / "instances_train2017.json").read_text())
    photos = {image["id"]: ([], (image["width"], image["height"])) for image in found["images"]}
    for row in found["annotations"]:
        if isinstance(row["segmentation"], list):
            rings = [np.asarray(ring, np.float32).reshape(-1, 2) for ring in row["segmentation"]]
            photos[row["image_id"]][0].append(rings)
    return list(photos.values())


def mosaics(count: int) -> list[Instance]:
    """What is in sight of ``count`` mosaics: four photos round a random point, then shrunk."""
    generator, photos = np.random.default_rng(0), read_photos()
    placed = []
    for _ in range(count):
        point, zoom = generator.uniform(0.5, 1.5, 2) * SIZE, generator.uniform(0.5, 0.7)
        for tile in range(4):
            instances, shape = photos[generator.integers(len(photos))]
            scale = SIZE / max(shape)
            corner = point - np.asarray([1 - tile % 2, 1 - tile // 2]) * shape * scale
            for rings in instances:
                moved = [(ring * scale + corner - SIZE) * zoom + SIZE / 2 for ring in rings]
                seen = np.concatenate(moved).clip(0, SIZE)
                if (np.ptp(seen, 0) > 2).all():
                    placed.append([ring.astype(np.float32) for ring in moved])
    return placed


def spans(instances: list[Instance], span: int) -> list[Instance]:
    """500 instances, the longer side of each ``span`` pixels, at random places in the picture."""
    generator = np.random.default_rng(span)
    found = []
    for rings in instances[:500]:
        points = np.concatenate(rings)
        scale = span / np.ptp(points, 0).max()
        corner = generator.uniform(0, SIZE - span, 2) - points.min(0) * scale
        found.append([(ring * scale + corner).astype(np.float32) for ring in rings])
    return found


def ours(who: str, instances: list[Instance], *, impl: str, device: str = "cpu") -> Contestant:
    """One of our spellings."""
    rings = rings_of(*instances).to(device)
    return Contestant(who, lambda: raster.masks(rings, (SIZE, SIZE), stride=STRIDE, impl=impl))


def opencv(instances: list[Instance]) -> Contestant:
    """``fillPoly``, a call an instance."""
    import cv2

    cv2.setNumThreads(1)
    rounded = [[np.round(ring / STRIDE).astype(np.int32) for ring in rings] for rings in instances]

    def run() -> np.ndarray:
        planes = np.zeros((len(rounded), SIDE, SIDE), np.uint8)
        for plane, rings in zip(planes, rounded, strict=True):
            cv2.fillPoly(plane, rings, 1)
        return planes

    note = "vertices rounded to pixels ahead, borders filled too, even-odd over all rings"
    return Contestant("opencv", run, note=note)


def pycocotools(instances: list[Instance]) -> Contestant:
    """``frPyObjects``, ``merge``, ``decode``, an instance at a time."""
    from pycocotools import mask

    scaled = [[(ring / STRIDE).ravel().tolist() for ring in rings] for rings in instances]

    def run() -> list[np.ndarray]:
        return [mask.decode(mask.merge(mask.frPyObjects(rings, SIDE, SIDE))) for rings in scaled]

    return Contestant(
        "pycocotools", run, note="vertices rounded to fifths of a pixel, column order"
    )


def case(name: str, instances: list[Instance], *, window: bool) -> list[Row]:
    """Everybody on the same instances; the GPU, if there is one, by its own clock."""
    contestants = [
        contract.enter("fnpipe/eager", partial(ours, "fnpipe/eager", instances, impl="torch")),
        contract.enter(
            "fnpipe/package", partial(ours, "fnpipe/package", instances, impl="package")
        ),
        contract.enter("opencv", partial(opencv, instances)),
        contract.enter("pycocotools", partial(pycocotools, instances)),
    ]
    if window:
        contestants.append(ours("window", instances, impl="window"))
    name = f"{name}: {len(instances)} instances on {SIDE} x {SIDE}"
    rows = contract.compete(name, contestants, unit=UNIT, timer=contract.cpu_seconds, rounds=9)
    if not torch.cuda.is_available():
        return [*rows, Row(name, "fnpipe/triton", None, UNIT, note="no CUDA device here")]
    triton = ours("fnpipe/triton", instances, impl="triton", device="cuda")
    return rows + contract.compete(name, [triton], unit=UNIT, timer=contract.cuda_seconds)


def measure(options: Namespace) -> list[Row]:
    """The batch of mosaics, then each span."""
    torch.set_num_threads(1)
    try:
        placed = mosaics(options.mosaics)
    except FileNotFoundError as error:
        return [Row("masks", "fnpipe/eager", None, UNIT, note=contract.reason(error))]
    rows = case(f"{options.mosaics} mosaics", placed, window=True)
    for span in options.spans:
        rows += case(f"span {span} px", spans(placed, span), window=False)
    return rows


def configure(parser: ArgumentParser) -> None:
    """What is measured."""
    parser.add_argument("--mosaics", type=int, default=64, help="mosaics in the batch")
    parser.add_argument("--spans", type=int, nargs="*", default=[30, 60, 120, 480], metavar="PX")


if __name__ == "__main__":
    contract.main(__file__, measure, description=__doc__, against="opencv", configure=configure)
