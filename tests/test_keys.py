"""Draws against published vectors, NumPy's and Triton's Philox, and against chance."""

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor
from torch.utils import _pytree as pytree

from fnpipe import keys
from fnpipe.keys import (
    MASK,
    Key,
    bernoulli,
    digest,
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
from fnpipe.types import ArgumentError


# Counter, key and result of Philox4x32-10: Random123's own known-answer vectors.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
READINGS = {
    "int": int,
    "numpy": np.int64,
    "torch": torch.tensor,
}
TRITON = """
import json
import torch
import triton
import triton.language as tl

@triton.jit
def draw(out, seed, c0, c1, c2, c3, plain: tl.constexpr):
    at = tl.arange(0, 16)
    if plain:
        a, b, c, d = tl.randint4x(seed, tl.load(c0 + at))
    else:
        a, b, c, d = tl.philox(
            seed, tl.load(c0 + at), tl.load(c1 + at), tl.load(c2 + at), tl.load(c3 + at)
        )
    tl.store(out + at, a.to(tl.uint32))
    tl.store(out + 16 + at, b.to(tl.uint32))
    tl.store(out + 32 + at, c.to(tl.uint32))
    tl.store(out + 48 + at, d.to(tl.uint32))

counter = torch.tensor({counter}, dtype=torch.int64).to(torch.uint32)
out = torch.zeros(2, 4, 16, dtype=torch.int64)
for plain in (0, 1):
    draw[(1,)](out[plain], {seed}, *counter, plain)
print(json.dumps(out.tolist()))
"""


def reference(counter: Any, key: Any, *, width: int = 32) -> tuple[int, ...]:
    """Philox4x32-10 or 4x64-10 in Python's integers, written from the paper."""
    m0, m1, w0, w1 = {
        32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
        64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
    }[width]
    (c0, c1, c2, c3), (k0, k1), base = counter, key, 2**width
    for _ in range(10):
        (high0, low0), (high1, low1) = divmod(m0 * c0, base), divmod(m1 * c2, base)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + w0) % base, (k1 + w1) % base
    return c0, c1, c2, c3


def random_words(*shape: int, seed: int = 0) -> list[Any]:
    return np.random.default_rng(seed).integers(0, 2**32, size=shape).tolist()


def batch(n: int, *, epoch: int = 0, name: str = "stage") -> Key:
    return fold_in(key(seed=0, epoch=epoch, sample=torch.arange(n)), name)


def deviations(counts: Tensor | np.ndarray) -> float:
    """How many standard deviations the chi-square of equally likely cells is from its mean."""
    counts = np.asarray(counts, dtype=np.float64).ravel()
    expected = counts.mean()
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def meets_known_answers(function: Callable[..., Any], read: Callable[[int], Any] = int) -> None:
    for counter, key_words, want in KNOWN_ANSWERS:
        got = function(tuple(map(read, counter)), tuple(map(read, key_words)))
        assert tuple(map(int, got)) == want


@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
def test_philox_gives_the_published_words(read: Callable[[int], Any]):
    meets_known_answers(philox, read)


def test_known_answers_catch_swapped_key_words():
    with pytest.raises(AssertionError):
        meets_known_answers(lambda counter, key: philox(counter, key[::-1]))


@pytest.mark.parametrize(
    ("constant", "wrong"),
    [
        ("MULTIPLIERS", keys.MULTIPLIERS[::-1]),
        ("MULTIPLIERS", (keys.MULTIPLIERS[0], keys.MULTIPLIERS[1] + 1)),
        ("KEY_STEPS", keys.KEY_STEPS[::-1]),
        ("KEY_STEPS", (keys.KEY_STEPS[0], keys.KEY_STEPS[1] - 1)),
    ],
)
def test_known_answers_catch_a_wrong_constant(
    monkeypatch: pytest.MonkeyPatch, constant: str, wrong: tuple[int, int]
):
    monkeypatch.setattr(keys, constant, wrong)
    with pytest.raises(AssertionError):
        meets_known_answers(philox)


def test_reference_at_64_bits_is_numpys_philox():
    """So the reference's rounds are right; at 32 bits only its constants are others."""
    for c0, k0, k1 in random_words(20, 3):
        start = np.array([c0, 3, 5, 7], dtype=np.uint64)
        numpys = np.random.Philox(counter=start, key=np.array([k0, k1], dtype=np.uint64))
        # NumPy counts up before it draws.
        want = reference((c0 + 1, 3, 5, 7), (k0, k1), width=64)
        assert tuple(numpys.random_raw(4).tolist()) == want


def test_reference_at_32_bits_gives_the_published_words():
    meets_known_answers(reference)


@pytest.mark.parametrize("read", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_philox_is_the_reference_on_random_counters(read: Callable[[Any], Any]):
    *counter, k0, k1 = random_words(6, 200)
    got = philox(tuple(map(read, counter)), (read(k0), read(k1)))
    want = [reference(c, k) for *c, k in zip(*counter, zip(k0, k1, strict=True), strict=True)]
    assert np.stack([np.asarray(word) for word in got], axis=-1).tolist() == [*map(list, want)]


def test_philox_is_tritons(tmp_path: Path):
    """In its interpreter, hence in another process: Triton reads the switch when imported."""
    counter, seed = random_words(4, 16), 0x299F31D0A4093822
    script = tmp_path / "oracle.py"
    script.write_text(TRITON.format(counter=counter, seed=seed))
    run = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    c0, c1, c2, c3 = torch.tensor(counter)
    zero = torch.zeros_like(c0)
    seed_words = (seed & MASK, seed >> 32)
    want = [philox((c0, c1, c2, c3), seed_words), philox((c0, zero, zero, zero), seed_words)]
    assert json.loads(run.stdout) == [[word.tolist() for word in words] for words in want]


def test_a_draw_is_at_block_sample_epoch_digest():
    seed = 0x299F31D0A4093822
    drawn = words(fold_in(key(seed=seed, epoch=2**32 - 1, sample=17), "mosaic"), 7)
    blocks = [
        reference((block, 17, 2**32 - 1, digest("mosaic")), (0xA4093822, 0x299F31D0))
        for block in (0, 1)
    ]
    assert drawn.tolist() == [*blocks[0], *blocks[1][:3]]


def test_digests_never_change():
    assert [digest(name) for name in ("", "mosaic", "a/b", "写真")] == [
        0x46D2E936,
        0xBCAAF5EA,
        0x0F37D2BD,
        0x2A2093BD,
    ]


def test_names_nest():
    root = key(seed=0, epoch=0, sample=0)
    assert fold_in(fold_in(root, "a"), "b").name == "a/b"
    assert fold_in(root, "a").name == "a"


def test_key_broadcasts_epoch_and_sample():
    made = key(seed=5, epoch=torch.tensor([[1], [2]]), sample=torch.arange(3))
    assert made.epoch.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert made.sample.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert uniform(made, 4, 5).shape == (2, 3, 4, 5)
    assert uniform(key(seed=5, epoch=1, sample=2)).shape == ()


@pytest.mark.parametrize(
    ("seed", "held"), [(-1, -1), (2**64 - 1, -1), (2**63, -(2**63)), (2**63 - 1, 2**63 - 1)]
)
def test_seeds_of_64_bits_signed_or_not(seed: int, held: int):
    made = key(seed=seed, epoch=0, sample=0)
    assert int(made.seed) == held
    seed_words = (seed & MASK, (seed >> 32) & MASK)
    assert words(made, 4).tolist() == list(reference((0, 0, 0, digest("")), seed_words))


def test_a_key_is_a_value():
    made = batch(3, epoch=7)
    again = pickle.loads(pickle.dumps(made))
    assert again.name == made.name
    assert torch.equal(words(again, 5), words(made, 5))
    assert [leaf.tolist() for leaf in pytree.tree_leaves(made)] == [0, [7, 7, 7], [0, 1, 2]]
    assert made.to("cpu").name == "stage"


REFUSED: dict[str, Callable[[], Any]] = {
    "seed: wanted a 64-bit integer, came 18446744073709551616": (
        lambda: key(seed=2**64, epoch=0, sample=0)
    ),
    "epoch: wanted integers in [0, 4294967296), came -1": lambda: key(seed=0, epoch=-1, sample=0),
    "sample: wanted integers in [0, 4294967296), came 4294967296": (
        lambda: key(seed=0, epoch=0, sample=torch.tensor([1, 2**32]))
    ),
    "sample: wanted int64, came torch.float32": lambda: key(seed=0, epoch=0, sample=torch.ones(1)),
    "epoch, sample: wanted shapes that fit, came [2] and [3]": (
        lambda: key(seed=0, epoch=torch.arange(2), sample=torch.arange(3))
    ),
    "name: wanted at least one character, came ''": lambda: fold_in(batch(1), ""),
    "count: wanted at least 0, came -1": lambda: words(batch(1), -1),
    "shape: wanted sizes of at least 0, came (-1, -1)": lambda: uniform(batch(1), -1, -1),
    "low, high: wanted finite, low <= high, came 1.0, 0.5": (
        lambda: uniform(batch(1), low=1.0, high=0.5)
    ),
    "low, high: wanted finite, low <= high, came 0.0, nan": (
        lambda: uniform(batch(1), high=math.nan)
    ),
    "low, high: wanted finite, low <= high, came 0.0, 1e+39": (
        lambda: uniform(batch(1), high=1e39, dtype=torch.float32)
    ),
    "low, high: wanted finite, low <= high, came -1.7e+308, 1.7e+308": (
        lambda: uniform(batch(1), low=-1.7e308, high=1.7e308)
    ),
    "dtype: wanted torch.float32 or torch.float64, came torch.float16": (
        lambda: uniform(batch(1), dtype=torch.float16)
    ),
    "p: wanted a probability in [0, 1], came 1.5": lambda: bernoulli(batch(1), 1.5),
    "p: wanted a probability in [0, 1], came nan": lambda: bernoulli(batch(1), math.nan),
    "high: wanted integers in [1, 4294967297), came 0": lambda: integers(batch(1), 0),
    "high: wanted a shape that broadcasts to [2, 2], came [3]": (
        lambda: integers(batch(2), torch.tensor([5, 6, 7]), 2)
    ),
    "high: wanted a shape that broadcasts to [2], came [2, 1]": (
        lambda: integers(batch(2), torch.tensor([[5], [6]]))
    ),
    "sample: wanted integers in [0, 2), came 2": lambda: partners(batch(3), 2, 2),
    "size: wanted an integer in [1, 2**32], came 0": (
        lambda: permute(torch.arange(2), 0, seed=0, epoch=0)
    ),
    "positions: wanted integers in [0, 2), came 2": (
        lambda: permute(torch.arange(3), 2, seed=0, epoch=0)
    ),
    "samples: wanted integers in [0, 2), came -1": (
        lambda: unpermute(torch.tensor([-1]), 2, seed=0, epoch=0)
    ),
}


@pytest.mark.parametrize(("message", "make"), REFUSED.items(), ids=REFUSED)
def test_what_is_refused_is_named(message: str, make: Callable[[], Any]):
    with pytest.raises(ArgumentError) as error:
        make()
    assert str(error.value) == message


@pytest.mark.parametrize("given", [0.5, 2.0, "3", None])
def test_what_is_no_integer_is_no_seed(given: Any):
    """Of a key's arguments: one of 0.5 would be 0."""
    with pytest.raises((ArgumentError, TypeCheckError)):
        key(seed=given, epoch=0, sample=0)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64])
def test_numpys_integers_are_integers(kind: Any):
    made = key(seed=kind(-3), epoch=kind(2), sample=kind(1))
    wanted = key(seed=-3, epoch=2, sample=1)
    assert (made.epoch.dtype, made.sample.dtype) == (torch.int64, torch.int64)
    assert torch.equal(words(made, 4), words(wanted, 4))


def test_uniform_is_the_top_24_bits():
    drawn = words(batch(10), 6)
    unit = (drawn >> 8).double() / 2**24
    assert torch.equal(uniform(batch(10), 2, 3), unit.view(10, 2, 3))
    assert torch.equal(uniform(batch(10), 6, low=-0.1, high=0.4), -0.1 + unit * (0.4 - -0.1))
    single = uniform(batch(10), 6, low=-0.1, high=0.4, dtype=torch.float32)
    assert torch.equal(single, (-0.1 + unit * (0.4 - -0.1)).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.5, 1.5), (-1.0, 1.0), (1e9, 1e9 + 100.0), (-3.0, -2.0)]
)
def test_uniform_reaches_low_and_never_high(
    monkeypatch: pytest.MonkeyPatch, low: float, high: float, dtype: torch.dtype
):
    ends = torch.tensor([0, MASK])
    monkeypatch.setattr(keys, "words", lambda key, count: ends)
    first, last = uniform(key(seed=0, epoch=0, sample=0), 2, low=low, high=high, dtype=dtype)
    assert first == torch.tensor(low, dtype=dtype)
    assert first < last < torch.tensor(high, dtype=dtype)


def test_uniform_between_equal_bounds_is_that_number():
    assert uniform(batch(3), low=0.1, high=0.1).tolist() == [0.1] * 3


def test_bernoulli_never_at_0_always_at_1(monkeypatch: pytest.MonkeyPatch):
    assert not bernoulli(batch(1000), 0.0, 10).any()
    assert bernoulli(batch(1000), 1.0, 10).all()
    monkeypatch.setattr(keys, "words", lambda key, count: torch.tensor([0, MASK]))
    one = key(seed=0, epoch=0, sample=0)
    assert bernoulli(one, 0.0, 2).tolist() == [False, False]
    assert bernoulli(one, 2.0**-24, 2).tolist() == [True, False]
    assert bernoulli(one, 1.0, 2).tolist() == [True, True]


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.9])
def test_bernoulli_is_true_as_often_as_it_should(p: float):
    share = bernoulli(batch(10_000), p, 10).double().mean().item()
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / 100_000)


def test_integers_reject_the_words_past_the_last_multiple():
    """Three quarters of all words are taken; each of the others is drawn again by itself."""
    bound, made = 3 * 2**30, batch(500)
    want = words(made, 3)
    for attempt in range(1, 20):
        retried = words(fold_in(made, f"retry {attempt}"), 3)
        want = torch.where(want < bound, want, retried)
    assert (words(made, 3) >= bound).double().mean().item() == pytest.approx(0.25, abs=0.03)
    assert torch.equal(integers(made, bound, 3), want)


def test_integers_take_a_word_modulo_the_bound():
    made = batch(100)
    assert torch.equal(integers(made, 10, 4), words(made, 4) % 10)  # none of these is rejected
    assert torch.equal(integers(made, 2**32, 4), words(made, 4))
    assert not integers(made, 1, 4).any()


def test_integers_of_a_bound_each():
    bounds = torch.tensor([[1], [2], [300]])
    drawn = integers(batch(3), bounds, 1000)
    assert drawn.amax(1).tolist() == [0, 1, 299]
    assert torch.equal(drawn[2], integers(batch(3), 300, 1000)[2])


@pytest.mark.parametrize("bound", [2, 3, 7, 80, 255])
def test_integers_are_uniform(bound: int):
    counts = integers(batch(5000), bound, 20).flatten().bincount(minlength=bound)
    assert counts.numel() == bound
    assert abs(deviations(counts)) < 4


def test_integers_are_uniform_in_the_high_bits():
    """3 * 2**30 without rejection would give its first third twice as often."""
    counts = (integers(batch(5000), 3 * 2**30, 20) >> 24).flatten().bincount(minlength=192)
    assert abs(deviations(counts)) < 4


def test_partners_are_uniform_over_the_others():
    drawn = partners(batch(7), 6000, 7)
    counts = torch.stack([row.bincount(minlength=7) for row in drawn])
    assert counts.diagonal().tolist() == [0] * 7
    others = counts[~torch.eye(7, dtype=torch.bool)]
    assert abs(deviations(others)) < 4


def test_partners_of_an_only_child_are_itself():
    assert partners(key(seed=0, epoch=0, sample=0), 3, 1).tolist() == [0, 0, 0]
    assert partners(key(seed=0, epoch=0, sample=torch.tensor([0, 1])), 2, 2).tolist() == [
        [1, 1],
        [0, 0],
    ]


@pytest.mark.parametrize("axis", ["seed", "epoch", "sample", "name", "block"])
def test_words_are_uniform_and_unrelated_along_every_axis(axis: str):
    """Bytes of neighbours, and the differences of neighbours: 256 cells each, 4 words a place."""
    count = torch.arange(2000)
    drawn = {
        "seed": lambda: torch.stack(
            [words(key(seed=n, epoch=0, sample=0), 4) for n in count.tolist()]
        ),
        "epoch": lambda: words(key(seed=0, epoch=count, sample=0), 4),
        "sample": lambda: words(key(seed=0, epoch=0, sample=count), 4),
        "name": lambda: torch.stack([words(batch(1, name=f"{n}"), 4)[0] for n in count.tolist()]),
        "block": lambda: words(key(seed=0, epoch=0, sample=0), 8000).view(-1, 4),
    }[axis]()
    for shift in (0, 8, 16, 24):
        digits = (drawn >> shift) & 255
        assert abs(deviations(digits.flatten().bincount(minlength=256))) < 5
        steps = (digits[1:] - digits[:-1]) % 256
        assert abs(deviations(steps.flatten().bincount(minlength=256))) < 5
        steps = (digits[:, 1:] - digits[:, :-1]) % 256
        assert abs(deviations(steps.flatten().bincount(minlength=256))) < 5


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_few_is_equally_likely(size: int):
    epochs = torch.arange(20_000)[:, None]
    orders = permute(torch.arange(size), size, seed=0, epoch=epochs)
    code = (orders * size ** torch.arange(size)).sum(1)
    counts = code.unique(return_counts=True)[1]
    assert counts.numel() == math.factorial(size)
    assert abs(deviations(counts)) < 4


@pytest.mark.parametrize("size", [16, 17, 36])
@pytest.mark.parametrize("pair", [(0, 1), (0, 6), (5, 15)])
def test_every_pair_is_equally_likely_at_a_pair_of_positions(size: int, pair: tuple[int, int]):
    epochs = torch.arange(50_000)[:, None]
    first, second = permute(torch.tensor(pair), size, seed=1, epoch=epochs).unbind(1)
    counts = (first * size + second).bincount(minlength=size * size).view(size, size)
    assert not counts.diagonal().any()
    assert abs(deviations(counts[~torch.eye(size, dtype=torch.bool)])) < 5


def test_an_epoch_of_a_real_size_is_an_order_of_all():
    size = 118_287
    everyone = torch.arange(size)
    order = permute(everyone, size, seed=0, epoch=3)
    assert torch.equal(order.sort().values, everyone)
    assert torch.equal(unpermute(order, size, seed=0, epoch=3), everyone)
    other = permute(everyone, size, seed=0, epoch=4)
    assert (order == other).sum() < 10
    # In a random order one in two neighbours rises.
    assert abs((order.diff() > 0).double().mean().item() - 0.5) < 0.01


def test_permute_at_the_largest_size_and_at_one_position():
    ends = torch.tensor([0, 1, 2**32 - 1])
    order = permute(ends, 2**32, seed=0, epoch=0)
    assert torch.equal(unpermute(order, 2**32, seed=0, epoch=0), ends)
    assert permute(ends[1], 2**32, seed=0, epoch=0) == order[1]
    assert permute(torch.tensor(0), 1, seed=0, epoch=0) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_draws_are_the_same_on_cuda():
    host = batch(100, epoch=3)
    there = host.to("cuda")
    for draw in (
        lambda key: words(key, 7),
        lambda key: uniform(key, 3, low=0.5, high=1.5, dtype=torch.float32),
        lambda key: integers(key, 3 * 2**30, 5),
        lambda key: partners(key, 3, 100),
        lambda key: permute(key.sample, 100, seed=0, epoch=key.epoch),
    ):
        assert draw(there).is_cuda
        assert torch.equal(draw(there).cpu(), draw(host))
