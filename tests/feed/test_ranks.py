"""Ranks: parts of a batch that touch, never overlap, and need no word between processes."""

import re

import pytest

from fnpipe.feed.ranks import Share, share
from fnpipe.types import ArgumentError


@pytest.mark.parametrize("count", [0, 1, 3, 4, 64, 65])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_parts_in_order_are_the_batch(count: int, world_size: int):
    places = range(100, 100 + count)
    parts = [Share(rank, world_size).of(places) for rank in range(world_size)]
    assert [i for part in parts for i in part] == list(places)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_the_first_ranks_have_what_there_is():
    assert [len(Share(rank, 4).of(range(1))) for rank in range(4)] == [1, 0, 0, 0]


def test_one_process_has_all():
    assert share(None, None) == Share(0, 1)
    assert share(2, 5) == Share(2, 5)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, None), (None, 2), (0, 0)])
def test_a_rank_outside_its_world_is_refused(rank: int | None, world_size: int | None):
    message = f"rank, world_size wanted 0 <= rank < world_size, came {rank}, {world_size}"
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        share(rank, world_size)
