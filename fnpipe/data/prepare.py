"""Photos at the size they are trained at: shrunk once, by area, their targets with them."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from fnpipe.data.dataset import Dataset, check_dataset, reading
from fnpipe.data.decode import read_image
from fnpipe.types import ArgumentError, Image, Sizes, Targets


@dataclass(frozen=True, eq=False)
class Prepared(Dataset):
    """A data set whose photos have at most ``longest`` pixels a side; :func:`prepare` makes it."""

    longest: int = 0

    def read(self, index: int) -> Image:
        """Photo ``index``, uint8 [3, h, w], upright, RGB, shrunk. ``DataError`` names the file."""
        image = shrink(read_image(self.path(index), pixel_limit=self.pixel_limit), self.longest)
        self._check_size(index, (image.shape[2], image.shape[1]))
        return image


def prepare(data: Dataset, *, longest: int) -> Prepared:
    """``data`` with every photo's longer side at most ``longest`` pixels, its targets to scale.

    Photos are shrunk by area (:func:`fnpipe.data.prepare.shrink`) whenever they are read, and never
    enlarged. What is prepared already would be resampled twice, and a subclass that reads photos in
    a way of its own would no longer. Errors: ArgumentError for either, and for ``longest`` below 1.
    """
    if type(longest) is not int or longest < 1:
        raise ArgumentError(f"longest wanted at least 1 pixel, came {longest!r}")
    check_dataset(data)
    if isinstance(data, Prepared):
        raise ArgumentError(f"data is prepared already (longest={data.longest}); prepare the first")
    if reading(data):
        raise ArgumentError(
            f"data reads photos in a way of its own ({type(data).__name__}), which prepare() does "
            "not know; shrink them there (fnpipe.data.prepare.shrink)"
        )
    sizes = fit(data.sizes, longest)
    scale = sizes.to(torch.float64) / data.sizes.clamp(min=1)
    fields = {name: getattr(data, name) for name in Dataset.__dataclass_fields__}
    fields |= {"sizes": sizes, "targets": _scaled(data.targets, scale), "longest": longest}
    return Prepared(**fields)


def fit(sizes: Sizes, longest: int) -> Sizes:
    """Width and height shrunk to ``longest`` pixels at most, to the nearest pixel, never below 1.

    Half a pixel rounds up. A photo that fits keeps its size.
    """
    side = sizes.amax(-1, keepdim=True).clamp(min=1)
    return torch.where(side > longest, (sizes * 2 * longest + side) // (2 * side), sizes).clamp(
        min=1
    )


def shrink(image: Image, longest: int) -> UInt8[Tensor, "3 _ _"]:
    """A photo whose longer side is at most ``longest`` pixels: each one the mean of what it covers.

    A pixel that an edge cuts counts by the part inside. Sums are whole numbers: a code times the
    area it gives, in units of 1 / (width * height) of the new photo; means are rounded half up. One
    result on every machine, whatever the order: a sum is at most 255 * 2**30, and float64, which
    vector units multiply faster than int64, holds every whole number up to 2**53.
    """
    width, height = fit(torch.tensor([image.shape[2], image.shape[1]]), longest).tolist()
    if (height, width) == image.shape[1:]:
        return image
    codes = image.permute(1, 2, 0).numpy()
    small = np.float64 if len(codes) > 2**23 else np.int32
    down = _stretches(codes.reshape(len(codes), -1), height, small).reshape(height, -1, 3)
    sums = _stretches(down.transpose(1, 0, 2).reshape(down.shape[1], -1), width, np.float64)
    area = codes.shape[0] * codes.shape[1]
    # The quotient keeps 1 / (2 * area), 2**-31 at least, away from the next whole number.
    means = np.floor((2.0 * sums + area) / (2.0 * area)).astype(np.uint8)
    upright = np.ascontiguousarray(means.reshape(width, height, 3).transpose(1, 0, 2))
    return torch.from_numpy(upright).permute(2, 0, 1)


def _stretches(rows: np.ndarray, count: int, dtype: type) -> np.ndarray:
    """Sums over ``count`` equal stretches of rows; a row counts ``count`` times, or in part."""
    length = len(rows)
    starts = np.arange(count) * length
    sums = np.zeros((count, rows.shape[1]), dtype)
    for k in range(-(-length // count) + 1):
        row = starts // count + k
        inside = np.minimum((row + 1) * count, starts + length) - np.maximum(row * count, starts)
        sums += rows[np.minimum(row, length - 1)] * inside.clip(0)[:, None].astype(dtype)
    return sums


def _scaled(targets: Targets, scale: Float64[Tensor, "photos 2"]) -> Targets:
    """Targets whose photos are ``scale`` (x, y) times as large."""
    by = scale[targets.owner]
    rings = targets.rings
    counts = rings.ring_offsets[rings.instance_offsets].diff()
    points = targets.keypoints.to(torch.float64)
    keypoints = torch.cat([points[..., :2] * by[:, None], points[..., 2:]], -1)
    return targets.replace(
        boxes=(targets.boxes * by.repeat(1, 2)).float(),
        keypoints=keypoints.float(),
        quads=(targets.quads * by[:, None]).float(),
        rings=rings.replace(points=(rings.points * by.repeat_interleave(counts, 0)).float()),
    )
