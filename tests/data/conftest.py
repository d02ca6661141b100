"""Small photos and data sets on disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import Dataset
from fnpipe.data.yolo import read_yolo
from fnpipe.ops.raster import masks
from fnpipe.types import Rings


@pytest.fixture
def save_photo() -> Callable[..., Path]:
    """Save a photo whose red is x, green y, blue 0."""

    def save(path: Path, width: int, height: int, **options: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        photo = Image.new("RGB", (width, height))
        photo.putdata([(x % 256, y % 256, 0) for y in range(height) for x in range(width)])
        photo.save(path, **options)
        return path

    return save


@pytest.fixture
def load_coco(tmp_path: Path, save_photo: Callable[..., Path]) -> Callable[..., Dataset]:
    """Read a COCO file of annotations on one photo of 100 x 100, unless told otherwise."""

    def load(*annotations: Mapping[str, Any], **options: Any) -> Dataset:
        save_photo(tmp_path / "a.png", 100, 100)
        content = {
            "images": options.pop("images", [{"id": 1, "file_name": "a.png"}]),
            "annotations": [
                {"id": i, "image_id": 1, "category_id": 1, **annotation}
                for i, annotation in enumerate(annotations)
            ],
            "categories": options.pop("categories", [{"id": 1, "name": "thing"}]),
        }
        (tmp_path / "coco.json").write_text(json.dumps(content))
        return read_coco(tmp_path / "coco.json", tmp_path, **options)

    return load


@pytest.fixture
def load_yolo(tmp_path: Path, save_photo: Callable[..., Path]) -> Callable[..., Dataset]:
    """Read YOLO texts, one a photo of 100 x 100; None is no text."""

    def load(*texts: str | None, **options: Any) -> Dataset:
        for i, text in enumerate(texts):
            save_photo(tmp_path / "images" / f"{i}.png", 100, 100)
            if text is not None:
                (tmp_path / "labels").mkdir(exist_ok=True)
                (tmp_path / "labels" / f"{i}.txt").write_text(text)
        content = {"train": "images", "names": ["cat", "dog"], **options.pop("config", {})}
        (tmp_path / "data.yaml").write_text(yaml.safe_dump(content))
        return read_yolo(tmp_path / "data.yaml", **options)

    return load


@pytest.fixture
def fill() -> Callable[..., torch.Tensor]:
    """One mask an instance, every pixel, by the project's rule."""

    def rasterise(rings: Rings | Sequence[torch.Tensor], height: int, width: int) -> torch.Tensor:
        if not isinstance(rings, Rings):
            counts = torch.tensor([0, *map(len, rings)])
            whole = torch.tensor([0, len(rings)])
            rings = Rings(torch.cat([torch.zeros(0, 2), *rings]), counts.cumsum(0), whole)
        return masks(rings, (height, width), stride=1)

    return rasterise
