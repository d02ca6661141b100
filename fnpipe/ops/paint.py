"""Masks of instances laid over one another: one plane an image.

The largest mask is painted first, so that smaller ones end on top; of equal ones the later does.
All of it is integers and comparisons, so every spelling has equal bits:

- ``torch``: mask by mask, on any device.
- ``triton``: a program makes some pixels of one image and walks through its instances.
"""

import torch
from jaxtyping import Int32, Int64, Shaped
from torch import Tensor

from fnpipe.ops.raster import Masks, masks
from fnpipe.types import ArgumentError, Labels, Owners, Rings


IndexMaps = Int32[Tensor, "b mh mw"]


def overlap_map(
    rings: Rings,
    owner: Owners,
    images: int,
    size: tuple[int, int],
    *,
    stride: int = 4,
    impl: str = "torch",
) -> IndexMaps:
    """Number the instances of each image in one plane, from 1 in their order: 0 is background.

    A number never changes with the painting: one that is hidden whole is a gap. ``size`` and
    ``impl`` are those of :func:`fnpipe.ops.raster.masks`, with its errors.
    """
    planes = masks(rings, size, stride=stride, impl=impl)
    return number(planes, owner, images, impl=impl)


def number(planes: Masks, owner: Owners, images: int, *, impl: str = "torch") -> IndexMaps:
    """:func:`overlap_map` of masks that are there already."""
    own = torch.arange(1, len(owner) + 1, device=owner.device) - torch.searchsorted(owner, owner)
    return paint(planes, own, owner, images, background=0, impl=impl)


def semantic_map(
    rings: Rings,
    labels: Labels,
    owner: Owners,
    images: int,
    size: tuple[int, int],
    *,
    background: int = -1,
    stride: int = 4,
    impl: str = "torch",
) -> IndexMaps:
    """The label of the smallest instance over each pixel, ``background`` where there is none."""
    planes = masks(rings, size, stride=stride, impl=impl)
    return paint(planes, labels, owner, images, background=background, impl=impl)


def paint(
    planes: Masks,
    values: Labels,
    owner: Owners,
    images: int,
    *,
    background: int,
    impl: str = "torch",
) -> IndexMaps:
    """Write each instance's value over its mask in its image, the largest mask first."""
    order = torch.argsort(count(planes), descending=True, stable=True)
    if impl == "triton":
        from fnpipe.ops.raster_triton import paint as paint_fused

        order = order[torch.argsort(owner[order], stable=True)]
        return paint_fused(planes, values, owner, order, images, background)
    canvas = planes.new_full((images, *planes.shape[1:]), background, dtype=torch.int32)
    image, value = owner.tolist(), values.tolist()
    for i in order.tolist():
        canvas[image[i]].masked_fill_(planes[i], value[i])
    return canvas


def count(planes: Masks) -> Int64[Tensor, " n"]:
    """Pixels of each mask. Bytes add up as bytes, 127 rows at a time: 9 ms; sum() takes 250."""
    parts = planes.view(torch.int8).split(127, 1)
    return torch.stack([part.sum(1, dtype=torch.int8).sum(1) for part in parts]).sum(0)


def split_by_owner(values: Shaped[Tensor, "n ..."], owner: Owners, images: int) -> list[Tensor]:
    """The rows of each image, as views: ``images`` tensors, empty where an image owns nothing."""
    if not isinstance(values, Tensor):
        raise ArgumentError(
            f"values wanted a tensor, came {values!r:.80}: batch.masks is there where a pipeline "
            "has fnpipe.masks(...)"
        )
    return list(values.split(torch.bincount(owner, minlength=images).tolist()))


def fastest(t: Tensor) -> str:
    """The ``impl`` of masks where ``t`` lies: Triton on a GPU, where it is there, else torch."""
    if not t.is_cuda:
        return "torch"
    try:
        import triton  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        return "torch"
    return "triton"
