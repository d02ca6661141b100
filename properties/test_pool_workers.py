"""Law: workers that read from a pool send what workers that decode send, however they started."""

import hashlib
import json
import os
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.types import Batch


DRAWS, BATCH = int(os.environ.get("FNPIPE_DRAWS", "8")), 64
"""Batches to compare: a hundred take several minutes."""
TRAIN = fp.pipe(
    fp.mosaic(32), fp.affine(degrees=10.0, scale=0.5), fp.hsv(hue=0.1), fp.flip(horizontal=0.5)
)
WAYS = (("ram", "spawn"), ("disk", "forkserver"), ("device", "fork"))
"""A kind of pool and a start method. The device holds half of the photos, workers send the rest."""


def coco(shared_data: Path, folder: Path) -> Dataset:
    """All 192 photos, those of both splits."""
    root, whole = shared_data / "coco", {"images": [], "annotations": []}
    for split in ("train2017", "val2017"):
        content = json.loads((root / "annotations" / f"instances_{split}.json").read_text())
        for image in content["images"]:
            image["file_name"] = f"{split}/{image['file_name']}"
        whole = {name: whole[name] + content[name] for name in whole}
        whole["categories"] = content["categories"]
    (folder / "all.json").write_text(json.dumps(whole))
    return fp.read_coco(folder / "all.json", root)


def dota8(shared_data: Path, folder: Path) -> Dataset:
    """All 8 tiles, each eight times."""
    root = shared_data / "dota8"
    config = yaml.safe_load((root / "dota8.yaml").read_text())
    config["train"] = ["images/train", "images/val"]
    (folder / "all.yaml").write_text(yaml.safe_dump(config))
    data = fp.read_yolo(folder / "all.yaml", root=root, task="obb")
    return data.subset(torch.arange(BATCH) % len(data))


def digests(loader: fp.Loader) -> list[bytes]:
    """The bytes of so many batches, over as many epochs as that takes."""

    def digest(batch: Batch) -> bytes:
        parts = (batch.images, batch.boxes, batch.quads, batch.labels, batch.owner, batch.ids)
        return hashlib.sha256(b"".join(p.contiguous().numpy().tobytes() for p in parts)).digest()

    epochs = (batch for _ in range(DRAWS) for batch in loader)
    return [digest(batch) for batch in islice(epochs, DRAWS)]


@pytest.fixture(scope="module", params=[coco, dota8], ids=lambda read: read.__name__)
def uncached(request, shared_data: Path, tmp_path_factory) -> tuple[Dataset, list[bytes]]:
    """A data set, and what comes out where each batch reads its photos (from memory here)."""
    data = request.param(shared_data, tmp_path_factory.mktemp("sets"))
    with pytest.MonkeyPatch.context() as patch:
        read = Dataset.read
        patch.setattr(Dataset, "read", cache(lambda self, index: read(self, index)))
        found = digests(fp.Loader(data, TRAIN, batch_size=BATCH, seed=5, worker_backend="eager"))
    return data, found


@pytest.mark.parametrize(("kind", "method"), WAYS)
def test_cached_is_uncached(uncached, kind: str, method: str, tmp_path: Path):
    data, expected = uncached
    options = {"device": "cpu", "folder": tmp_path, "progress": False}
    if kind == "device":
        options |= {"limit": fp.bill(data).bytes // 2, "overflow": "prefix"}
    made = fp.pool(data, kind, **options)
    loader = fp.Loader(
        data, TRAIN, batch_size=BATCH, seed=5, pool=made, workers=1, start_method=method,
        backend="eager", worker_backend="eager", cut="plan" if kind == "device" else "finished",
    )  # fmt: skip
    assert digests(loader) == expected
    assert len({*expected}) == DRAWS
    made.close()
