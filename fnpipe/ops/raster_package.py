"""Polygons to masks on the host, with the arithmetic of all crossings as one compiled loop.

Toggling, scanning and counting stay as they are in :mod:`fnpipe.ops.raster`; what is compiled is
:func:`fnpipe.ops.raster.pixels_past`, the thirty operations between. Of 65,000 crossings it takes
0.6 ms where torch's own operations take 1.9.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from fnpipe import numerics
from fnpipe.digests import sources_digest
from fnpipe.ops import raster
from fnpipe.types import Rings


FUNCTIONS = (raster.pixels_past, raster.crossing, raster.edge_to_line, raster.first_past,
             raster.centre, raster.take)  # fmt: skip
"""All that is compiled: a change of their source is another package."""
DTYPES = (torch.float32, torch.float32, torch.int64, torch.int32,
          torch.int32, torch.int64, torch.int64, torch.int32)  # fmt: skip
"""Of the arguments: an entry a point in all but the last, which has one a crossing."""


def rasterize(rings: Rings, height: int, width: int, stride: int) -> raster.Masks:
    """The planes of :func:`fnpipe.ops.raster.masks`, of rings on the host.

    The first call on a machine builds a package for this width and stride (some 20 s), the first in
    a process compares it with the definition. Errors: NumericsError without a C++ compiler, and
    where a bit differs.
    """
    past = partial(_pixels_past, width=width, stride=stride)
    return raster.rasterize_parity(rings, height, width, stride, past=past)


def _pixels_past(*tensors: Tensor, width: int, stride: int) -> Tensor:
    """:func:`fnpipe.ops.raster.pixels_past`; itself where there are under two crossings."""
    if len(tensors[-1]) < 2:
        return raster.pixels_past(*tensors, width=width, stride=stride)
    return _checked(width, stride)(*tensors)


@cache
def _checked(width: int, stride: int) -> Callable[..., Tensor]:
    """The package, which compares its first result with the definition's."""
    define = partial(raster.pixels_past, width=width, stride=stride)
    run, seen = _load(width, stride), []

    def checked(*tensors: Tensor) -> Tensor:
        # A package reads memory as it was told to: another dtype would be a crash, not an error.
        (found,) = run(*(t.to(dtype) for t, dtype in zip(tensors, DTYPES, strict=True)))
        if not seen:
            numerics.refuse_difference("impl 'package' (masks)", define(*tensors), found)
            seen.append(True)
        return found

    return checked


def _load(width: int, stride: int) -> Callable[..., tuple[Tensor]]:
    def masks(*tensors: Tensor) -> tuple[Tensor]:
        return (raster.pixels_past(*tensors, width=width, stride=stride),)

    points, crossings = (torch.export.Dim(n, min=2, max=2**31) for n in ("points", "crossings"))
    counts = [16] * (len(DTYPES) - 1) + [32]
    example = [torch.zeros(n, dtype=dtype) for n, dtype in zip(counts, DTYPES, strict=True)]
    shapes = [{0: crossings if n == 32 else points} for n in counts]
    digest = sources_digest(*FUNCTIONS)
    key = f"masks {digest} {width} {stride}"
    return numerics.package(masks, example, key=key, dynamic_shapes=shapes)
