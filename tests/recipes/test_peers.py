"""Do recipes draw what Ultralytics draws? 10,000 draws of each, distribution against distribution.

Two samples of 10,000 from one distribution are further apart than 0.0276 (Kolmogorov, Smirnov)
once in a thousand times; seeds are fixed, so a comparison that holds, holds again.
"""

import random
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fnpipe as fp
from fnpipe import recipes
from fnpipe.testing import targets_of


COUNT = 10_000
FAR = 1.95 * (2 / COUNT) ** 0.5
SIZE = 64
PHOTOS = ((64, 48), (40, 64), (64, 64), (64, 32), (24, 64)) * 40
"""Width, height; the long side is ``SIZE``, as Ultralytics resizes photos when it loads them.

So many, because a mosaic of theirs may hold its own photo again and one of ours may not.
"""
BOX = (0.25, 0.25, 0.75, 0.625)
"""The one box of every photo, in parts of it."""

scipy_stats = pytest.importorskip("scipy.stats")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    augment = pytest.importorskip("ultralytics.data.augment")
    instances = pytest.importorskip("ultralytics.utils.instance")


class Album:
    """Photos of one colour, each with one box: for both libraries."""

    cache = "ram"
    data: dict[str, Any] = {}  # noqa: RUF012
    keypoint_flip: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.sizes = torch.tensor(PHOTOS)
        boxes = torch.tensor(BOX) * self.sizes.repeat(1, 2)
        self.targets = targets_of(boxes, owner=torch.arange(len(PHOTOS)))
        self.offsets = torch.arange(len(PHOTOS) + 1)

    def __len__(self) -> int:
        return len(PHOTOS)

    def read(self, index: int) -> torch.Tensor:
        width, height = PHOTOS[index]
        return torch.full((3, height, width), 100, dtype=torch.uint8)

    def get_image_and_label(self, index: int) -> dict[str, Any]:
        """As Ultralytics' data sets hand it to a transform."""
        width, height = PHOTOS[index]
        return {
            "im_file": "",
            "ori_shape": (height, width),
            "img": np.full((height, width, 3), 100, np.uint8),
            "resized_shape": (height, width),
            "cls": np.array([[index]], np.float32),
            "instances": instances.Instances(
                self.targets.boxes[index : index + 1].numpy().copy(),
                np.zeros((0, 1000, 2), np.float32),
                bbox_format="xyxy",
                normalized=False,
            ),
        }


ALBUM = Album()


@pytest.fixture(autouse=True)
def seeds() -> None:
    random.seed(0)
    np.random.seed(0)


def distance(ours: Any, theirs: Any) -> float:
    """How far two empirical distributions are apart, in [0, 1]."""
    return float(scipy_stats.ks_2samp(np.asarray(ours), np.asarray(theirs)).statistic)


def draw(pipeline: fp.Pipeline, *, photo: int = 2) -> fp.Plan:
    """10,000 epochs of one photo."""
    key = fp.key(seed=0, epoch=torch.arange(COUNT), sample=torch.full((COUNT,), photo))
    return pipeline.draw(key, ALBUM)


def maps(**hyper: float) -> tuple[np.ndarray, np.ndarray]:
    """Homographies of a square photo, ours and theirs, normalised: [10,000, 3, 3]."""
    ours = draw(recipes.yolo(SIZE, mosaic=0.0, fliplr=0.0, **hyper)).forward[:, 0].numpy()  # type: ignore[arg-type]
    peer = augment.RandomPerspective(**({"translate": 0.1, "scale": 0.5} | hyper))
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    theirs = np.stack(
        [peer._compute_affine_matrix(image, (SIZE, SIZE))[0] for _ in range(COUNT)]
    ).astype(np.float64)
    return ours / ours[:, 2:, 2:], theirs / theirs[:, 2:, 2:]


def observables(maps: np.ndarray) -> dict[str, np.ndarray]:
    """Every entry, and mixtures that tell whether entries depend on each other alike."""
    entries = {f"[{i}, {j}]": maps[:, i, j] for i in range(3) for j in range(3) if i + j < 4}
    a, b, c, d = (maps[:, i, j] for i in (0, 1) for j in (0, 1))
    mixed = {"area": a * d - b * c, "skew": b + c, "stretch": a - d, "shift": maps[:, :2, 2].sum(1)}
    return entries | mixed


GEOMETRIES = {
    "defaults": {},
    "rotation": {"degrees": 30.0, "translate": 0.0, "scale": 0.0},
    "shear": {"shear": 15.0, "translate": 0.0, "scale": 0.0},
    "perspective": {"perspective": 0.001, "translate": 0.0, "scale": 0.0},
    "all": {
        "degrees": 10.0, "translate": 0.2, "scale": 0.3, "shear": 5.0, "perspective": 0.0005
    },
}  # fmt: skip


@pytest.mark.parametrize("hyper", GEOMETRIES.values(), ids=GEOMETRIES)
def test_affine_maps(hyper: dict[str, float]):
    ours, theirs = map(observables, maps(**hyper))
    for name, values in ours.items():
        # Matrices of theirs are float32: what is constant differs in the last bit.
        a, b = values.round(5), theirs[name].round(5)
        assert distance(a, b) < FAR, name


def test_a_tenth_more_translation_would_be_seen():
    """The instrument: were ``translate`` to mean 10 % more, the test above would fail."""
    ours = observables(maps(translate=0.11, scale=0.0)[0])
    theirs = observables(maps(translate=0.1, scale=0.0)[1])
    assert distance(ours["[0, 2]"], theirs["[0, 2]"]) > FAR


def test_colours(monkeypatch: pytest.MonkeyPatch):
    """Their tables at hue 90 of 180, saturation 100, value 100, and our gains cut like them."""
    drawn = draw(recipes.yolo(SIZE)).colors[0].double()
    turns = (drawn[:, 0] / 6 + 0.5) % 1.0 - 0.5
    ours = torch.stack([90 + turns * 180, 100 * drawn[:, 1], 100 * drawn[:, 2]], 1).floor()
    tables: list[np.ndarray] = []
    monkeypatch.setattr(augment.cv2, "LUT", lambda image, table: tables.append(table) or image)
    peer = augment.RandomHSV(0.015, 0.7, 0.4)
    image = np.zeros((1, 1, 3), np.uint8)
    for _ in range(COUNT):
        peer.apply_image({"img": image})
    theirs = np.stack(tables)[:, 0, [90, 100, 100], [0, 1, 2]].astype(float)
    for column in range(3):
        assert distance(ours[:, column], theirs[:, column]) < FAR, column
    assert distance(ours[:, 0] + ours[:, 1], theirs[:, 0] + theirs[:, 1]) < FAR
    assert distance(ours[:, 1] - ours[:, 2], theirs[:, 1] - theirs[:, 2]) < FAR


@pytest.mark.parametrize(("up", "left"), [(0.1, 0.5), (0.5, 0.9)])
def test_mirrors(up: float, left: float):
    """Shares of images mirrored either way agree within four standard deviations."""
    ours = draw(recipes.yolo(SIZE, flipud=up, fliplr=left)).mirror.double().mean(0)
    label = ALBUM.get_image_and_label(0)
    for place, (p, direction) in enumerate([(left, "horizontal"), (up, "vertical")]):
        peer = augment.RandomFlip(p, direction)
        theirs = np.mean([peer.get_params(label)["flip"] for _ in range(COUNT)])
        assert abs(float(ours[place]) - theirs) < 4 * (2 * p * (1 - p) / COUNT) ** 0.5


def test_the_point_where_mosaics_meet():
    """In the frame's pixels, and independent across and down."""
    plan = draw(recipes.yolo(SIZE, translate=0.0, scale=0.0))
    ours = -plan.splits[:, :, 0, 2].numpy().astype(float)  # x >= seam is x - seam >= 0
    peer = augment.Mosaic(ALBUM, imgsz=SIZE)
    label = ALBUM.get_image_and_label(2) | {
        "mix_labels": [ALBUM.get_image_and_label(i) for i in range(3)]
    }
    layouts = [augment.Mosaic.get_params(peer, dict(label))["layout"] for _ in range(COUNT)]
    theirs = np.array([(part[3]["x1a"], part[3]["y1a"]) for part in layouts]) - SIZE / 2
    assert distance(ours[:, 0], theirs[:, 0]) < FAR
    assert distance(ours[:, 1], theirs[:, 1]) < FAR
    assert distance(ours.sum(1), theirs.sum(1)) < FAR
    assert distance(ours[:, 0] - ours[:, 1], theirs[:, 0] - theirs[:, 1]) < FAR


def test_how_often_photos_are_mixed():
    plan = draw(recipes.yolo(SIZE, mosaic=0.3))
    ours = float((plan.sources[:, 1] >= 0).double().mean())
    assert abs(ours - 0.3) < 4 * (0.3 * 0.7 / COUNT) ** 0.5


def boxes_of_both(**hyper: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Of 10,000 images from the whole recipe: how many boxes, and the numbers of all of them."""
    train = recipes.yolo(SIZE, **hyper)  # type: ignore[arg-type]
    plan = draw(train)
    targets = train.annotate(plan, ALBUM)
    counts = torch.bincount(targets.owner, minlength=COUNT).double().numpy()
    ours = targets.boxes.double().numpy()
    values = recipes.defaults("yolo") | hyper
    peer = augment.v8_transforms(ALBUM, SIZE, SimpleNamespace(**values, augmentations=[]))
    got = [peer(ALBUM.get_image_and_label(2))["instances"] for _ in range(COUNT)]
    for found in got:
        found.convert_bbox("xyxy")
        found.denormalize(SIZE, SIZE)
    theirs = np.concatenate([found.bboxes for found in got]).astype(float)
    return _numbers(counts, ours), _numbers(np.array([len(f) for f in got], float), theirs)


def _numbers(counts: np.ndarray, boxes: np.ndarray) -> dict[str, np.ndarray]:
    sides = boxes[:, 2:] - boxes[:, :2]
    edges = {f"edge {i}": boxes[:, i] for i in range(4)}
    numbers = edges | {"width": sides[:, 0], "height": sides[:, 1], "count": counts}
    return {name: n.round(3) for name, n in numbers.items()}  # of float32 dust


@pytest.mark.parametrize("hyper", [{"scale": 0.0, "translate": 0.0}, {"mosaic": 0.0}, {}], ids=str)
def test_boxes_of_the_whole_recipe(hyper: dict[str, float]):
    """Mosaic, affine and flips together, and what is kept of the targets.

    Not rotated: there theirs cut the hull of a turned box at the border, ours the box itself.
    """
    ours, theirs = boxes_of_both(**hyper)
    for name, values in ours.items():
        assert distance(values, theirs[name]) < FAR, name
