"""Where a worker makes a parcel: windows lie in their place at once, the rest comes behind them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fnpipe.feed.parcels import Left, Place, Sent
from fnpipe.feed.slab import SMALL, Slab
from fnpipe.packing import Packed


COUNT = SMALL // 4 + 5


def received(slab: Slab, sent: Sent | Left) -> Any:
    """What the loader makes of it."""
    if isinstance(sent, Sent):
        return sent.packed.unpack()
    return Packed(slab.view(sent.worker, sent.place, sent.size), sent.slots, sent.form).unpack()


def fill(words: Tensor) -> Tensor:
    return words.copy_(torch.arange(len(words)))


def free(slab: Slab, count: int) -> int:
    """How many places of worker 0 are free."""
    taken = [slab.take(0, 1) for _ in range(count)]
    return sum(t is not None for t in taken)


def test_windows_stay_where_they_were_cut():
    slab = Slab(1, 2, segments=True)
    place = Place(slab, 0)
    words = fill(place.empty(COUNT, dtype=torch.int32))
    numbers = torch.arange(7, dtype=torch.float64)
    sent = place.pack((numbers, words, None), ())
    assert isinstance(sent, Left)
    assert sent.segment is not None
    found = received(slab, sent)
    assert found[1].data_ptr() == words.data_ptr()
    assert torch.equal(found[1], torch.arange(COUNT, dtype=torch.int32))
    assert torch.equal(found[0], numbers)
    assert found[2] is None
    assert sent.size < 4 * COUNT + 200


def test_without_segments_they_lie_in_shared_memory_of_their_own():
    slab = Slab(1, 2, segments=False)
    place = Place(slab, 0)
    words = fill(place.empty(COUNT, dtype=torch.int32))
    sent = place.pack([words], ())
    assert isinstance(sent, Sent)
    assert sent.packed.buffer.is_shared()
    assert sent.packed.buffer.data_ptr() == words.data_ptr()
    assert torch.equal(received(slab, sent)[0], torch.arange(COUNT, dtype=torch.int32))
    assert free(slab, 2) == 2


@pytest.mark.parametrize("segments", [True, False])
def test_what_does_not_fit_behind_them_takes_another_place_with_them(segments: bool):
    slab = Slab(1, 2, segments=segments)
    place = Place(slab, 0)
    words = fill(place.empty(COUNT, dtype=torch.int32))
    more = torch.arange(2 * SMALL, dtype=torch.int64)
    sent = place.pack([words, more], ())
    found = received(slab, sent)
    assert found[0].data_ptr() != words.data_ptr()
    assert torch.equal(found[0], torch.arange(COUNT, dtype=torch.int32))
    assert torch.equal(found[1], more)
    assert free(slab, 2) == (1 if segments else 2)


def test_few_windows_lie_among_the_small_parcels():
    slab = Slab(1, 1, segments=True)
    place = Place(slab, 0)
    sent = place.pack([fill(place.empty(10, dtype=torch.int32))], ())
    assert isinstance(sent, Left)
    assert sent.segment is None
    assert received(slab, sent)[0].tolist() == list(range(10))


def test_a_sample_that_fails_leaves_its_place():
    slab = Slab(1, 1, segments=True)
    place = Place(slab, 0)
    place.empty(COUNT, dtype=torch.int32)
    again = fill(place.empty(2 * COUNT, dtype=torch.int32))  # the batch with another sample
    assert isinstance(place.pack([again], ()), Left)
    slab.free(0, 0)
    other = Place(slab, 0)
    other.empty(COUNT, dtype=torch.int32)
    assert free(slab, 1) == 0
    other.leave()
    assert free(slab, 1) == 1
