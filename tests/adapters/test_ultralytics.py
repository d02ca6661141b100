"""The batch dict of Ultralytics' trainers, held against what their own data set would give."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import fnpipe as fp
from fnpipe.adapters.ultralytics import TrainLoader, to_ultralytics
from fnpipe.testing import assert_same_bits
from fnpipe.types import ArgumentError


def test_boxes_are_centres_in_parts_of_the_image(batch: fp.Batch):
    table = to_ultralytics(batch)
    assert table["img"].dtype == torch.uint8
    assert table["cls"].tolist() == [[1], [0], [2]]
    assert table["batch_idx"].tolist() == [0, 0, 2]
    assert table["bboxes"][2].tolist() == [12 / 32, pytest.approx(10 / 24), 0.5, 0.5]


def test_a_pose_is_in_parts_too(batch: fp.Batch):
    points = to_ultralytics(batch, task="pose")["keypoints"]
    assert points[2, 1].tolist() == [20 / 32, pytest.approx(4 / 24), 2.0]


def test_an_oriented_box_has_its_angle(batch: fp.Batch):
    boxes = to_ultralytics(batch, task="obb")["bboxes"]
    assert boxes.shape == (3, 5)
    x, y, w, h, angle = boxes[1].tolist()
    assert (x * 32, y * 24) == (pytest.approx(21), pytest.approx(12))
    assert (w * 32, h * 24, angle) == (
        *(pytest.approx(12, abs=1e-4), pytest.approx(8, abs=1e-4), pytest.approx(0.5, abs=1e-4)),
    )


def test_masks_number_the_instances_of_an_image(batch: fp.Batch):
    table = to_ultralytics(batch, task="segment")
    assert table["masks"].shape == (3, 6, 8)
    assert table["masks"][0].unique().tolist() == [0, 1, 2]
    assert not table["masks"][1].any()
    second = table["masks"][0] == 2
    assert table["sem_masks"][0][second].unique().tolist() == [0]
    assert table["sem_masks"][2].unique().tolist() == [0, 2]


@pytest.mark.parametrize("kind", ["instance", "overlap", "semantic"])
def test_masks_that_a_pipeline_made_are_taken_to_the_same_bits(
    batch: fp.Batch, data: fp.Dataset, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """Of kinds that number or name ignored instances too, no plane could be had: made anew."""
    made = fp.make_batch(data, fp.pipe(fp.masks(stride=4, kind=kind)), [0, 1, 2], seed=0)
    expected = to_ultralytics(batch, task="segment")
    if kind == "instance":
        monkeypatch.delattr("fnpipe.ops.raster.masks")
    table = to_ultralytics(made, task="segment")
    assert_same_bits(expected["masks"], table["masks"])
    assert_same_bits(expected["sem_masks"], table["sem_masks"])


def test_their_own_format_says_the_same(batch: fp.Batch, data: fp.Dataset):
    """``Format`` of Ultralytics on the same instances: classes, boxes, keypoints, image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        augment = pytest.importorskip("ultralytics.data.augment")
        instances = pytest.importorskip("ultralytics.utils.instance")
    own = data[0]
    found = instances.Instances(
        own.targets.boxes.numpy().copy(),
        np.zeros((0, 1000, 2), np.float32),
        own.targets.keypoints.numpy().copy(),
        bbox_format="xyxy",
        normalized=False,
    )
    label = {
        "img": np.ascontiguousarray(own.image.permute(1, 2, 0).numpy()[..., ::-1]),
        "cls": own.targets.labels.numpy()[:, None],
        "instances": found,
    }
    theirs = augment.Format(return_keypoint=True)(label)
    ours = to_ultralytics(batch, task="pose")
    rows = ours["batch_idx"] == 0
    assert torch.equal(theirs["img"], ours["img"][0])
    assert torch.equal(theirs["cls"].float(), ours["cls"][rows])
    # They divide where we multiply by the reciprocal: one unit in the last place.
    assert torch.allclose(theirs["bboxes"], ours["bboxes"][rows], rtol=2e-7, atol=0)
    assert torch.allclose(theirs["keypoints"], ours["keypoints"][rows], rtol=2e-7, atol=0)


def test_a_train_loader_runs_an_epoch_a_loop(data: fp.Dataset):
    train = fp.pipe(fp.letterbox(32), fp.flip(horizontal=0.5))
    loader = TrainLoader(fp.Loader(data, train, batch_size=2, seed=0), 2)
    assert (len(loader), loader.batch_size, len(loader.sampler)) == (2, 2, 3)
    epochs = [sorted(i for table in loader for i in table["im_file"]) for _ in range(2)]
    assert epochs == [["0", "1", "2"]] * 2


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("classify", r"^task wanted one of detect, segment, pose, obb, came 'classify'$"),
        ("detect", r"^images wanted uint8 codes, came torch.float32: recipes.yolo\(..., dtype="),
    ],
)
def test_what_it_cannot_make_is_refused(floats: fp.Batch, task: str, message: str):
    with pytest.raises(ArgumentError, match=message):
        to_ultralytics(floats, task=task)


def test_poses_want_keypoints(batch: fp.Batch):
    bare = batch.targets.replace(keypoints=torch.zeros(4, 0, 3))
    with pytest.raises(ArgumentError, match=r"^task 'pose' wanted keypoints, came none: read the"):
        to_ultralytics(batch.replace(targets=bare), task="pose")


def test_a_training_of_masks_wants_outlines(data: fp.Dataset):
    bare = replace(data, targets=data.targets.replace(rings=fp.Rings.empty(len(data.targets))))
    loader = fp.Loader(bare, fp.pipe(fp.letterbox(32)), batch_size=1, seed=0)
    with pytest.raises(ArgumentError, match=r"^task 'segment' wanted outlines, came none: read"):
        TrainLoader(loader, 1, task="segment")


def test_a_batch_without_outlines_has_empty_masks_and_is_told_of(batch: fp.Batch):
    bare = batch.replace(
        targets=batch.targets.replace(rings=fp.Rings.empty(len(batch.targets))), masks=None
    )
    with pytest.warns(UserWarning, match="^masks: no instance of this batch has an outline, so"):
        table = to_ultralytics(bare, task="segment", mask_ratio=1)
    assert not table["masks"].any()
    assert table["masks"].shape[0] == len(batch)


def test_oriented_boxes_want_quads(batch: fp.Batch):
    bare = batch.targets.replace(quads=torch.zeros(4, 0, 2))
    with pytest.raises(ArgumentError, match=r"^task 'obb' wanted quads, came none: read the data"):
        to_ultralytics(batch.replace(targets=bare), task="obb")
