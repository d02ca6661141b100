"""Figures as it runs: who waits for whom."""

import pytest

from fnpipe.feed.stats import Stats, Tally


PARTS = {"draw": 1.0, "read": 7.0, "render": 1.5, "pack": 0.5}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (Stats(), "No batch has been handed out yet."),
        (
            Stats(9, waited=0.1, completed=0.1, consumed=9.8, parts=PARTS, ready=3.5, bound=4),
            "The consumer is the bottleneck: it waits for 1.0% of the time, and 3.5 of 4 batches "
            "lie ready when it asks.",
        ),
        (
            Stats(9, waited=0.1, completed=5.9, consumed=4.0, parts=PARTS),
            "The loader's own thread is the bottleneck: 59.0% of the time goes into moving batches "
            "and finishing them on the device.",
        ),
        (
            Stats(9, waited=6.0, completed=1.0, consumed=3.0, parts=PARTS),
            "Workers are the bottleneck: the consumer waits for 60.0% of the time, and 70% of "
            "their work is reading and decoding photos: hold them decoded in a pool, prepare "
            "smaller ones, or add workers.",
        ),
    ],
    ids=["none", "consumer", "thread", "workers"],
)
def test_the_bottleneck_in_a_sentence(given: Stats, sentence: str):
    assert given.bottleneck == sentence
    assert str(given).endswith(sentence)


def test_a_tally_becomes_figures():
    tally = Tally(bound=4, batches=2, waited=10**9, consumed=3 * 10**9, ready=3, bytes=2_000_000)
    made = tally.stats(PARTS, replaced=1)
    assert (made.waited, made.consumed, made.ready) == (1.0, 3.0, 1.5)
    assert str(made).splitlines()[:2] == [
        "2 batches, 2.0 MB, 1 replaced",
        "  waited        500.000 ms a batch",
    ]
    assert Tally(bound=4).stats({}, replaced=0).bottleneck == "No batch has been handed out yet."
