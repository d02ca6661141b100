"""Values of tensors show themselves in one line, however much they hold."""

import torch

import fnpipe as fp
from fnpipe.types import Rings, Targets
from fnpipe.values import brief


def targets(count: int) -> Targets:
    return Targets(
        boxes=torch.zeros(count, 4),
        labels=torch.arange(count),
        owner=torch.zeros(count, dtype=torch.int64),
        ids=torch.arange(count),
        ignore=torch.zeros(count, dtype=torch.bool),
        visible=torch.ones(count),
        keypoints=torch.zeros(count, 0, 3),
        quads=torch.zeros(count, 0, 2),
        rings=Rings.empty(count),
    )


def test_a_tensor_is_its_dtype_and_shape():
    assert brief(torch.zeros(4, 3, 640, 640)) == "float32[4, 3, 640, 640]"
    assert brief(torch.zeros(9, dtype=torch.bool)) == "bool[9]"
    assert brief(torch.zeros(0, dtype=torch.int64)) == "int64[0]"


def test_a_few_numbers_are_shown():
    assert brief(torch.arange(3)) == "tensor([0, 1, 2])"
    assert brief((torch.zeros(9), 3)) == "(float32[9], 3)"
    assert brief((torch.zeros(9),)) == "(float32[9],)"


def test_what_holds_values_shows_them():
    shown = repr(fp.Sample(image=torch.zeros(3, 5, 7, dtype=torch.uint8), targets=targets(9), id=2))
    assert "\n" not in shown
    assert shown.startswith("Sample(image=uint8[3, 5, 7], targets=Targets(boxes=float32[9, 4], ")
    assert shown.endswith("instance_offsets=int64[10])), id=2, data=None)")
