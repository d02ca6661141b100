"""What bridges take of a batch: its rows, and planes of instances where they are wanted."""

import warnings
from collections.abc import Iterator
from itertools import pairwise

import torch

from fnpipe.ops import raster
from fnpipe.ops.paint import fastest
from fnpipe.ops.raster import Masks
from fnpipe.types import Batch, Rings, Targets


def bare(targets: Targets) -> Targets:
    """The table without its rings, which no bridge hands on.

    To follow them takes the host, and a batch on a GPU would wait for it.
    """
    rings = targets.rings
    none = Rings(rings.points[:0], rings.ring_offsets[:1], torch.zeros_like(rings.instance_offsets))
    return targets.replace(rings=none)


def spans(targets: Targets, images: int) -> Iterator[tuple[int, int]]:
    """The rows of each image, from the first up to the last: a GPU is waited for once."""
    places = torch.arange(images + 1, device=targets.owner.device)
    return pairwise(torch.searchsorted(targets.owner, places).tolist())


def instance_planes(batch: Batch, *, stride: int) -> Masks:
    """A plane for each row of a batch's targets: ``batch.masks`` where they are such, or made now.

    They are such of a pipeline with ``masks(stride=stride)``; the bits are the same. Warns where no
    row has a ring, which is no error: where some instances of a data set have none, a small batch
    may be of these alone. Errors: ArgumentError where ``stride`` does not divide the images.
    """
    height, width = batch.images.shape[2:]
    made = batch.masks
    if made is not None and made.dtype == torch.bool and made.shape[1] * stride == height:
        return made
    if len(batch.targets) and not len(batch.rings.points):
        warnings.warn(
            "masks: no instance of this batch has an outline, so all are empty; if none of the "
            "data has one, read it with task='segment'",
            stacklevel=3,
        )
    return raster.masks(batch.rings, (height, width), stride=stride, impl=fastest(batch.boxes))
