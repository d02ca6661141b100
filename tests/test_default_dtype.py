"""Torch's defaults belong to the user: bytes do not depend on the dtype, a device is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import fnpipe as fp
from fnpipe.adapters.huggingface import to_detr
from fnpipe.adapters.ultralytics import to_ultralytics
from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import TASKS, Dataset
from fnpipe.data.prepare import prepare
from fnpipe.types import ArgumentError


MOVED = fp.pipe(
    fp.mosaic(32, p=0.5),
    fp.copy_paste(p=0.8),
    fp.affine(degrees=10.0, scale=0.5, shear=5.0, perspective=0.001),
    fp.mixup(p=0.7),
    fp.cutmix(p=0.7),
    fp.erase(p=0.7),
    fp.flip(horizontal=0.3),
    fp.masks(stride=4),
    fp.keep(visible=0.1),
    fp.finish(torch.float32),
)
PAINTED = fp.pipe(
    fp.letterbox(16),
    fp.hsv(hue=0.1, saturation=0.5, value=0.4),
    fp.brightness(0.3, p=0.5),
    fp.contrast(0.2),
    fp.solarize(100.0, p=0.5),
    fp.posterize(3),
    fp.grayscale(p=0.5),
    fp.finish(torch.float16, mean=(0.1, 0.2, 0.3), std=(0.2, 0.3, 0.4)),
)
CODES = fp.pipe(fp.crop(8))


@pytest.fixture(params=[torch.float64, torch.bfloat16])
def other(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    yield request.param
    torch.set_default_dtype(before)


@pytest.fixture
def labels(data: Dataset, tmp_path: Path) -> Path:
    """Labels of every kind for the ten photos; an instance sticks out of each."""
    document = json.loads((data.root / "boxes.json").read_text())
    document["categories"][0]["keypoints"] = ["left", "right"]
    for instance in document["annotations"]:
        instance["segmentation"] = [[1, 2, 19, 2, 9, 8], [3, 9, 8, 9, 8, 11]]
        instance["keypoints"] = [3, 4, 2, 8, 3, 1]
    (tmp_path / "labels.json").write_text(json.dumps(document))
    return tmp_path / "labels.json"


def made(labels: Path, photos: Path) -> list[Tensor]:
    """All that comes of some photos."""
    datasets = [read_coco(labels, photos, task=task) for task in TASKS]
    datasets.append(prepare(datasets[1], longest=9))
    leaves: list[Any] = [data.targets for data in datasets]
    for data in datasets:
        leaves += [fp.make_batch(data, each, range(10), seed=1) for each in (MOVED, PAINTED)]
    leaves.append(to_detr(fp.make_batch(datasets[0], MOVED, range(10), seed=1)))
    leaves.append(to_ultralytics(fp.make_batch(datasets[3], CODES, range(10), seed=1), task="obb"))
    return [leaf for leaf in pytree.tree_leaves(leaves) if isinstance(leaf, Tensor)]


def test_bytes_do_not_depend_on_it(data: Dataset, labels: Path, other: torch.dtype):
    wanted = made(labels, data.root)
    torch.set_default_dtype(other)
    got = made(labels, data.root)
    assert [t.dtype for t in got] == [t.dtype for t in wanted]
    for one, two in zip(got, wanted, strict=True):
        fp.testing.assert_same_bits(two, one)


def test_another_default_device_is_refused_at_once(shared_data: Path):
    folder = shared_data / "coco"
    read = (folder / "annotations" / "instances_val2017.json", folder / "val2017")
    data, train = fp.read_coco(*read), fp.pipe(fp.letterbox(32), fp.finish())
    told = r"^torch's default device wanted cpu, came meta: photos and plans are made on the host"
    for call in (
        lambda: fp.read_coco(*read),
        lambda: fp.make_batch(data, train, [0], seed=0),
        lambda: fp.Loader(data, train, batch_size=2, seed=0),
        lambda: fp.pool(data, "ram"),
    ):
        with torch.device("meta"), pytest.raises(ArgumentError, match=told):
            call()
