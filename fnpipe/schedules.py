"""Values that change as training goes on: pure functions of where a batch is.

Where a loader takes a pipeline it takes these as well, and workers that are already in the next
epoch use what belongs to it::

    recipe = schedule({0: train, 90: without_mosaic})
    recipe = buckets(512, 640, 768).map(lambda size: pipe(mosaic(size), flip(horizontal=0.5)))
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fnpipe.keys import MASK, digest, philox
from fnpipe.types import ArgumentError


@dataclass(frozen=True, repr=False)
class Schedule:
    """A value of the epoch; :func:`schedule` builds it. ``values[i]`` holds from ``starts[i]``."""

    starts: tuple[int, ...]
    values: tuple[Any, ...]

    def __repr__(self) -> str:
        pairs = zip(self.starts, self.values, strict=True)
        return f"schedule({{{', '.join(f'{start}: {value!r}' for start, value in pairs)}}})"

    def at(self, epoch: int) -> Any:
        """The value of an epoch."""
        return self.values[bisect_right(self.starts, epoch) - 1]

    def map(self, fn: Callable[[Any], Any]) -> "Schedule":
        """The schedule of ``fn(value)``: of sizes, say, into one of pipelines."""
        return Schedule(self.starts, tuple(map(fn, self.values)))


@dataclass(frozen=True, repr=False)
class Buckets:
    """A value drawn for every batch; :func:`buckets` builds it."""

    values: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"buckets({', '.join(map(repr, self.values))})"

    def at(self, seed: int, epoch: int, step: int, *, depth: int = 0) -> Any:
        """The value of a batch: one Philox word at (seed, epoch, step) chooses.

        ``depth`` counts the buckets that these lie in: each of them has a word of its own.
        """
        counter = (depth, step, epoch, digest("buckets"))
        word, *_ = philox(counter, (seed & MASK, (seed >> 32) & MASK))
        # The share of a value is off by less than 2**-32.
        return self.values[(word * len(self.values)) >> 32]

    def map(self, fn: Callable[[Any], Any]) -> "Buckets":
        """The buckets of ``fn(value)``: of sizes, say, into ones of pipelines."""
        return Buckets(tuple(map(fn, self.values)))


def schedule(values: Mapping[int, Any]) -> Schedule:
    """A value of the epoch: ``{0: a, 90: b}`` is ``a`` in epochs 0 to 89 and ``b`` from 90 on.

    >>> schedule({0: 64, 90: 32}).at(89), schedule({0: 64, 90: 32}).at(90)
    (64, 32)

    Values may be anything: pipelines, stages, sizes, schedules and buckets again. Errors:
    ArgumentError unless the keys are epochs >= 0 and 0 is one of them.
    """
    if 0 not in values or not all(type(start) is int and start >= 0 for start in values):
        raise ArgumentError(f"schedule wanted epochs from 0 on as keys, came {[*values]}")
    starts = tuple(sorted(values))
    return Schedule(starts, tuple(values[start] for start in starts))


def buckets(*values: Any) -> Buckets:
    """One of ``values`` for every batch, each as likely, drawn from (seed, epoch, step).

    A name again is more weight. All ranks of a step draw the same, and what is compiled is compiled
    once a value, however many batches come. Errors: ArgumentError where there is none.
    """
    if not values:
        raise ArgumentError("buckets wanted at least one value, came none")
    return Buckets(values)


def value_at(given: Any, *, seed: int, epoch: int, step: int) -> Any:
    """What a schedule or buckets, nested to any depth, give for a batch; all else is itself."""
    depth = 0
    while isinstance(given, Schedule | Buckets):
        if isinstance(given, Schedule):
            given = given.at(epoch)
        else:
            given, depth = given.at(seed, epoch, step, depth=depth), depth + 1
    return given


def values_of(given: Any) -> tuple[Any, ...]:
    """Every value that can come of it, each once, in order."""
    if not isinstance(given, Schedule | Buckets):
        return (given,)
    return tuple(dict.fromkeys(v for inner in given.values for v in values_of(inner)))
