"""Schedules: values of the epoch and of the batch, and nothing else."""

import pickle
import re
from collections import Counter
from typing import Any

import pytest

import fnpipe as fp
from fnpipe.schedules import value_at, values_of
from fnpipe.types import ArgumentError


def test_a_value_holds_from_its_epoch_on():
    made = fp.schedule({10: "c", 0: "a", 3: "b"})
    assert [made.at(epoch) for epoch in (0, 2, 3, 9, 10, 10**6)] == ["a", "a", "b", "b", "c", "c"]


def test_it_is_a_value():
    made = fp.schedule({0: fp.pipe(fp.mosaic(8)), 2: fp.pipe(fp.letterbox(8))})
    assert repr(made) == "schedule({0: pipe(mosaic(8)), 2: pipe(letterbox(8))})"
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))
    sizes = fp.buckets(8, 16)
    assert repr(sizes) == "buckets(8, 16)"
    assert pickle.loads(pickle.dumps(sizes)) == sizes


def test_mapping_goes_over_every_value():
    assert fp.schedule({0: 1, 5: 2}).map(str) == fp.schedule({0: "1", 5: "2"})
    assert fp.buckets(1, 2).map(str) == fp.buckets("1", "2")


def test_buckets_are_drawn_evenly_from_seed_epoch_and_step():
    sizes = fp.buckets(320, 640, 960)
    first = [sizes.at(0, 0, step) for step in range(3000)]
    counts = Counter(first)
    # Three standard deviations of a third of 3000 are 77.
    assert all(abs(counts[size] - 1000) < 78 for size in (320, 640, 960))
    assert first == [sizes.at(0, 0, step) for step in range(3000)]
    others = [[sizes.at(*at, step) for step in range(3000)] for at in ((1, 0), (0, 1), (2**40, 0))]
    assert all(other != first for other in others)
    assert sizes.at(-1, 3, 4) == sizes.at(2**64 - 1, 3, 4)


def test_they_nest():
    given = fp.schedule({0: fp.buckets("a", "b"), 5: fp.schedule({0: "c", 6: "d"})})
    found = {value_at(given, seed=0, epoch=0, step=step) for step in range(20)}
    assert found == {"a", "b"}
    assert value_at(given, seed=0, epoch=5, step=1) == "c"
    assert value_at(given, seed=0, epoch=6, step=1) == "d"
    assert value_at("plain", seed=0, epoch=6, step=1) == "plain"
    assert values_of(given) == ("a", "b", "c", "d")
    assert values_of(fp.buckets(1, 1, 2)) == (1, 2)
    assert values_of(7) == (7,)


def test_buckets_in_buckets_are_drawn_each_alone():
    given = fp.buckets(fp.buckets("a", "b"), fp.schedule({0: fp.buckets("c", "d")}))
    found = Counter(value_at(given, seed=0, epoch=0, step=step) for step in range(1000))
    assert sorted(found) == ["a", "b", "c", "d"]
    assert min(found.values()) > 200  # 250 each, with a deviation of 14


@pytest.mark.parametrize(
    "values", [{}, {1: "a"}, {-1: "a", 0: "b"}, {0: "a", 0.5: "b"}, {0: 1, "9": 2}]
)
def test_a_schedule_begins_at_zero(values: Any):
    message = f"schedule wanted epochs from 0 on as keys, came {[*values]}"
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        fp.schedule(values)


def test_empty_buckets_are_refused():
    with pytest.raises(ArgumentError, match=r"^buckets wanted at least one value, came none$"):
        fp.buckets()
