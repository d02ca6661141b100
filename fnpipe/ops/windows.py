"""Ship what a plan can see: each tile's photo cut down to the window that its pixels look into."""

from collections.abc import Callable

import torch
from jaxtyping import Int64
from torch import Tensor

from fnpipe.ops.maps import invert
from fnpipe.ops.warp import FILL_WORD
from fnpipe.types import ArgumentError, Maps, Plan, Sources


SLACK = 2.0
"""Pixels added round a window on every side: one for the second tap, one for rounding."""


def visible(plan: Plan, sizes: Tensor) -> Int64[Tensor, "b t 4"]:
    """What every tile shows of its bordered photo: first column, first row, columns, rows.

    Tiles of layers come last. ``sizes`` [b, t, 2] are the photos' width and height. The part of a
    photo in the frame is bounded in the output, and that bound taken back to the photo, so windows
    of turned photos are a little generous. A tile that shows nothing has 0 columns. Projective
    plans ship whole photos: a bound of four corners does not hold beyond the horizon.
    """
    height, width = plan.size
    forward = every_forward(plan)
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


def cut(
    sources: Sources, plan: Plan, *, empty: Callable[..., Tensor] = torch.empty
) -> tuple[Sources, Plan]:
    """Sources that hold the windows of ``plan`` alone, a window a tile, and the plan for them.

    The same bytes come out: positions are integers before a window's origin is taken off.
    ``empty(count, dtype=torch.int32)`` gives the memory for the words.
    """
    every = plan.every_source
    rows = every.clamp(min=0).flatten()
    windows = visible(plan, sources.sizes[rows].view(*every.shape, 2)).view(-1, 4)
    lengths = 2 + windows[:, 2] * windows[:, 3]
    ends = lengths.cumsum(0)
    words = empty(int(ends[-1]), dtype=torch.int32)
    starts = ends - lengths + 2
    for row, start, (x, y, columns, lines) in zip(
        rows.tolist(), starts.tolist(), windows.tolist(), strict=True
    ):
        words[start - 2 : start] = FILL_WORD
        if columns and lines:
            stride = int(sources.strides[row])
            there = sources.words[int(sources.offsets[row]) :]
            seen = there.as_strided(
                (lines, columns), (stride, 1), there.storage_offset() + y * stride + x
            )
            words[start : start + lines * columns].view(lines, columns).copy_(seen)
    count = len(rows)
    shown = windows[:, 2] > 0
    here = torch.where(shown & (every.flatten() >= 0), torch.arange(count), -1)
    made = Sources(
        words=words,
        offsets=starts,
        sizes=sources.sizes[rows],
        origins=windows[:, :2].to(torch.int32),
        strides=windows[:, 2].to(torch.int32),
    )
    return made, plan.with_sources(here.view_as(every))


def every_forward(plan: Plan) -> Maps:
    """The maps from source to output of all tiles, those of layers last."""
    return torch.cat([plan.forward, *(over.plan.forward for over in plan.overs)], 1)
