"""torchvision's detection models and tv_tensors."""

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import fnpipe as fp
from fnpipe.adapters import torchvision as bridge
from fnpipe.testing import assert_same_bits
from fnpipe.types import ArgumentError


def test_detection_targets_are_a_dict_an_image(floats: fp.Batch):
    images, targets = bridge.to_detection(floats, masks=True)
    assert [tuple(i.shape) for i in images] == [(3, 24, 32)] * 3
    assert [len(t["boxes"]) for t in targets] == [2, 0, 1]
    assert targets[0]["labels"].tolist() == [2, 1]
    assert targets[2]["boxes"].tolist() == [[4, 4, 20, 16]]
    assert targets[0]["masks"].sum((1, 2)).tolist() == [8 * 6, 18 * 16]
    assert targets[1]["masks"].shape == (0, 24, 32)
    assert targets[0]["keypoints"].shape == (2, 2, 3)
    assert [int(t["image_id"]) for t in targets] == [0, 1, 2]


def test_masks_that_a_pipeline_made_are_taken_to_the_same_bits(
    data: fp.Dataset, floats: fp.Batch, monkeypatch: pytest.MonkeyPatch
):
    made = fp.make_batch(data, fp.pipe(fp.masks(stride=1), fp.finish()), [0, 1, 2], seed=0)
    small = fp.make_batch(data, fp.pipe(fp.masks(stride=4), fp.finish()), [0, 1, 2], seed=0)
    expected = bridge.to_detection(floats, masks=True)
    assert_same_bits(expected, bridge.to_detection(small, masks=True))
    monkeypatch.delattr("fnpipe.ops.raster.masks")
    assert_same_bits(expected, bridge.to_detection(made, masks=True))


def test_labels_from_zero_for_models_without_a_background(floats: fp.Batch):
    _, targets = bridge.to_detection(floats, first_label=0)
    assert targets[0]["labels"].tolist() == [1, 0]


def test_codes_are_refused(batch: fp.Batch):
    with pytest.raises(ArgumentError, match=r"^images wanted floats in \[0, 1\], came torch.uint8"):
        bridge.to_detection(batch)


def test_a_sample_comes_back_from_tv_tensors(batch: fp.Batch, data: fp.Dataset):
    for i, (image, targets) in enumerate(bridge.to_tv_tensors(batch)):
        sample = bridge.from_tv_tensors(image, targets, id=i)
        expected = data[i]
        assert_same_bits(expected.image, sample.image)
        bare = expected.targets.replace(rings=fp.Rings.empty(len(expected.targets)))
        # A quad that a pipeline has moved is a fresh rectangle round its corners.
        assert torch.allclose(bare.quads, sample.targets.quads, atol=1e-5)
        assert_same_bits(bare.replace(quads=sample.targets.quads), sample.targets)


def test_their_flip_is_ours(batch: fp.Batch, data: fp.Dataset):
    """Pixels and boxes mirrored by torchvision are those that our flip makes."""
    image, targets = bridge.to_tv_tensors(batch)[0]
    del targets["keypoints"], targets["quads"], targets["visibility"]
    mirrored, moved = v2.RandomHorizontalFlip(p=1.0)(image, targets)
    sample = bridge.from_tv_tensors(mirrored, moved)
    ours = fp.make_batch(data, fp.pipe(fp.flip(horizontal=1.0)), [0], seed=0)
    assert_same_bits(ours.images[0], sample.image)
    assert_same_bits(ours.boxes, sample.targets.boxes)


def test_boxes_of_any_format_come_in():
    image = tv_tensors.Image(torch.zeros(3, 10, 20, dtype=torch.uint8))
    boxes = tv_tensors.BoundingBoxes([[5.0, 5.0, 4.0, 2.0]], format="CXCYWH", canvas_size=(10, 20))  # type: ignore[call-overload]
    sample = bridge.from_tv_tensors(image, {"boxes": boxes, "labels": torch.tensor([3])})
    assert sample.targets.boxes.tolist() == [[3, 4, 7, 6]]
    image_of_pipe, targets = fp.pipe(fp.letterbox(20))(fp.key(seed=0, epoch=0, sample=0), sample)
    assert image_of_pipe.shape == (3, 20, 20)
    assert targets.boxes.tolist() == [[3, 9, 7, 11]]


def test_another_canvas_is_refused():
    image = tv_tensors.Image(torch.zeros(3, 10, 20, dtype=torch.uint8))
    boxes = tv_tensors.BoundingBoxes([[0.0, 0.0, 4.0, 2.0]], format="XYXY", canvas_size=(20, 10))  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match=r"^boxes wanted the image's canvas \(10, 20\), came "):
        bridge.from_tv_tensors(image, {"boxes": boxes, "labels": torch.tensor([3])})
    with pytest.raises(ArgumentError, match=r"^image wanted uint8 codes, came torch.float32"):
        bridge.from_tv_tensors(tv_tensors.Image(image.float()), {"boxes": boxes})
