"""The stage that makes masks: what it refuses, what each kind is, and where it may stand."""

import re
from typing import Any

import pytest
import torch

import fnpipe as fp
from fnpipe.testing import rings_of, targets_of
from fnpipe.types import ArgumentError, Targets


def two_squares() -> Targets:
    """A square of 16 pixels in image 0, one of 8 upon it, and a box without rings in image 2."""
    corners = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    return targets_of(
        [[0, 0, 16, 16], [8, 8, 16, 16], [0, 0, 4, 4]],
        labels=torch.tensor([5, 3, 1]),
        owner=torch.tensor([0, 0, 2]),
        ignore=torch.tensor([False, True, False]),
        rings=rings_of([corners * 16], [corners * 8 + 8], []),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "boxes"}, "masks: kind wanted one of instance, overlap, semantic, came 'boxes'"),
        ({"stride": 0}, "masks: stride wanted an integer >= 1, came 0"),
    ],
)
def test_what_is_no_mask_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        fp.masks(**options)


def test_a_stride_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ArgumentError, match="size: wanted positive multiples of stride 4; came"):
        fp.masks().rasterize(two_squares(), 3, (18, 16))


def test_a_stage_is_written_as_it_was_called():
    assert repr(fp.masks(stride=8, kind="overlap")) == "masks(stride=8, kind='overlap')"
    assert fp.masks() == fp.masks(stride=4, kind="instance")


def test_instances_have_a_plane_each_and_none_without_rings():
    planes = fp.masks().rasterize(two_squares(), 3, (16, 16))
    assert planes.dtype == torch.bool
    assert planes.flatten(1).sum(1).tolist() == [16, 4, 0]
    parts = fp.split_by_owner(planes, two_squares().owner, 3)
    assert [len(part) for part in parts] == [2, 0, 1]


def test_maps_have_a_plane_an_image_with_the_smaller_on_top():
    numbers = fp.masks(kind="overlap").rasterize(two_squares(), 3, (16, 16))
    assert (numbers.dtype, numbers.shape) == (torch.int32, (3, 4, 4))
    assert numbers[0, 3].tolist() == [1, 1, 2, 2]
    assert numbers[1:].unique().tolist() == [0]
    labels = fp.masks(kind="semantic").rasterize(two_squares(), 3, (16, 16))
    assert labels[0, 3].tolist() == [5, 5, 3, 3]
    assert labels[1:].unique().tolist() == [-1]


def test_it_may_stand_anywhere_even_after_the_finish():
    for stages in ((fp.masks(), fp.finish()), (fp.finish(), fp.masks())):
        train = fp.pipe(fp.letterbox(64), *stages)
        assert train.masking == fp.masks()
        assert re.search(r"masks\(\) +rings to masks +worker +device +device", train.explain())
    assert fp.pipe(fp.letterbox(64)).masking is None
