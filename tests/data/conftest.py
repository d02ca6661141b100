"""Small photos and data sets on disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import Dataset
from fnpipe.data.pool import Pool, pool
from fnpipe.data.yolo import read_yolo
from fnpipe.ops.raster import masks
from fnpipe.ops.warp import pack
from fnpipe.testing import rings_of
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
        rings = rings if isinstance(rings, Rings) else rings_of(rings)
        return masks(rings, (height, width), stride=1)

    return rasterise


@pytest.fixture
def write_photos(tmp_path: Path) -> Callable[..., Dataset]:
    """A data set of noise in PNG files of several sizes, a box in each."""

    def write(count: int = 6, *, folder: str = "photos", seed: int = 0) -> Dataset:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        generator = np.random.default_rng(seed)
        images, boxes = [], []
        for i in range(count):
            codes = generator.integers(0, 256, (20 + i % 3, 30 - i % 5, 3), dtype=np.uint8)
            Image.fromarray(codes).save(root / f"{i}.png")
            images.append({"id": i, "file_name": f"{i}.png"})
            boxes.append({"id": i, "image_id": i, "category_id": 1, "bbox": [2, 3, 10, 12]})
        categories = [{"id": 1, "name": "thing"}]
        content = {"images": images, "annotations": boxes, "categories": categories}
        (root / "coco.json").write_text(json.dumps(content))
        return read_coco(root / "coco.json", root)

    return write


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., Pool]:
    """A pool below the test's own folder, without processes and progress unless asked for."""

    def make(data: Dataset, kind: str = "disk", **options: Any) -> Pool:
        options = {"device": "cpu", "folder": tmp_path / "pools", **options}
        return pool(data, kind, **{"workers": 0, "progress": False, **options})

    return make


@pytest.fixture
def pool_files(tmp_path: Path) -> Callable[[], list[str]]:
    """The names of the files that pools have now."""
    return lambda: sorted(p.name for p in (tmp_path / "pools").rglob("*") if p.is_file())


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the photos that are decoded from now on, in this process."""
    names: list[str] = []

    def count(method: Callable[..., Any]) -> Callable[..., Any]:
        def counting(self: Dataset, index: int, **known: Any) -> Any:
            names.append(self.path(index).name)
            return method(self, index, **known)

        return counting

    for name in ("read", "read_packed"):
        monkeypatch.setattr(Dataset, name, count(getattr(Dataset, name)))
    return names


@pytest.fixture
def words_of() -> Callable[[Pool, int], torch.Tensor]:
    """All that a pool has of a photo, fill and border and all."""

    def find(made: Pool, photo: int) -> torch.Tensor:
        start = int(made.sources.offsets[photo]) - 2
        width, height = made.sources.sizes[photo].tolist()
        return made.sources.words[start : start + 2 + (width + 2) * (height + 2)]

    return find


@pytest.fixture
def assert_holds(words_of: Callable[[Pool, int], torch.Tensor]) -> Callable[[Pool, Dataset], None]:
    """Every photo of a data set is in a pool as it is in its file."""

    def check(made: Pool, data: Dataset) -> None:
        assert len(made.sources) == len(data)
        for photo in range(len(data)):
            assert torch.equal(words_of(made, photo), pack(data.read(photo))), photo

    return check
