"""Runs end to end in one array: their offsets, and items of some of them."""

import numpy as np
import torch

from fnpipe.ops.ragged import gather_ragged, offsets_of, ranges


def test_offsets_have_an_end_more_than_there_are_runs():
    assert offsets_of(torch.tensor([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert offsets_of(torch.zeros(0, dtype=torch.int64)).tolist() == [0]


def test_ranges_come_in_the_order_asked_for():
    assert ranges(np.array([7, 0, 3]), np.array([2, 0, 3])).tolist() == [7, 8, 3, 4, 5]
    assert ranges(np.array([], int), np.array([], int)).tolist() == []


def test_gather_ragged_follows_the_order_asked_for():
    index, offsets = gather_ragged(torch.tensor([0, 2, 2, 5]), torch.tensor([2, 0, 1, 2]))
    assert index.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert offsets.tolist() == [0, 3, 5, 5, 8]


def test_gather_ragged_of_no_row():
    index, offsets = gather_ragged(torch.tensor([0, 2]), torch.zeros(0, dtype=torch.int64))
    assert index.tolist() == []
    assert offsets.tolist() == [0]
