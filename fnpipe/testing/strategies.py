"""Hypothesis strategies rich in the cases that break such code; needs Hypothesis.

Each draws plain values of the library, shrinks to the simplest that still fails, and is what the
library's own properties draw from.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from jaxtyping import UInt8
from torch import Tensor

from fnpipe.keys import key
from fnpipe.ops.points import rboxes_to_quads
from fnpipe.ops.ragged import offsets_of
from fnpipe.pipeline import Pipeline, pipe
from fnpipe.recipes.tasks import IMAGENET
from fnpipe.stages import color, finish, geometry
from fnpipe.stages.mosaic import mosaic
from fnpipe.types import Image, Offsets, Plan, Rings, Sizes, Targets


Number = int | float
Draw = Callable[..., Any]
SIDES = (1, 2, 3, 9, 33, 64)
"""Sides of photos, pixels: one pixel, one tap, odd, a little over a power of two."""
seeds: st.SearchStrategy[int] = st.integers(-(2**63), 2**64 - 1)
"""Seeds of :func:`fnpipe.key`, signed and not."""


def near(value: Number, low: Number, high: Number) -> st.SearchStrategy[float]:
    """A number, or a float32 next to it, within bounds."""
    this = np.float32(value)
    around = [this, np.nextafter(this, np.float32(low)), np.nextafter(this, np.float32(high))]
    return st.sampled_from([float(x) for x in around])


def numbers(low: Number, high: Number, *special: Number) -> st.SearchStrategy[float]:
    """Floats in [low, high], often one of ``special`` or its neighbour."""
    chosen = st.sampled_from([low, high, *special]).flatmap(lambda v: near(v, low, high))
    return st.one_of(chosen, st.floats(low, high, width=32))


codes: st.SearchStrategy[float] = st.one_of(
    st.integers(0, 255).flatmap(lambda v: near(v, 0, 255)), numbers(0, 255)
)
"""A channel's code, float32 in [0, 255]: whole, next to whole, or anything."""
_grey = codes.map(lambda c: (c, c, c))
_tie = st.tuples(codes, codes).flatmap(lambda p: st.permutations([p[0], p[0], p[1]])).map(tuple)
_close = codes.flatmap(lambda c: st.tuples(*[near(c, 0, 255)] * 3))
colors: st.SearchStrategy[tuple[float, ...]] = st.one_of(
    _grey, _tie, _close, st.tuples(codes, codes, codes)
)
"""Three channels: greys, ties of two, neighbours one unit in the last place apart, anything."""


@st.composite
def planes(draw: Draw, *, count: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Three float32 planes of ``count`` codes, a few hard colours over and over."""
    drawn = draw(st.lists(colors, min_size=1, max_size=count))
    r, g, b = (torch.tensor(p, dtype=torch.float32) for p in zip(*drawn, strict=True))
    index = torch.arange(count) % len(drawn)
    return r[index], g[index], b[index]


@st.composite
def images(draw: Draw, *, sides: Sequence[int] = SIDES) -> Image:
    """One photo, uint8 [3, h, w]: noise, flat, grey, stripes; of one pixel, one row, one column."""
    width, height = draw(st.sampled_from(sides)), draw(st.sampled_from(sides))
    kind = draw(st.sampled_from(["flat", "noise", "grey", "stripes"]))
    if kind == "flat":
        color = draw(st.tuples(*[st.sampled_from([0, 1, 114, 127, 128, 254, 255])] * 3))
        return torch.tensor(color, dtype=torch.uint8).view(3, 1, 1).repeat(1, height, width)
    if kind == "stripes":
        return ((torch.arange(width) % 2) * 255).to(torch.uint8).repeat(3, height, 1)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    shape = (1 if kind == "grey" else 3, height, width)
    noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return noise.expand(3, height, width).contiguous()


@st.composite
def boxes(draw: Draw, width: int, height: int) -> tuple[float, float, float, float]:
    """x0, y0, x1, y1 with an area: whole, thin, tiny, on an edge, the photo itself."""

    def side(extent: int) -> tuple[float, float]:
        low = draw(numbers(0, extent, extent / 2, extent - 1 if extent > 1 else 0))
        high = draw(numbers(0, extent, extent / 2))
        low, high = min(low, high), max(low, high)
        return (low, high) if high > low else (0.0, float(extent))

    x, y = side(width), side(height)
    return x[0], y[0], x[1], y[1]


@st.composite
def targets(
    draw: Draw, sizes: Sequence[tuple[int, int]], *, keypoints: int = 2, most: int = 4
) -> Targets:
    """All kinds of target of photos of these widths and heights, up to ``most`` a photo.

    Photos without any; crowds; instances without ring, with one, with two; missing and hidden
    keypoints; oriented boxes that stick out.
    """
    owner = [i for i in range(len(sizes)) for _ in range(draw(st.integers(0, most)))]
    count = len(owner)
    drawn = [draw(boxes(*sizes[i])) for i in owner]
    rings = [_rings_of(box, draw(st.integers(0, 2))) for box in drawn]
    flags = st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=keypoints, max_size=keypoints)
    poses = [_pose(box, draw(flags)) for box in drawn]
    angles = [draw(numbers(0, 3, 0.5)) for _ in owner]
    turned = [
        ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, angle)
        for (x0, y0, x1, y1), angle in zip(drawn, angles, strict=True)
    ]
    flat = torch.tensor([p for own in rings for ring in own for p in ring]).reshape(-1, 2)
    lengths = torch.tensor([len(ring) for own in rings for ring in own], dtype=torch.int64)
    owned = torch.tensor([len(own) for own in rings], dtype=torch.int64)
    return Targets(
        boxes=torch.tensor(drawn).reshape(-1, 4),
        labels=torch.tensor([draw(st.integers(0, 2)) for _ in owner], dtype=torch.int64),
        owner=torch.tensor(owner, dtype=torch.int64),
        ids=torch.arange(count),
        ignore=torch.tensor([draw(st.booleans()) for _ in owner], dtype=torch.bool),
        visible=torch.ones(count),
        keypoints=torch.tensor(poses).reshape(count, keypoints, 3),
        quads=rboxes_to_quads(torch.tensor(turned).reshape(-1, 5)),
        rings=Rings(flat, offsets_of(lengths), offsets_of(owned)),
    )


class Album:
    """Photos in memory with their targets: a data set, as far as a pipeline needs one."""

    images: list[Image]
    sizes: Sizes
    targets: Targets
    offsets: Offsets
    keypoint_flip: tuple[int, ...]

    def __init__(
        self, images: Sequence[UInt8[Tensor, "3 _ _"]], targets: Targets | None = None
    ) -> None:
        self.images = [*images]
        self.sizes = torch.tensor([[i.shape[2], i.shape[1]] for i in images])
        self.targets = Targets.empty() if targets is None else targets
        self.offsets = offsets_of(torch.bincount(self.targets.owner, minlength=len(images)))
        self.keypoint_flip = tuple(range(self.targets.keypoints.shape[1]))

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"<Album of {self.sizes.tolist()}, {len(self.targets)} instances>"

    def read(self, index: int) -> Image:
        """Photo ``index``."""
        return self.images[index]


@st.composite
def albums(draw: Draw, *, most: int = 4) -> Album:
    """One to ``most`` photos, with targets of every kind."""
    photos = draw(st.lists(images(), min_size=1, max_size=most))
    sizes = [(photo.shape[2], photo.shape[1]) for photo in photos]
    return Album(photos, draw(targets(sizes)))


amounts: st.SearchStrategy[float] = st.sampled_from([0.0, 0.3, 1.0])
affines: st.SearchStrategy[geometry.affine] = st.builds(
    geometry.affine,
    degrees=st.sampled_from([0.0, 10.0, 180.0]),
    translate=amounts,
    scale=st.sampled_from([0.0, 0.5, 0.95]),
    shear=st.sampled_from([0.0, 20.0, 80.0]),
    perspective=st.sampled_from([0.0, 0.001, 0.01]),
    p=st.sampled_from([0.5, 1.0]),
)
flips: st.SearchStrategy[geometry.flip] = st.builds(
    geometry.flip, horizontal=st.sampled_from([0.0, 0.5, 1.0]), vertical=amounts
)
paints: st.SearchStrategy[Any] = st.one_of(
    st.builds(color.hsv, hue=st.sampled_from([0.0, 0.5]), saturation=amounts, value=amounts),
    st.builds(color.brightness, amounts),
    st.builds(color.contrast, amounts, p=st.sampled_from([0.0, 0.5, 1.0])),
    st.builds(color.grayscale, p=st.sampled_from([0.0, 0.5, 1.0])),
    st.builds(color.solarize, st.sampled_from([0.0, 128.0, 256.0]), p=st.sampled_from([0.5, 1.0])),
    st.builds(color.posterize, st.integers(1, 8)),
)
finishes: st.SearchStrategy[finish.finish] = st.one_of(
    st.builds(finish.finish, st.just(torch.uint8), channels_last=st.booleans()),
    st.builds(
        finish.finish,
        st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
        channels_last=st.booleans(),
        mean=st.sampled_from([None, IMAGENET[0]]),
        std=st.sampled_from([None, IMAGENET[1]]),
    ),
)
"""Every dtype and layout, with a mean and a deviation and without."""


def layouts(size: tuple[int, int]) -> st.SearchStrategy[Any]:
    """A stage that makes every frame ``size``: height, width."""
    mosaics = (
        st.builds(mosaic, st.just(size), tiles=st.just(tiles), p=st.sampled_from([0.5, 1.0]))
        for tiles in (4, 9)
    )
    return st.one_of(
        st.just(geometry.resize(size)),
        st.just(geometry.letterbox(size)),
        st.just(geometry.letterbox(size, enlarge=False)),
        st.just(geometry.crop(size)),
        *mosaics,
    )


@st.composite
def pipelines(
    draw: Draw, *, size: tuple[int, int] = (48, 64), extra: Sequence[Any] = ()
) -> Pipeline:
    """A stage that fixes the size, then any others in any order, and ``extra`` ones among them."""
    others = st.one_of(affines, flips, paints, *(st.just(s) for s in extra))
    middle = draw(st.lists(others, max_size=4, unique_by=_name))
    last = draw(st.lists(finishes, max_size=1))
    return pipe(draw(layouts(size)), *middle, *last)


@st.composite
def plans(draw: Draw, pipeline: Pipeline, album: Album, *, most: int = 3) -> tuple[Plan, Targets]:
    """What a pipeline draws for some photos of an album, and the targets that follow it."""
    ids = draw(st.lists(st.integers(0, len(album) - 1), min_size=1, max_size=most))
    at = key(seed=draw(seeds), epoch=draw(st.integers(0, 2**32 - 1)), sample=torch.tensor(ids))
    plan = pipeline.draw(at, album)
    return plan, pipeline.annotate(plan, album)


def _name(stage: Any) -> str:
    return stage.name


def _rings_of(box: tuple[float, ...], count: int) -> list[list[tuple[float, float]]]:
    """No ring; a diamond in the box; or its left and right thirds."""
    x0, y0, x1, y1 = box
    middle, across = (y0 + y1) / 2, (x1 - x0) / 3
    if count == 1:
        return [[((x0 + x1) / 2, y0), (x1, middle), ((x0 + x1) / 2, y1), (x0, middle)]]
    thirds = [(x0, x0 + across), (x1 - across, x1)][:count]
    return [[(a, y0), (b, y0), (b, y1), (a, y1)] for a, b in thirds]


def _pose(box: tuple[float, ...], flags: Sequence[float]) -> list[tuple[float, float, float]]:
    """Keypoints along a box's diagonal; what is missing is at (0, 0)."""
    x0, y0, x1, y1 = box
    parts = [(i + 0.5) / len(flags) for i in range(len(flags))]
    return [
        (x0 + (x1 - x0) * t, y0 + (y1 - y0) * t, f) if f else (0.0, 0.0, 0.0)
        for t, f in zip(parts, flags, strict=True)
    ]
