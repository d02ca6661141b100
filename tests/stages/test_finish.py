"""What images become at the end, and which targets stay."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fnpipe as fp
from fnpipe.types import ArgumentError, Finish


def single(x: float) -> float:
    return torch.tensor(x).item()


def test_floats_are_in_zero_to_one_unless_told_otherwise():
    assert fp.finish().finish == Finish(
        torch.float32, scale=(share := single(1 / 255), share, share)
    )


def test_a_mean_and_a_deviation_become_one_product_and_one_sum():
    made = fp.finish(torch.float16, channels_last=True, mean=(0.5, 0.25, 0.0), std=(0.5, 1.0, 2.0))
    assert made.finish == Finish(
        torch.float16,
        True,
        (single(1 / 127.5), single(1 / 255), single(1 / 510)),
        (-1.0, -0.25, 0.0),
    )


def test_white_less_the_mean_over_the_deviation():
    how = fp.finish(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)).finish
    white = [255 * s + o for s, o in zip(how.scale, how.offset, strict=True)]
    assert white == pytest.approx([2.2489, 2.4286, 2.6400], abs=1e-4)


@pytest.mark.parametrize("stage", [fp.finish(), fp.finish(torch.bfloat16), fp.keep(side=2.0)])
def test_a_stage_is_written_as_it_was_called(stage: Any):
    assert eval(repr(stage), {**vars(fp), "torch": torch}) == stage


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fp.finish(torch.int8),
            "finish: dtype wanted one of torch.uint8, torch.float16, torch.bfloat16, "
            "torch.float32, came torch.int8",
        ),
        (
            lambda: fp.finish(torch.uint8, mean=(0.0, 0.0, 0.0)),
            "finish: mean and std want a float dtype, came torch.uint8",
        ),
        (
            lambda: fp.finish(std=(1.0, 0.0, 1.0)),
            "finish: std wanted three numbers > 0, came (1.0, 0.0, 1.0)",
        ),
        (
            lambda: fp.finish(mean=(0.0, float("nan"), 0.0)),
            "finish: mean wanted three finite numbers, came (0.0, nan, 0.0)",
        ),
        (lambda: fp.keep(visible=2.0), "keep: visible wanted a number in [0, 1], came 2.0"),
        (lambda: fp.keep(side=-1.0), "keep: side wanted a number >= 0, came -1.0"),
    ],
)
def test_an_option_out_of_range_is_refused(make: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        make()
