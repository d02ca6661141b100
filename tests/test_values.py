"""Values of tensors show themselves in one line, however much they hold."""

import torch

import fnpipe as fp
from fnpipe.testing import targets_of
from fnpipe.values import brief


def test_a_tensor_is_its_dtype_and_shape():
    assert brief(torch.zeros(4, 3, 640, 640)) == "float32[4, 3, 640, 640]"
    assert brief(torch.zeros(9, dtype=torch.bool)) == "bool[9]"
    assert brief(torch.zeros(0, dtype=torch.int64)) == "int64[0]"


def test_a_few_numbers_are_shown():
    assert brief(torch.arange(3)) == "tensor([0, 1, 2])"
    assert brief((torch.zeros(9), 3)) == "(float32[9], 3)"
    assert brief((torch.zeros(9),)) == "(float32[9],)"


def test_what_holds_values_shows_them():
    shown = repr(
        fp.Sample(
            image=torch.zeros(3, 5, 7, dtype=torch.uint8),
            targets=targets_of(torch.zeros(9, 4)),
            id=2,
        )
    )
    assert "\n" not in shown
    assert shown.startswith("Sample(image=uint8[3, 5, 7], targets=Targets(boxes=float32[9, 4], ")
    assert shown.endswith("instance_offsets=int64[10])), id=2, data=None)")
