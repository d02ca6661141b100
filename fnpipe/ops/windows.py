"""Ship what a plan can see: the photos that it needs, cut down to what its pixels look into."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from fnpipe.ops.maps import invert
from fnpipe.ops.warp import FILL_WORD, pack_sources
from fnpipe.types import ArgumentError, Empty, Movable, Plan, Sources, Words, value


Held = Int32[Tensor, " held"]
"""The words of a pool that windows are copied from."""
SLACK = 2.0
"""Pixels added round a window on every side: one for the second tap, one for rounding."""


def gather(
    plan: Plan, read: Callable[[int], Any], *, join: Callable[..., Sources] = pack_sources
) -> tuple[Sources, Plan]:
    """The photos that ``plan`` needs, each read once, and the plan that counts in them."""
    photos = plan.every_source
    wanted = photos[photos >= 0].unique()
    sources = join(map(read, wanted.tolist()))
    rows = torch.searchsorted(wanted, photos.clamp(min=0).contiguous())
    return sources, plan.with_sources(torch.where(photos < 0, -1, rows))


def visible(plan: Plan, sizes: Tensor) -> Int64[Tensor, "b t 4"]:
    """What every tile shows of its bordered photo: first column, first row, columns, rows.

    Tiles of layers come last. ``sizes`` [b, t, 2] are the photos' width and height. The part of a
    photo in the frame is bounded in the output, and that bound taken back to the photo, so windows
    of turned photos are a little generous. A tile that shows nothing has 0 columns. Projective
    plans ship whole photos: a bound of four corners does not hold beyond the horizon.
    """
    height, width = plan.size
    forward = torch.cat([plan.forward, *(over.plan.forward for over in plan.overs)], 1)
    whole = sizes.to(torch.float64) + 2.0
    first = torch.zeros_like(whole)
    if not plan.projective:
        frame = torch.tensor([width, height], dtype=torch.float64)
        low, high = _bound(forward, first, sizes.to(torch.float64))
        low, high = low.clamp(min=0.0), torch.minimum(high, frame)
        hidden = (high <= low).any(-1, keepdim=True)
        low, high = _bound(invert(forward), low, high)
        # A border column lies before the photo's first, so a photo's column c is stored at c + 1.
        first = (low + 1.0 - SLACK).floor().clamp(min=0.0)
        last = torch.minimum((high + 1.0 + SLACK).ceil(), whole)
        whole = torch.where(hidden, 0.0, (last - first).clamp(min=0.0))
    whole = torch.where((plan.every_source < 0)[..., None], 0.0, whole)
    return torch.cat([first, whole], -1).to(torch.int64)


def _bound(maps: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of boxes [..., 2] to [..., 2] under affine maps."""
    corners = [(low[..., 0], low[..., 1]), (high[..., 0], low[..., 1])]
    corners += [(low[..., 0], high[..., 1]), (high[..., 0], high[..., 1])]
    moved = (
        torch.stack(
            [maps[..., :2, 0] * x[..., None] + maps[..., :2, 1] * y[..., None] for x, y in corners]
        )
        + maps[..., :2, 2]
    )
    return moved.amin(0), moved.amax(0)


def land(pool: Sources, windows: Sources) -> Sources:
    """A pool and windows as one: their words copied to its first ones, their rows after its own.

    In place: the pool keeps that room free. Rows of ``windows`` are right as long as no other
    windows have come. Errors: ArgumentError for a pool on the host without that room.
    """
    if not pool.words.is_cuda:  # there it would wait for the device
        room = int(pool.offsets[pool.offsets >= 0].min()) - 2
        if len(windows.words) > room:
            raise ArgumentError(
                f"pool has room for {room} words, came windows of {len(windows.words)}: they "
                "belong to a pool that a device holds in part; here, gather the plan from the whole"
            )
    pool.words[: len(windows.words)].copy_(windows.words)
    joined = {
        name: torch.cat([getattr(pool, name), getattr(windows, name)])
        for name in ("offsets", "sizes", "origins", "strides")
    }
    return pool.replace(**joined)


@value
class Windows(Movable):
    """Where ``n`` windows lie in a pool, and the ``sources`` they become, still without words.

    Window ``w`` is ``lines[w]`` rows of ``sources.strides[w]`` words, ``pitches[w]`` words apart,
    from word ``begins[w]`` of the pool on. ``room`` holds nothing; it is as long as the words will
    be, so that no device is asked for that number.
    """

    begins: Int64[Tensor, " n"]
    pitches: Int32[Tensor, " n"]
    lines: Int32[Tensor, " n"]
    room: Int32[Tensor, "words 0"]
    sources: Sources


def measure(sources: Sources, plan: Plan) -> tuple[Windows, Plan]:
    """The windows of ``plan`` in ``sources``, one a tile, and the plan that counts in them."""
    every = plan.every_source
    rows = every.clamp(min=0).flatten()
    x, y, columns, lines = (
        visible(plan, sources.sizes[rows].view(*every.shape, 2)).view(-1, 4).unbind(-1)
    )
    ends = (2 + columns * lines).cumsum(0)
    pitches = sources.strides[rows]
    here = torch.where((columns > 0) & (every.flatten() >= 0), torch.arange(len(rows)), -1)
    made = Windows(
        begins=sources.offsets[rows] + y * pitches + x,
        pitches=pitches,
        lines=lines.to(torch.int32),
        room=torch.empty(int(ends[-1]), 0, dtype=torch.int32),
        sources=Sources(
            words=torch.zeros(0, dtype=torch.int32),
            offsets=ends - columns * lines,
            sizes=sources.sizes[rows],
            origins=torch.stack([x, y], -1).to(torch.int32),
            strides=columns.to(torch.int32),
        ),
    )
    return made, plan.with_sources(here.view_as(every))


def fetch(windows: Windows, pool: Held, *, empty: Empty = torch.empty) -> Sources:
    """Windows with their words, copied out of a pool's by the device that the windows are on.

    A GPU copies from memory of the host whose pages are locked for it. On the host ``empty`` gives
    the memory for the words.
    """
    if windows.begins.is_cuda:
        from fnpipe.ops.windows_triton import fetch_words

        words = fetch_words(windows, pool)
    else:
        words = empty(len(windows.room), dtype=torch.int32)
        _copy(words, windows, pool)
    return windows.sources.replace(words=words)


def _copy(words: Words, windows: Windows, pool: Held) -> None:
    """A row after the other, the fill before each window."""
    made = windows.sources
    numbers = (made.offsets, windows.begins, windows.pitches, made.strides, windows.lines)
    for start, begin, pitch, columns, lines in zip(*(n.tolist() for n in numbers), strict=True):
        words[start - 2 : start] = FILL_WORD
        if columns and lines:
            seen = pool.as_strided((lines, columns), (pitch, 1), pool.storage_offset() + begin)
            words[start : start + lines * columns].view(lines, columns).copy_(seen)


def cut(sources: Sources, plan: Plan, *, empty: Empty = torch.empty) -> tuple[Sources, Plan]:
    """Sources that hold the windows of ``plan`` alone, a window a tile, and the plan for them.

    The same bytes come out: positions are integers before a window's origin is taken off.
    ``empty`` gives the memory for the words.
    """
    windows, local = measure(sources, plan)
    return fetch(windows, sources.words, empty=empty), local
