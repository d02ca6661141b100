"""The main job on real photos: a whole epoch through the loader, and every target in its place."""

import hashlib
from pathlib import Path

import pytest
import torch

import fnpipe as fp
from fnpipe.ops.points import bounds
from fnpipe.types import Batch


TRAIN = fp.pipe(
    fp.mosaic(320),
    fp.affine(translate=0.1, scale=0.5),
    fp.hsv(hue=0.015, saturation=0.7, value=0.4),
    fp.flip(horizontal=0.5),
    fp.finish(torch.uint8),
    fp.masks(stride=4),
)


def digest(batch: Batch) -> bytes:
    """The bytes of images, boxes and masks."""
    assert batch.masks is not None
    parts = (batch.images.contiguous(), batch.boxes, batch.labels, batch.owner, batch.masks)
    return hashlib.sha256(b"".join(p.numpy().tobytes() for p in parts)).digest()


def check_targets(batch: Batch) -> None:
    """Boxes lie in the frame, have an area, and bound the polygons that go with them."""
    boxes, targets = batch.boxes, batch.targets
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= 320).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert len(targets.labels) == len(targets.owner) == len(boxes)
    assert ((targets.labels >= 0) & (targets.labels < 80)).all()
    assert (targets.owner.diff() >= 0).all()
    assert (targets.owner < len(batch)).all()
    assert len(targets.rings.instance_offsets) == len(boxes) + 1
    assert batch.masks is not None
    assert batch.masks.shape == (len(boxes), 80, 80)
    ringed = targets.rings.instance_offsets.diff() > 0
    hulls, boxes = bounds(targets.rings)[ringed], boxes[ringed]
    # A ring cut at the border may run along it beyond what it encloses; the box never does.
    border = (hulls == 0) | (hulls == 320)
    assert torch.equal(hulls[~border.any(1)], boxes[~border.any(1)])
    assert (hulls[:, :2] <= boxes[:, :2]).all()
    assert (hulls[:, 2:] >= boxes[:, 2:]).all()


@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_an_epoch_of_real_photos(split: str, shared_data: Path) -> None:
    root = shared_data / "coco"
    file = root / "annotations" / f"instances_{split}.json"
    data = fp.read_coco(file, root / split, task="segment")
    assert len(data) == {"train2017": 128, "val2017": 64}[split]
    seen = {}
    for cut in ("finished", "warped"):
        loader = fp.Loader(
            data, TRAIN, batch_size=16, seed=0, cut=cut, workers=2,
            worker_backend="eager", backend="eager",
        )  # fmt: skip
        batches = list(loader)
        assert torch.cat([b.ids for b in batches]).sort().values.tolist() == list(range(len(data)))
        for batch in batches:
            check_targets(batch)
        seen[cut] = [digest(b) for b in batches]
    assert seen["finished"] == seen["warped"]
