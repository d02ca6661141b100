"""Randomness as a coordinate: what a draw gives depends on where it is, never on when or by whom.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011) maps
a counter of four 32-bit words and a key of two to four random words. Here the key is the 64-bit
seed, low word first, and the counter is (block, sample, epoch, digest of the stage's name). So a
draw is a function of (seed, epoch, sample, name): worker, rank, batch, call count and position in
the pipeline are not in it. All of it is integer arithmetic until a word becomes a float.
"""

import math
from functools import lru_cache
from hashlib import blake2s
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt64
from torch import Tensor

from fnpipe.types import ArgumentError, Movable, static, value


Word = Any
"""Unsigned 32-bit words: a Python int, a NumPy array or a tensor, the latter two of int64."""
MASK = 0xFFFFFFFF
# Philox's multipliers less 2**32. A full multiplier times a word overflows int64, which is
# undefined in the C++ that torch.compile writes; these products all lie in (-2**62, 0].
MULTIPLIERS = 0xD2511F53 - 2**32, 0xCD9E8D57 - 2**32
WIDE_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
HALF, LOW = np.uint64(32), np.uint64(MASK)
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
# How far 200,000 permutations of 16 are from uniform, by the images of the worst pair of places:
# 6 rounds 93 standard deviations, 8 rounds 6, 10 rounds 2.4. Other sizes up to 50 are closer.
FEISTEL_ROUNDS = range(10)


@value
class Key(Movable):
    """Where to draw: a seed, an epoch and a sample for each row of a batch, and a stage's name.

    The seed is held as a signed 64-bit integer; epochs and samples are in [0, 2**32).
    """

    seed: Int64[Tensor, ""]
    epoch: Int64[Tensor, "*batch"]
    sample: Int64[Tensor, "*batch"]
    name: str = static(default="")


def key(
    *, seed: SupportsIndex, epoch: SupportsIndex | Tensor, sample: SupportsIndex | Tensor
) -> Key:
    """The key of a sample, or of a batch of them: epochs and samples, in [0, 2**32), broadcast.

    A seed is any 64-bit integer, signed or not: -1 and 2**64 - 1 are the same bits, so the same
    seed. Raises ArgumentError for what is out of range and for tensors that are not int64.
    """
    signed = (check_seed(seed) + 2**63) % 2**64 - 2**63
    samples = _integers_in("sample", sample, 0, 2**32)
    epochs = _integers_in("epoch", epoch, 0, 2**32).to(samples.device)
    try:
        epochs, samples = torch.broadcast_tensors(epochs, samples)
    except RuntimeError as error:
        shapes = f"{list(epochs.shape)} and {list(samples.shape)}"
        raise ArgumentError(f"epoch, sample: wanted shapes that fit, came {shapes}") from error
    return Key(torch.tensor(signed, device=samples.device), epochs, samples)


def check_seed(seed: Any) -> int:
    """The seed as Python's integer, whatever integer came. Errors: ArgumentError."""
    try:
        whole = index(seed)
    except TypeError:
        whole = 2**64
    if not -(2**63) <= whole < 2**64:
        raise ArgumentError(f"seed: wanted a 64-bit integer, came {seed!r}")
    return whole


def fold_in(key: Key, name: str) -> Key:
    """The same key one name deeper: "a", then "b", is "a/b". Other names give unrelated draws.

    >>> uniform(fold_in(key(seed=0, epoch=3, sample=17), "flip"), 2).tolist()
    [0.8626747727394104, 0.36026912927627563]

    Raises ArgumentError for an empty name.
    """
    if not name:
        raise ArgumentError("name: wanted at least one character, came ''")
    return Key(key.seed, key.epoch, key.sample, f"{key.name}/{name}" if key.name else name)


def digest(name: str) -> int:
    """The 32-bit BLAKE2s of a name, little-endian: the same in every process, unlike ``hash``.

    Two names share a digest, and so all of their draws, with a chance of 2**-32.
    """
    return int.from_bytes(blake2s(name.encode(), digest_size=4).digest(), "little")


# What torch.compiler.assume_constant_result does, which imports Dynamo: 1.6 s at import.
digest._dynamo_marked_constant = True  # type: ignore[attr-defined]


def philox(
    counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]
) -> tuple[Word, Word, Word, Word]:
    """The four words of Philox4x32-10 at each counter; words of counters and keys broadcast.

    One definition for Python ints, NumPy arrays and tensors, eager or compiled, on any device.
    A round, where hi and lo are the halves of the 64-bit product of two unsigned words, makes
    (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)) of (c0, c1, c2, c3), then
    steps k0 and k1. With m = M - 2**32, hi(M c) is (m c >> 32) + c and lo(M c) is m c mod 2**32:
    exactly, as the shift of a negative number rounds down.
    """
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        high0, high1 = (p0 >> 32) + c0, (p1 >> 32) + c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & MASK, high0 ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


def words(key: Key, count: int) -> Int64[Tensor, "*batch count"]:
    """``count`` random words a row, in [0, 2**32): the words of blocks 0, 1, 2, ... in order.

    Fewer words are the first of more. Raises ArgumentError for a negative count.
    """
    if count < 0:
        raise ArgumentError(f"count: wanted at least 0, came {count}")
    block = _bare(torch.arange(-(-count // 4), device=key.sample.device))
    sample, epoch = _bare(key.sample)[..., None], _bare(key.epoch)[..., None]
    drawn = _draw(key.seed, block, sample, epoch, key.name)
    if isinstance(block, np.ndarray):
        every = torch.from_numpy(np.stack(drawn, -1))
    else:
        every = torch.stack(drawn, -1)
    return every.flatten(-2)[..., :count]


def uniform(
    key: Key,
    *shape: int,
    low: float = 0.0,
    high: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "..."]:
    """Floats in [low, high), of shape ``[*batch, *shape]``: the top 24 bits of a word each.

    low + u * (high - low) with u in {0, 1, ..., 2**24 - 1} * 2**-24, computed in float64 and then
    rounded once to ``dtype``, float32 or float64. Where rounding reaches ``high`` (as in float32
    for [0.5, 1.5)), the float below it is given instead; equal bounds give that one number.
    Raises ArgumentError for bounds that are out of order or not finite, and for other dtypes.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"dtype: wanted torch.float32 or torch.float64, came {dtype}")
    largest = torch.finfo(dtype).max
    if not (-largest <= low <= high <= largest and high - low < math.inf):
        raise ArgumentError(f"low, high: wanted finite, low <= high, came {low}, {high}")
    fraction = (_words_shaped(key, shape) >> 8).double() * 2**-24
    if (low, high) == (0.0, 1.0):
        return fraction.to(dtype)  # 24 bits and below 1 in either dtype: nothing to round
    drawn = (low + fraction * (high - low)).to(dtype)
    return drawn.clamp(max=_below(high, low, dtype == torch.float32))


def _below(high: float, low: float, single: bool) -> float:
    """The float before ``high`` as rounding leaves it, on the way to ``low``."""
    kind = np.float32 if single else np.float64
    return float(np.nextafter(kind(high), kind(low)))


_below._dynamo_marked_constant = True  # type: ignore[attr-defined]


def bernoulli(key: Key, p: float, *shape: int) -> Bool[Tensor, "..."]:
    """True with probability ``p``, rounded up to a multiple of 2**-24: ``uniform(key) < p``.

    Never for 0, always for 1. Raises ArgumentError for a probability outside [0, 1].
    """
    if not 0 <= p <= 1:
        raise ArgumentError(f"p: wanted a probability in [0, 1], came {p}")
    return uniform(key, *shape) < p


def integers(key: Key, high: int | Tensor, *shape: int) -> Int64[Tensor, "..."]:
    """Integers in [0, high), exactly uniform, ``[*batch, *shape]``; ``high`` broadcasts to it.

    A word at or above the largest multiple of ``high`` is rejected, all others are taken modulo
    ``high``, in [1, 2**32]. Attempt t at a place reads that place's word under the name "retry t":
    a rejection moves no other place's stream. Eager only, as the number of attempts is random.
    Raises ArgumentError for a bound out of range or of a shape that does not broadcast.
    """
    bound = _integers_in("high", high, 1, 2**32 + 1)
    drawn = _words_shaped(key, shape)
    try:
        bound = bound.to(drawn.device).expand(drawn.shape)
    except RuntimeError as error:
        shapes = f"{list(drawn.shape)}, came {list(bound.shape)}"
        raise ArgumentError(f"high: wanted a shape that broadcasts to {shapes}") from error
    limit, attempt = 2**32 - 2**32 % bound, 0
    while (rejected := drawn >= limit).any():
        attempt += 1
        again = _words_shaped(fold_in(key, f"retry {attempt}"), shape)
        drawn = torch.where(rejected, again, drawn)
    return drawn % bound


def partners(key: Key, count: int, population: int) -> Int64[Tensor, "*batch count"]:
    """``count`` samples other than the key's own, uniform in [0, population), with replacement.

    A population of one has only the sample itself to give. Raises ArgumentError unless all of the
    key's samples belong to the population.
    """
    _integers_in("sample", key.sample, 0, population)
    own = key.sample[..., None]
    if population == 1:
        return own.repeat_interleave(count, dim=-1)
    others = integers(key, population - 1, count)
    return others + (others >= own)


def permute(
    positions: Int64[Tensor, "..."], size: int, *, seed: int, epoch: int | Tensor
) -> Int64[Tensor, "..."]:
    """Which of ``size`` samples each position of an epoch holds: a bijection of [0, size).

    Random access, O(1) memory a position, any size in [1, 2**32]. A position is two digits of an
    even radix; ten Feistel rounds add to one digit a Philox word of the other, drawn under the name
    "permute"; a result outside the size walks on (Black, Rogaway: Ciphers with arbitrary finite
    domains; 2002). Tests of 200,000 epochs cannot tell a pair of positions from a uniform one. Not
    all size! orders can come up: seed and epoch choose one of 2**96, fewer than the orders of 28.
    Raises ArgumentError for a size or a position out of range.
    """
    start = _places("positions", positions, size, seed, epoch)
    return _walk(start, size, FEISTEL_ROUNDS, 1)


def unpermute(
    samples: Int64[Tensor, "..."], size: int, *, seed: int, epoch: int | Tensor
) -> Int64[Tensor, "..."]:
    """Which position of an epoch holds each sample: the inverse of :func:`permute`.

    Raises ArgumentError for a size or a sample out of range.
    """
    start = _places("samples", samples, size, seed, epoch)
    return _walk(start, size, FEISTEL_ROUNDS[::-1], -1)


def _places(name: str, places: Tensor, size: int, seed: int, epoch: int | Tensor) -> Key:
    """The key that a walk starts from: places stand where a draw has samples."""
    if not 1 <= size <= 2**32:
        raise ArgumentError(f"size: wanted an integer in [1, 2**32], came {size}")
    return key(seed=seed, epoch=epoch, sample=_integers_in(name, places, 0, size))


def _walk(start: Key, size: int, rounds: range, sign: int) -> Tensor:
    """Cycle walking: the cipher's domain may be larger, so repeat it until all are inside."""
    # An odd radix makes every round an even permutation; under 4 the digits mix too slowly.
    radix = max(4, math.isqrt(size - 1) + 1)
    radix += radix % 2
    places = _feistel(start, radix, rounds, sign)
    while (outside := places >= size).any():
        inner = Key(start.seed, start.epoch[outside], places[outside])
        places = places.masked_scatter(outside, _feistel(inner, radix, rounds, sign))
    return places


def _feistel(key: Key, radix: int, rounds: range, sign: int) -> Tensor:
    """Even rounds add a function of the low digit to the high one, odd rounds the reverse."""
    places, epoch = _bare(key.sample), _bare(key.epoch)
    digits = [places // radix, places % radix]
    for r in rounds:
        changed, other = r % 2, 1 - r % 2
        shift = _draw(key.seed, digits[other], r, epoch, "permute")[0]
        digits[changed] = (digits[changed] + sign * shift) % radix
    return torch.as_tensor(digits[0] * radix + digits[1])


def _bare(t: Tensor) -> Word:
    """A tensor as it is drawn with: where nothing compiles it, one of the CPU as an array.

    Small operators cost NumPy a fifth of what they cost torch.
    """
    here = t.device.type == "cpu" and not torch.compiler.is_compiling()
    return t.numpy() if here else t


def _draw(
    seed: Tensor, block: Word, sample: Word, epoch: Word, name: str
) -> tuple[Word, Word, Word, Word]:
    """Philox at these coordinates: four words, arrays for arrays."""
    if isinstance(block, np.ndarray):
        return _philox_on_host((block, sample, epoch, digest(name)), int(seed))
    return philox((block, sample, epoch, digest(name)), (seed & MASK, (seed >> 32) & MASK))


def _philox_on_host(
    counter: tuple[Word, Word, Word, Word], seed: int
) -> tuple[Word, Word, Word, Word]:
    """:func:`philox` on two words at a time, in place, by unsigned products: they cannot overflow.

    For 64 samples and 8 words 40 us. The operators as they stand there take 60 under NumPy, and
    260 in torch's eager mode.
    """
    even, odd, product = np.empty((3, 2, *np.broadcast(*counter).shape), np.uint64)
    even[0], odd[0], even[1], odd[1] = counter
    each = 2, *(1 for _ in even.shape[1:])
    multipliers, crossed = WIDE_MULTIPLIERS.reshape(each), product[::-1]
    for key in _key_schedule(seed).reshape(10, *each):
        np.multiply(even, multipliers, out=product)
        np.right_shift(crossed, HALF, out=even)
        even ^= odd
        even ^= key
        np.bitwise_and(crossed, LOW, out=odd)
    even, odd = even.view(np.int64), odd.view(np.int64)
    return even[0], odd[0], even[1], odd[1]


@lru_cache(maxsize=64)
def _key_schedule(seed: int) -> UInt64[np.ndarray, "10 2"]:
    """The two words of the key in each round."""
    start = np.array([seed & MASK, (seed >> 32) & MASK], np.uint64)
    return (start + np.arange(10, dtype=np.uint64)[:, None] * np.array(KEY_STEPS, np.uint64)) & LOW


def _words_shaped(key: Key, shape: tuple[int, ...]) -> Tensor:
    if any(n < 0 for n in shape):
        raise ArgumentError(f"shape: wanted sizes of at least 0, came {shape}")
    return words(key, math.prod(shape)).reshape((*key.sample.shape, *shape))


def _integers_in(name: str, given: SupportsIndex | Tensor, start: int, stop: int) -> Tensor:
    """An argument as an int64 tensor, when all of it is in [start, stop)."""
    if isinstance(given, Tensor):
        if given.dtype != torch.int64:
            raise ArgumentError(f"{name}: wanted int64, came {given.dtype}")
        wrong = given[(given < start) | (given >= stop)].tolist()
        whole = given
    else:
        try:
            whole = index(given)
            wrong = [] if start <= whole < stop else [given]
        except TypeError:
            whole, wrong = 0, [f"{given!r:.80}; several are an int64 tensor"]
    if wrong:
        raise ArgumentError(f"{name}: wanted integers in [{start}, {stop}), came {wrong[0]}")
    return torch.as_tensor(whole)
