"""The geometry of a plan: what stages draw, multiplied into one map a tile."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnpipe.keys import Key
from fnpipe.ops.maps import compose, invert, mirror
from fnpipe.ops.render import check_reach
from fnpipe.ops.warp import STEPS
from fnpipe.stages.stage import Frames, Geometry, Layout, Mirror, Placed, role
from fnpipe.types import ArgumentError, Maps, Plan, Sizes
from fnpipe.values import brief


KeyedStages = list[tuple[Any, Key]]
"""Stages, each with the key of its draws."""


def plan_geometry(
    stages: KeyedStages, key: Key, sizes: Sizes, rows: Tensor, *, projective: bool
) -> Plan:
    """A plan without colours of the samples of ``key`` [b], whose own photos are ``rows`` [b].

    Of a flip that other geometry follows a part of the map is made; one that comes last stays
    apart, a permutation. Errors: ArgumentError where the images would differ in size.
    """
    placed = _place(stages, sizes, rows)
    frames, moved, flips = placed.frames, None, None
    for stage, own in stages:
        if role(stage) is Mirror:
            again = stage.mirror(own)
            flips = again if flips is None else flips ^ again
        elif role(stage) is Geometry:
            before, flips = _then(_mirror(flips, frames), moved), None
            step, frames = _move(stage, own, frames)
            moved = _then(step, before)
    maps, forward = (
        placed.maps if map is None else compose(map[:, None], placed.maps)
        for map in (moved, _then(_mirror(flips, frames), moved))
    )
    plan = Plan(
        ids=key.sample,
        epochs=key.epoch.expand(key.sample.shape),
        sources=placed.sources,
        maps=_to_render(invert(maps)),
        forward=forward,
        splits=_splits(moved, placed.seams),
        mirror=torch.zeros(len(frames), 2, dtype=torch.bool) if flips is None else flips,
        colors=(),
        size=_size(frames),
        projective=projective,
    )
    check_reach(plan)
    return plan


def _place(stages: KeyedStages, sizes: Sizes, rows: Tensor) -> Placed:
    """The layout stage's tiles, or every photo alone in a frame of its own size."""
    if stages and role(stages[0][0]) is Layout:
        stage, own = stages[0]
        return stage.place(own, sizes)
    return Placed(
        sources=rows[:, None],
        maps=_identity(len(rows))[:, None],
        seams=torch.zeros(len(rows), 2, 0, dtype=torch.float64),
        frames=sizes[rows].to(torch.float64),
    )


def _identity(count: int) -> Maps:
    return torch.eye(3, dtype=torch.float64).expand(count, 3, 3)


def _move(stage: Any, key: Key, frames: Frames) -> tuple[Maps, Frames]:
    """What a geometry stage does. Errors: ArgumentError for what is no map and frame a sample."""
    made = stage.move(stage.draw(key), frames)
    parts: tuple[Any, ...] = made if isinstance(made, tuple) else (made,)
    wanted = [(len(frames), 3, 3), tuple(frames.shape)]
    if [tuple(p.shape) if isinstance(p, Tensor) else None for p in parts] != wanted:
        raise ArgumentError(
            f"{stage!r}: move wanted to return (maps float64{[*wanted[0]]}, frames "
            f"float64{[*wanted[1]]}), came {brief(made):.80}"
        )
    return parts[0], parts[1]


def _then(after: Maps | None, before: Maps | None) -> Maps | None:
    """``before``, then ``after``, where None leaves everything in its place."""
    if after is None or before is None:
        return before if after is None else after
    return compose(after, before)


def _mirror(flips: Tensor | None, frames: Frames) -> Maps | None:
    return None if flips is None else mirror(flips, frames)


def _to_render(maps: Maps) -> Tensor:
    """Inverse maps as the renderer reads them: positions in 1/128 pixel, float32."""
    scale = np.array([[STEPS], [STEPS], [1.0]])
    return torch.from_numpy((maps.numpy() * scale).astype(np.float32))


def _splits(moved: Maps | None, seams: Tensor) -> Tensor:
    """Seams as linear functions of the output position, >= 0 past them: [b, 2, s, 3]."""
    inverse = _identity(len(seams)) if moved is None else invert(moved)
    rows, at = inverse.numpy(), seams.numpy()[..., None]
    with np.errstate(invalid="ignore"):
        past = rows[:, :2, None, :] - at * rows[:, 2, None, None, :]
    past = np.where(np.isfinite(at), past, [0.0, 0.0, -1.0])
    return torch.from_numpy(past.astype(np.float32))


def _size(frames: Frames) -> tuple[int, int]:
    """The one (height, width) of all frames. Errors: ArgumentError where they differ."""
    if len(frames) == 0:
        raise ArgumentError("draw: wanted at least one sample, came none")
    sides = frames.numpy()
    if (sides != sides[0]).any():
        raise ArgumentError(
            f"draw: images would differ in size ({tuple(frames[0].int().tolist())} and others); "
            "begin with letterbox, resize, crop or mosaic"
        )
    width, height = map(int, sides[0])
    return height, width
