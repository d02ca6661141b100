"""Fixtures that every test may use."""

import json

import pytest
from PIL import Image as pillow

import fnpipe as fp
from fnpipe.data.dataset import Dataset


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Ten photos, each of one colour, with one box."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(10):
        pillow.new("RGB", (16, 12), (i * 20, 0, 255)).save(root / f"{i}.png")
    document = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(10)],
        "categories": [{"id": 1, "name": "box"}],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 8, 6]} for i in range(10)
        ],
    }
    (root / "boxes.json").write_text(json.dumps(document))
    return fp.read_coco(root / "boxes.json", root)


@pytest.fixture
def data(photos: Dataset) -> Dataset:
    """The same ten, for tests whose folder has no data set of its own."""
    return photos
