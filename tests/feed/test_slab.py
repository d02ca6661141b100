"""Places for small parcels: who may write where, and when."""

import pytest
import torch

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.feed import slab as slabs
from fnpipe.feed.slab import Slab
from fnpipe.testing import assert_same_bits


class Copy:
    """Stands in for a CUDA event."""

    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = True


def test_a_worker_takes_each_of_its_places_once():
    slab = Slab(2, 3, segments=False)
    taken = [slab.take(1, 5) for _ in range(4)]
    assert [None if t is None else slab.place(1, t) for t in taken] == [0, 1, 2, None]
    assert slab.take(0, 5) is not None
    slab.free(1, 2)
    again = slab.take(1, 7)
    assert again is not None
    assert (slab.place(1, again), again.numel()) == (2, 7)


def test_a_place_is_a_place_of_one_worker_alone():
    slab = Slab(2, 2, segments=False)
    rooms = [slab.take(worker, 4) for worker in (0, 0, 1, 1)]
    for number, room in enumerate(rooms):
        assert room is not None
        room.fill_(number)
    assert [slab.view(w, p, 4).tolist() for w in (0, 1) for p in (0, 1)] == [
        [n] * 4 for n in range(4)
    ]


def test_what_is_too_large_finds_no_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slabs, "SMALL", 8192)
    slab = Slab(1, 1, segments=False)
    assert slab.take(0, 8193) is None
    assert slab.take(0, 8192) is not None


def test_all_places_together_are_bounded():
    slab = Slab(14, 10, segments=False)
    assert slab.take(13, slabs.ALL // 140 + 1) is None
    assert slab.take(13, slabs.ALL // 140 // slabs.PAGE * slabs.PAGE) is not None


def test_a_buffer_elsewhere_is_no_place():
    assert Slab(1, 1, segments=False).place(0, torch.zeros(3, dtype=torch.uint8)) is None


def test_a_place_is_free_when_its_copy_is_done():
    slab, copy = Slab(1, 1, segments=False), Copy()
    slab.take(0, 4)
    slab.free(0, 0, after=copy)
    assert slab.take(0, 4) is None
    copy.done = True
    slab.look()
    assert slab.take(0, 4) is not None


def test_places_are_freed_in_the_order_of_copies():
    slab, first, second = Slab(1, 2, segments=False), Copy(), Copy()
    slab.take(0, 4)
    slab.take(0, 4)
    second.done = True
    slab.free(0, 0, after=first)
    slab.free(0, 1, after=second)
    assert slab.take(0, 4) is None  # the stream copies in order: this one cannot be done yet
    first.done = True
    slab.look()
    assert slab.take(0, 4) is not None


def test_clearing_waits_for_copies():
    slab, copy = Slab(1, 1, segments=False), Copy()
    slab.take(0, 4)
    slab.free(0, 0, after=copy)
    slab.clear()
    assert copy.done
    assert slab.take(0, 4) is not None


def test_no_memory_means_no_places(monkeypatch: pytest.MonkeyPatch):
    whole = torch.UntypedStorage._new_shared

    def refuse(size: int) -> torch.UntypedStorage:
        if size > 4:  # a byte a place
            raise RuntimeError("No space left on device")
        return whole(size)

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", refuse)
    slab = Slab(2, 2, segments=False)
    assert slab.take(0, 1) is None
    assert slab.place(0, torch.zeros(1, dtype=torch.uint8)) is None


def test_a_worker_and_the_loader_see_the_same():
    slab = Slab(1, 1, segments=False)
    other = object.__new__(Slab)
    other.__setstate__(slab.__getstate__())
    room = other.take(0, 3)
    assert room is not None
    room.fill_(9)
    assert slab.view(0, 0, 3).tolist() == [9, 9, 9]
    assert slab.take(0, 3) is None
    slab.free(0, 0)
    assert other.take(0, 3) is not None


class Known(slabs.Locked):
    """Pages that are not locked: there is no GPU to lock them for."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.error = memory, ""


def told(worker: Slab, place: int) -> torch.Tensor:
    news = worker.news(0, place)
    assert news is not None
    return news


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[Slab, Slab]:
    """A slab with small places, as a worker and as the loader sees it."""
    monkeypatch.setattr(slabs, "SMALL", 4096)
    monkeypatch.setattr(slabs, "Locked", Known)
    slab = Slab(1, 2, segments=True)
    other = object.__new__(Slab)
    other.__setstate__(slab.__getstate__())
    return other, slab


def test_what_is_large_lies_in_a_segment_that_is_told_of_once(both: tuple[Slab, Slab]):
    worker, loader = both
    room = worker.take(0, 5000)
    assert room is not None
    room.fill_(7)
    assert worker.place(0, room) == 0
    loader.learn(0, 0, told(worker, 0))
    assert loader.view(0, 0, 5000).tolist() == [7] * 5000
    loader.free(0, 0)
    again = worker.take(0, 5000)
    assert again is not None
    assert again.data_ptr() == room.data_ptr()
    assert worker.news(0, 0) is None


def test_a_segment_that_has_become_too_small_is_made_anew(both: tuple[Slab, Slab]):
    worker, loader = both
    first = worker.take(0, 5000)
    loader.learn(0, 0, told(worker, 0))
    loader.free(0, 0)
    assert first is not None
    first.fill_(1)
    larger = worker.take(0, 50_000)
    assert larger is not None
    larger.fill_(2)
    loader.learn(0, 0, told(worker, 0))
    assert loader.view(0, 0, 50_000).tolist() == [2] * 50_000
    assert first.tolist() == [1] * 5000
    loader.free(0, 0)
    again = worker.take(0, 60_000)  # there is room to grow now
    assert again is not None
    assert again.data_ptr() == larger.data_ptr()
    assert worker.news(0, 0) is None


def test_a_small_parcel_in_a_place_with_a_segment(both: tuple[Slab, Slab]):
    worker, loader = both
    worker.take(0, 5000)
    loader.learn(0, 0, told(worker, 0))
    loader.free(0, 0)
    room = worker.take(0, 5)
    assert room is not None
    room.fill_(3)
    assert (worker.place(0, room), worker.news(0, 0)) == (0, None)
    assert loader.view(0, 0, 5).tolist() == [3] * 5


def test_what_was_told_to_a_stream_that_was_left_is_told_again(both: tuple[Slab, Slab]):
    worker, loader = both
    room = worker.take(0, 5000)
    assert room is not None
    worker.news(0, 0)  # lost
    loader.clear()
    worker.tell_again()
    assert worker.take(0, 5000) is not None
    loader.learn(0, 0, told(worker, 0))
    room.fill_(4)
    assert loader.view(0, 0, 5000).tolist() == [4] * 5000


@pytest.mark.parametrize("place", [0, 4096, 2**20])
def test_batches_are_the_same_wherever_parcels_lie(
    photos: Dataset, place: int, monkeypatch: pytest.MonkeyPatch
):
    """Every batch is kept, so a place that were handed out itself would change under it."""
    monkeypatch.setattr(slabs, "SMALL", place)
    recipe = fp.pipe(fp.resize(16), fp.flip(horizontal=0.5))
    options = {"batch_size": 2, "seed": 0, "worker_backend": "eager", "backend": "eager"}
    with fp.Loader(photos, recipe, workers=2, start_method="fork", **options) as loader:
        kept = [batch for _ in range(3) for batch in loader]
    alone = fp.Loader(photos, recipe, **options)
    expected = [batch for _ in range(3) for batch in alone]
    assert len(kept) == len(expected)
    for mine, other in zip(kept, expected, strict=True):
        assert_same_bits(mine, other)
