"""A draw depends on (seed, epoch, sample, name) and on nothing else. Each law also meets its bugs.

A law is made for an implementation, so that the planted bugs below can be shown to break it.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fnpipe.keys import (
    MASK,
    Key,
    bernoulli,
    fold_in,
    integers,
    key,
    partners,
    permute,
    philox,
    uniform,
    unpermute,
    words,
)


Draw = Callable[[Key], Tensor]
Law = Callable[[], None]
examples = settings(max_examples=50, deadline=None, database=None)
counterexample = settings(examples, phases=[Phase.generate])

seeds = st.integers(-(2**63), 2**64 - 1)
word = st.integers(0, MASK) | st.sampled_from([0, 1, 2**31 - 1, 2**31, MASK])
names = st.text(min_size=1, max_size=8)
places = st.tuples(seeds, word, word, names)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Key, Tensor]:
    """A key of a few samples and some of its rows: in any order, repeated, missing."""
    rows = draw(st.lists(st.tuples(word, word), min_size=1, max_size=8))
    epoch, sample = torch.tensor(rows).unbind(1)
    made = fold_in(key(seed=draw(seeds), epoch=epoch, sample=sample), draw(names))
    index = st.integers(0, len(rows) - 1)
    return made, torch.tensor(draw(st.lists(index, max_size=8)), dtype=torch.int64)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two places that careless mixing would make one."""
    seed, epoch, sample, name = draw(places)
    seed %= 2**64
    others = [
        ((seed + 2**32) % 2**64, epoch, sample, name),
        ((seed & MASK) << 32 | seed >> 32, epoch, sample, name),
        ((seed + 1) % 2**64, (epoch - 1) & MASK, sample, name),
        (seed, sample, epoch, name),
        (seed, (epoch + 1) & MASK, (sample - 1) & MASK, name),
        (seed, epoch ^ 2**31, sample, name),
        (seed, epoch, sample, f"{name}/{name}"),
        (seed, epoch, sample, f"{name[::-1]}'"),
    ]
    here = seed, epoch, sample, name
    return here, draw(st.sampled_from(others).filter(lambda there: there != here))


def alone_as_in_company(draw: Draw) -> Law:
    """Any rows of a batch, in any order, draw what they draw in the batch."""

    @given(batches())
    def law(made: tuple[Key, Tensor]) -> None:
        batch, rows = made
        some = Key(batch.seed, batch.epoch[rows], batch.sample[rows], batch.name)
        assert torch.equal(draw(some), draw(batch)[rows])

    return law


def again_as_before(draw: Draw) -> Law:
    """The number of calls so far is not in a draw."""

    @given(batches())
    def law(made: tuple[Key, Tensor]) -> None:
        assert torch.equal(draw(made[0]), draw(made[0]))

    return law


def unmoved_by_other_stages(stage_key: Callable[[Key, list[str], int], Key]) -> Law:
    """Inserting a stage into a pipeline reseeds no other stage."""

    @given(st.lists(names, min_size=1, max_size=4, unique=True), st.data(), places)
    def law(pipeline: list[str], data: st.DataObject, place: Any) -> None:
        root = key(seed=place[0], epoch=place[1], sample=place[2])
        at = data.draw(st.integers(0, len(pipeline)))
        longer = [*pipeline[:at], data.draw(names.filter(lambda n: n not in pipeline))]
        longer += pipeline[at:]
        for i, name in enumerate(pipeline):
            before = words(stage_key(root, pipeline, i), 4)
            assert torch.equal(words(stage_key(root, longer, longer.index(name)), 4), before)

    return law


def apart_at_other_places(draw: Callable[[int, int, int, str], Tensor]) -> Law:
    """Neighbouring seeds, epochs, samples and names share no draw (but with chance 2**-32)."""

    @given(neighbours())
    def law(pair: tuple[Any, Any]) -> None:
        assert not torch.equal(draw(*pair[0]), draw(*pair[1]))

    return law


def fewer_are_the_first_of_more(draw: Callable[[Key, int], Tensor]) -> Law:
    @given(batches(), st.integers(0, 20), st.integers(0, 20))
    def law(made: tuple[Key, Tensor], few: int, extra: int) -> None:
        assert torch.equal(draw(made[0], few), draw(made[0], few + extra)[:, :few])

    return law


def the_same_in_every_reading(function: Callable[..., Any]) -> Law:
    """Python's integers cannot overflow: NumPy's and torch's int64 must agree with them."""

    @given(st.lists(st.tuples(*[word] * 6), min_size=1, max_size=8))
    def law(rows: list[Any]) -> None:
        want = [philox(row[:4], row[4:]) for row in rows]
        for read in (np.array, torch.tensor):
            columns = [read(column) for column in zip(*rows, strict=True)]
            got = function(tuple(columns[:4]), tuple(columns[4:]))
            assert list(zip(*(column.tolist() for column in got), strict=True)) == want

    return law


def within_bounds(draw: Callable[..., Tensor]) -> Law:
    """[low, high), also where there are only a few floats between the two."""

    @given(
        batches(),
        st.floats(-1e6, 1e6, width=32),
        st.integers(1, 5) | st.integers(1, 2**22),
        st.sampled_from([(torch.float32, np.float32), (torch.float64, np.float64)]),
    )
    def law(made: tuple[Key, Tensor], low: float, steps: int, kinds: Any) -> None:
        dtype, real = kinds
        high = float(real(low) + real(steps) * np.spacing(real(abs(low))))
        drawn = draw(made[0], 64, low=low, high=high, dtype=dtype)
        assert (drawn >= low).all()
        assert (drawn < high).all()

    return law


def others_of_the_population(draw: Callable[[Key, int, int], Tensor]) -> Law:
    @given(st.data(), st.integers(2, 2**32) | st.integers(2, 4), seeds)
    def law(data: st.DataObject, population: int, seed: int) -> None:
        own = st.integers(0, population - 1) | st.sampled_from([0, population - 1])
        sample = torch.tensor(data.draw(st.lists(own, min_size=1, max_size=4)))
        drawn = draw(key(seed=seed, epoch=0, sample=sample), 32, population)
        assert (drawn != sample[:, None]).all()
        assert ((drawn >= 0) & (drawn < population)).all()

    return law


def an_order_of_all(order: Callable[..., Tensor]) -> Law:
    """A bijection of [0, size); one position alone gives what it gives among all."""

    @given(st.integers(1, 40) | st.integers(1, 500), seeds, word, st.data())
    def law(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
        everyone = torch.arange(size)
        drawn = order(everyone, size, seed=seed, epoch=epoch)
        assert torch.equal(drawn.sort().values, everyone)
        rows = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8)))
        assert torch.equal(order(rows, size, seed=seed, epoch=epoch), drawn[rows])

    return law


def undone(inverse: Callable[..., Tensor]) -> Law:
    @given(st.integers(1, 20) | st.integers(1, 2**32), seeds, word, st.data())
    def law(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
        some = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8)))
        order = permute(some, size, seed=seed, epoch=epoch)
        assert torch.equal(inverse(order, size, seed=seed, epoch=epoch), some)

    return law


DRAWS: dict[str, Draw] = {
    "words": lambda key: words(key, 5),
    "uniform": lambda key: uniform(key, 2, 3, low=-1.0, high=3.0, dtype=torch.float32),
    "bernoulli": lambda key: bernoulli(key, 0.5, 4),
    "integers": lambda key: integers(key, 2**31 + 1, 4),  # rejects half of all words
    "partners": lambda key: partners(key, 3, 2**32),
}
ordinal = itertools.count()


def place_words(seed: int, epoch: int, sample: int, name: str) -> Tensor:
    return words(fold_in(key(seed=seed, epoch=epoch, sample=sample), name), 4)


def stage_key(root: Key, pipeline: list[str], index: int) -> Key:
    return fold_in(root, pipeline[index])


def numbered_rows(key: Key) -> Tensor:
    return words(key.replace(sample=torch.arange(len(key.sample))), 4)


def counted_calls(key: Key) -> Tensor:
    return words(fold_in(key, f"{next(ordinal)}"), 4)


def shared_rejections(key: Key) -> Tensor:
    """Rejected words are left out of one stream for all, so what follows moves up."""
    bound, needed = 2**31 + 1, 4 * len(key.sample)
    stream = words(key, 40).flatten()
    return stream[stream < bound][:needed].view(-1, 4)


def sums_epoch_and_sample(seed: int, epoch: int, sample: int, name: str) -> Tensor:
    return place_words(seed, 0, (epoch + sample) & MASK, name)


def drops_the_high_seed(seed: int, epoch: int, sample: int, name: str) -> Tensor:
    return place_words(seed & MASK, epoch, sample, name)


def forgets_the_name(seed: int, epoch: int, sample: int, name: str) -> Tensor:
    return place_words(seed, epoch, sample, "stage")


def blocks_last_first(key: Key, count: int) -> Tensor:
    return words(key, 4 * -(-count // 4)).flip(-1)[:, :count]


def numbered_key(root: Key, pipeline: list[str], index: int) -> Key:
    return fold_in(root, f"{index}")


def half_signed(counter: Any, key: Any) -> Any:
    """Words held as int32 and widened again."""
    signed = tuple((c + 2**31) % 2**32 - 2**31 for c in counter)
    return philox(signed, key)


def swapped_key(counter: Any, key: Any) -> Any:
    return philox(counter, key[::-1])


def unclamped(key: Key, *shape: int, low: float, high: float, dtype: torch.dtype) -> Tensor:
    return (low + uniform(key, *shape) * (high - low)).to(dtype)


def anyone(key: Key, count: int, population: int) -> Tensor:
    return integers(key, population, count)


def never_the_last(key: Key, count: int, population: int) -> Tensor:
    own = key.sample[..., None]
    drawn = integers(key, population - 1, count)
    return torch.where(drawn == own, drawn + 2, drawn)


def wraps_instead_of_walking(positions: Tensor, size: int, *, seed: int, epoch: int) -> Tensor:
    larger = (math.isqrt(size) + 1) ** 2
    return permute(positions, larger, seed=seed, epoch=epoch) % size


def sorts_the_positions_given(positions: Tensor, size: int, *, seed: int, epoch: int) -> Tensor:
    noise = uniform(key(seed=seed, epoch=epoch, sample=0), len(positions))
    return noise.argsort() if len(positions) == size else noise.argsort() % size


@pytest.mark.parametrize(
    ("law", "implementation"),
    [
        *(pytest.param(alone_as_in_company, draw, id=f"company-{n}") for n, draw in DRAWS.items()),
        *(pytest.param(again_as_before, draw, id=f"again-{n}") for n, draw in DRAWS.items()),
        (unmoved_by_other_stages, stage_key),
        (apart_at_other_places, place_words),
        (fewer_are_the_first_of_more, words),
        (fewer_are_the_first_of_more, uniform),
        (fewer_are_the_first_of_more, lambda key, count: integers(key, 2**31 + 1, count)),
        (the_same_in_every_reading, philox),
        (within_bounds, uniform),
        (others_of_the_population, partners),
        (an_order_of_all, permute),
        (an_order_of_all, unpermute),
        (undone, unpermute),
    ],
)
def test_law(law: Callable[[Any], Law], implementation: Any):
    examples(law(implementation))()


@pytest.mark.parametrize(
    ("law", "bug"),
    [
        (alone_as_in_company, numbered_rows),
        (alone_as_in_company, shared_rejections),
        (again_as_before, counted_calls),
        (unmoved_by_other_stages, numbered_key),
        (apart_at_other_places, sums_epoch_and_sample),
        (apart_at_other_places, drops_the_high_seed),
        (apart_at_other_places, forgets_the_name),
        (fewer_are_the_first_of_more, blocks_last_first),
        (the_same_in_every_reading, half_signed),
        (the_same_in_every_reading, swapped_key),
        (within_bounds, unclamped),
        (others_of_the_population, anyone),
        (others_of_the_population, never_the_last),
        (an_order_of_all, wraps_instead_of_walking),
        (an_order_of_all, sorts_the_positions_given),
        (undone, permute),
    ],
)
def test_planted_bug_breaks_its_law(law: Callable[[Any], Law], bug: Any):
    with pytest.raises(AssertionError):
        counterexample(law(bug))()


def test_compiled_as_eager():
    """NumPy draws on the CPU in eager; here the same integers come out of torch's own operators."""

    @torch.compile(fullgraph=True)
    def draw(key: Key) -> Tensor:
        return uniform(fold_in(key, "stage"), 3, low=0.5, high=1.5, dtype=torch.float32)

    made = key(seed=-1, epoch=3, sample=torch.arange(64))
    want = uniform(fold_in(made, "stage"), 3, low=0.5, high=1.5, dtype=torch.float32)
    assert torch.equal(draw(made), want)
