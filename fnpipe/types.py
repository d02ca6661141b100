"""The values that travel: targets, samples, plans, batches; and the errors.

Everything ragged is flat with offsets: a batch of a thousand instances is a handful of tensors,
never a list of dicts, so it pickles, pins, copies and compares as a handful of tensors.
Coordinates are continuous and edge based: pixel i covers [i, i+1), an image spans [0, W] x [0, H],
y points down.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float32, Float64, Int32, Int64, Shaped, UInt8
from torch import Tensor

from fnpipe.values import Movable as Movable
from fnpipe.values import map_tensors as map_tensors
from fnpipe.values import static as static
from fnpipe.values import value as value


Image = UInt8[Tensor, "3 h w"]
"""One photo: codes 0 to 255, RGB, upright."""
Plane = Float32[Tensor, "*#batch"]
"""One colour channel: codes in [0, 255], not yet quantised."""
Words = Int32[Tensor, " n"]
"""Packed pixels, one 32-bit word each: red in bits 0-7, green 8-15, blue 16-23, the top byte 0."""
Empty = Callable[..., Tensor]
"""Gives memory, as ``torch.empty`` does: ``empty(count, dtype=...)``."""
Boxes = Float32[Tensor, "n 4"]
"""x0, y0, x1, y1."""
Labels = Int64[Tensor, " n"]
Owners = Int64[Tensor, " n"]
"""Which image of the batch an instance belongs to; ascending."""
Keypoints = Float32[Tensor, "n k 3"]
"""x, y, visibility: 0 missing or outside, 1 labelled but hidden, 2 visible."""
Quads = Float32[Tensor, "n c 2"]
"""Oriented boxes as corners in order; c is 4, or 0 where the data set has none."""
Points = Float32[Tensor, "p 2"]
Offsets = Int64[Tensor, " _"]
"""Starts of consecutive runs, and the end of the last: m - 1 runs."""
Maps = Float64[Tensor, "*batch 3 3"]
"""Homographies that act on column vectors (x, y, 1)."""
Sizes = Int64[Tensor, "*batch 2"]
"""Width, height."""
Masks = Bool[Tensor, "n mh mw"] | Int32[Tensor, "b mh mw"]
"""What :class:`fnpipe.masks` makes: planes of instances, or maps of images."""


class ArgumentError(ValueError):
    """An argument is not what was wanted. The message names it, what was wanted and what came."""


def check_whole(name: str, value: Any, least: int) -> None:
    """Errors: ArgumentError where ``value`` is no integer from ``least`` on."""
    if type(value) is not int or value < least:
        raise ArgumentError(f"{name} wanted an integer >= {least}, came {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Errors: ArgumentError for what is neither True nor False: of a word, all are true."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} wanted True or False, came {value!r:.80}")


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Errors: ArgumentError where ``value`` is none of ``choices``."""
    if value not in choices:
        wanted = ", ".join(map(str, choices))
        raise ArgumentError(f"{name} wanted one of {wanted}, came {value!r}")


class DataError(ValueError):
    """A data set is not what was wanted. The message names the file, the row and what came."""


class NumericsError(RuntimeError):
    """This machine or this version of torch cannot keep the promise of equal bytes."""


class LoaderError(RuntimeError):
    """A loader's worker, or what it needs of the machine, is gone.

    The message names the worker, the batch and sample it was at, and the limit that was met.
    """


@value
class Rings(Movable):
    """Polygons: points in rings, rings in instances.

    Ring ``r`` is ``points[ring_offsets[r]:ring_offsets[r + 1]]``, closed from its last point to its
    first. Instance ``i`` owns rings ``instance_offsets[i]`` up to ``instance_offsets[i + 1]``; an
    instance may own none. A ring fills by even-odd; the rings of an instance unite.
    """

    points: Points
    ring_offsets: Offsets
    instance_offsets: Offsets

    @staticmethod
    def empty(instances: int) -> "Rings":
        """No ring for any of ``instances`` instances."""
        return Rings(
            points=torch.zeros(0, 2, dtype=torch.float32),
            ring_offsets=torch.zeros(1, dtype=torch.int64),
            instance_offsets=torch.zeros(instances + 1, dtype=torch.int64),
        )


@value
class Targets(Movable):
    """Every kind of target of ``n`` instances, row by row; ``owner`` says whose they are.

    ``ids`` are rows of the data set's instance table, so an instance can be followed through any
    augmentation. ``ignore`` marks crowd regions and DOTA's difficult objects. ``visible`` is the
    share of an instance's area that is still in the picture, 1 for an untouched one.
    """

    boxes: Boxes
    labels: Labels
    owner: Owners
    ids: Int64[Tensor, " n"]
    ignore: Bool[Tensor, " n"]
    visible: Float32[Tensor, " n"]
    keypoints: Keypoints
    quads: Quads
    rings: Rings

    def __len__(self) -> int:
        return self.boxes.shape[0]

    @staticmethod
    def empty(*, keypoints: int = 0, corners: int = 0) -> "Targets":
        """No instance; ``keypoints`` rows a pose and ``corners`` (0 or 4) an oriented box."""
        return Targets(
            boxes=torch.zeros(0, 4, dtype=torch.float32),
            labels=torch.zeros(0, dtype=torch.int64),
            owner=torch.zeros(0, dtype=torch.int64),
            ids=torch.zeros(0, dtype=torch.int64),
            ignore=torch.zeros(0, dtype=torch.bool),
            visible=torch.zeros(0, dtype=torch.float32),
            keypoints=torch.zeros(0, keypoints, 3, dtype=torch.float32),
            quads=torch.zeros(0, corners, 2, dtype=torch.float32),
            rings=Rings.empty(0),
        )


@value
class Sample(Movable):
    """One photo with its targets, as the data set holds it. ``data`` is where it came from."""

    image: Image
    targets: Targets
    id: int = static()
    data: Any = static(default=None)


@value
class Sources(Movable):
    """Decoded photos, or windows of them, in one flat buffer.

    Photo ``s`` is ``sizes[s]`` (w, h) pixels and stored with its border repeated once, so that
    bilinear taps need no clamping: (w + 2) columns, (h + 2) rows (:func:`fnpipe.ops.warp.pack`).
    Of these the buffer holds rows of ``strides[s]`` words from ``words[offsets[s]]`` on, the first
    of which is column, row ``origins[s]``: 0, 0 for a whole photo. The two words before it are
    fill.
    """

    words: Words
    offsets: Int64[Tensor, " s"]
    sizes: Int32[Tensor, "s 2"]
    origins: Int32[Tensor, "s 2"]
    strides: Int32[Tensor, " s"]

    def __len__(self) -> int:
        return self.sizes.shape[0]


@dataclass(frozen=True)
class Finish:
    """What a batch of images is at the end: dtype, layout, and ``code * scale + offset``.

    ``scale`` and ``offset`` are three numbers, one a channel; they do nothing to uint8. A constant
    reciprocal is multiplied: ``code / 255`` is another number on CUDA than on the CPU in 38 % of
    words, since CUDA multiplies by the reciprocal where it is told to divide by a scalar.
    """

    dtype: torch.dtype = torch.uint8
    channels_last: bool = False
    scale: tuple[float, float, float] = (1 / 255, 1 / 255, 1 / 255)
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)


@value
class Plan(Movable):
    """All that is random about a batch of ``b`` images, resolved to numbers. Nothing else is drawn.

    An output pixel belongs to one tile. With ``g`` columns and rows of tiles (``t = g * g``),
    ``splits[:, 0]`` holds ``g - 1`` linear functions of the output position that are >= 0 right of
    a seam, ``splits[:, 1]`` the same for below; ``maps`` take an output position to the tile's
    source, in 1/128 pixels (source -1 is an empty tile); ``forward`` takes a source position to the
    output (for targets).
    ``mirror`` counts output columns or rows from the other end: a flip after all other geometry
    stays an exact permutation. ``colors[i]`` are the parameters of the i-th colour stage, one row
    an image.
    """

    ids: Int64[Tensor, " b"]
    epochs: Int64[Tensor, " b"]
    sources: Int64[Tensor, "b t"]
    maps: Float32[Tensor, "b t 3 3"]
    forward: Float64[Tensor, "b t 3 3"]
    splits: Float32[Tensor, "b 2 s 3"]
    mirror: Bool[Tensor, "b 2"]
    colors: tuple[Float32[Tensor, "b _"], ...]
    size: tuple[int, int] = static()
    """Height, width of every output image."""
    projective: bool = static(default=False)
    """Whether any map divides; where none does, the division (by exactly 1) is left out."""
    overs: tuple["Over", ...] = ()
    """What is laid on top, in order, before the colour stages."""

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def every_source(self) -> Int64[Tensor, "b _"]:
        """The sources of all tiles: the picture's own, then those of each layer on top."""
        return torch.cat([self.sources, *(over.plan.sources for over in self.overs)], 1)

    def with_sources(self: "Plan", sources: Int64[Tensor, "b _"]) -> "Plan":
        """This plan with other numbers for its sources, in the order of ``every_source``."""
        own, *rest = sources.split(self.sources.shape[1], 1)
        plans = (o.plan.replace(sources=s) for o, s in zip(self.overs, rest, strict=True))
        overs = tuple(o.replace(plan=p) for o, p in zip(self.overs, plans, strict=True))
        return self.replace(sources=own, overs=overs)


@value
class Over(Movable):
    """Pictures laid on the ``b`` pictures of a plan, each pixel a mixture of the two.

    ``plan`` makes them: as many tiles, the same size, no colours, nothing on top; an image with
    nothing on top has no source but -1. A pixel inside ``cover`` is theirs, whole; of any other,
    ``weight`` is the share of what lies beneath: 1 where nothing is mixed. ``cover`` counts in
    pixels of the finished frame: rings, an instance an image, or what a renderer makes of them, a
    bit a pixel. ``instances`` are whose targets come along: the tile, counted through the batch,
    and the row of the data set's table.
    """

    plan: Plan
    cover: Rings | Bool[Tensor, "b h w"]
    weight: Float32[Tensor, " b"]
    instances: Int64[Tensor, "m 2"]
    window: bool = static(default=False)
    """Whether ``cover`` is a window, the rest of the picture on top cut away, targets and all."""

    @property
    def active(self) -> Bool[Tensor, " b"]:
        """Which images have anything on top."""
        mixed = self.weight < 1.0
        if isinstance(self.cover, Rings):
            return mixed | (self.cover.instance_offsets.diff() > 0)
        return mixed | self.cover.flatten(1).any(1)


@value
class Batch(Movable):
    """What a model eats: finished images and the targets that belong to them."""

    images: Shaped[Tensor, "b 3 h w"]
    targets: Targets
    ids: Int64[Tensor, " b"]
    epochs: Int64[Tensor, " b"]
    masks: Masks | None = None
    """Of a pipeline with :class:`fnpipe.masks`."""

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def boxes(self) -> Boxes:
        return self.targets.boxes

    @property
    def labels(self) -> Labels:
        return self.targets.labels

    @property
    def owner(self) -> Owners:
        return self.targets.owner

    @property
    def keypoints(self) -> Keypoints:
        return self.targets.keypoints

    @property
    def quads(self) -> Quads:
        return self.targets.quads

    @property
    def rings(self) -> Rings:
        return self.targets.rings


def check_batch(batch: Any) -> None:
    """Errors: ArgumentError for anything but a batch."""
    if not isinstance(batch, Batch):
        raise ArgumentError(
            f"batch wanted fnpipe.Batch, one of a loader's, came {type(batch).__name__}"
        )
