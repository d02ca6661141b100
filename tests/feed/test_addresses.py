"""Addresses: what an epoch's batches hold, and which comes after which."""

import re
from itertools import islice
from typing import Any

import pytest
import torch

import fnpipe as fp
from fnpipe.feed.addresses import GROUP, Address, Addresses, Epochs
from fnpipe.feed.ranks import Share
from fnpipe.keys import permute
from fnpipe.types import ArgumentError


@pytest.mark.parametrize("stride", [1, 2, 3, 14])
@pytest.mark.parametrize("share", [Share(), Share(0, 2), Share(1, 2), Share(6, 7)])
def test_looking_up_many_batches_at_once_changes_none(stride: int, share: Share):
    epochs = Epochs(5 * (GROUP * 14 + 3) + 2, 5, 3)
    order = permute(torch.arange(epochs.count), epochs.count, seed=3, epoch=2)
    for step in (0, 1, GROUP - 1, GROUP, GROUP * stride, epochs.steps(2) - 1):
        own = share.of(epochs.places(2, step))
        found = epochs.ids(Address(2, step, share), stride=stride)
        assert found.tolist() == order[own.start : own.stop].tolist()


def test_without_shuffling_places_are_samples():
    epochs = Epochs(10, 4, 0, shuffle=False)
    assert epochs.ids(Address(7, 2)).tolist() == [8, 9]
    assert epochs.ids(Address(7, 0, Share(1, 2))).tolist() == [2, 3]


def test_an_epoch_ends_and_the_next_begins():
    epochs = Epochs(10, 4, 0)
    found = [(a.epoch, a.step) for a in islice(Addresses(epochs, start=Address(0, 1)), 6)]
    assert found == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    rest = [(a.epoch, a.step) for a in Addresses(epochs, ahead=False, start=Address(4, 1))]
    assert rest == [(4, 1), (4, 2)]
    sent = next(iter(Addresses(epochs, start=Address(4, 1, Share(1, 2), 9))))
    assert sent == (4, 1, (1, 2), 9)


def test_the_size_of_batches_and_with_it_of_epochs_may_be_scheduled():
    epochs = Epochs(10, fp.schedule({0: 4, 2: 5, 3: 20}), 0)
    assert [epochs.steps(epoch) for epoch in range(4)] == [3, 3, 2, 1]
    found = [(a.epoch, a.step) for a in islice(Addresses(epochs, start=Address(1, 1)), 6)]
    assert found == [(1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (4, 0)]
    assert len(epochs.ids(Address(2, 1))) == 5


def test_an_epoch_may_be_limited():
    assert [Epochs(10, 4, 0, limit=n).steps(0) for n in (1, 2, 3, 99)] == [1, 2, 3, 3]
    assert Epochs(10, 4, 0, drop_last=True).steps(0) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size wanted an integer >= 1, came 0"),
        ({"batch_size": 2.0}, "batch_size wanted an integer >= 1, came 2.0"),
        ({"batch_size": True}, "batch_size wanted an integer >= 1, came True"),
        (
            {"batch_size": fp.schedule({0: 4, 5: 11}), "drop_last": True},
            "drop_last leaves no batch: 10 photos, batch_size 11",
        ),
        ({"batch_size": 4, "limit": 0}, "limit wanted an integer >= 1, came 0"),
    ],
)
def test_an_epoch_without_a_batch_is_refused(given: dict[str, Any], message: str):
    epochs = Epochs(10, 4, 0)
    for name, wrong in given.items():
        object.__setattr__(epochs, name, wrong)
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        epochs.check()
