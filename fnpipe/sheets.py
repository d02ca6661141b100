"""Sheets of pictures: a pipeline seen from several sides, beside the plain photo."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image as pillow
from PIL import ImageDraw, ImageFont
from torch import Tensor

from fnpipe import preview
from fnpipe.cuts import make_batch
from fnpipe.data.dataset import Dataset, as_rows
from fnpipe.keys import key
from fnpipe.pipeline import Pipeline, pipe
from fnpipe.stages.finish import finish
from fnpipe.types import ArgumentError, Targets


Picture = UInt8[Tensor, "3 _ _"]
Sheet = UInt8[Tensor, "3 h w"]
CELL = 320
"""Long side of a picture in a sheet."""
CAPTION = 20
"""Height of the line of words over it."""
BINS = 24


def caption(picture: Picture, words: str) -> UInt8[Tensor, "3 h w"]:
    """A picture with a line of words over it, cut where the picture ends."""
    width = picture.shape[2]
    strip = pillow.new("RGB", (width, CAPTION), "white")
    font = ImageFont.load_default(13)
    ImageDraw.Draw(strip).text((2, 1), words, font=font, fill="black")
    over = torch.from_numpy(np.array(strip)).permute(2, 0, 1)
    return torch.cat([over, picture], 1)


def plain(data: Dataset, ids: Iterable[int], *, cell: int = CELL, columns: int = 4) -> Sheet:
    """Photos as they are, with their targets."""
    return preview.tile([_photo(data, i, cell) for i in ids], columns=columns)


def pairs(
    data: Dataset, pipeline: Pipeline, ids: Iterable[int], *, seed: int = 0, epoch: int = 0
) -> Sheet:
    """Before and after: each photo beside what the pipeline makes of it, two pairs a row."""
    pictures: list[Picture] = []
    for i in ids:
        after = _sample(data, pipeline, i, seed, epoch)
        pictures += [
            caption(_photo(data, i, CELL), f"{i} {data.path(i).name}"), caption(after, "becomes")
        ]  # fmt: skip
    return preview.tile(pictures, columns=4)


def seeds(
    data: Dataset, pipeline: Pipeline, index: int, *, count: int = 16, seed: int = 0, epoch: int = 0
) -> Sheet:
    """One sample under ``count`` seeds, from ``seed`` on."""
    pictures = [
        caption(_sample(data, pipeline, index, s, epoch), f"seed {s}")
        for s in range(seed, seed + count)
    ]
    return preview.tile(pictures, columns=4)


def stages(
    data: Dataset, pipeline: Pipeline, index: int, *, seed: int = 0, epoch: int = 0
) -> Sheet:
    """One sample stage by stage: the plain photo, then what each longer part of the pipeline makes.

    Draws depend on a stage's name, so a part draws what the whole does.
    """
    pictures = [caption(_photo(data, index, CELL), f"{index} {data.path(index).name}")]
    shown = [s for s in pipeline.stages if not isinstance(s, finish)]
    for end, stage in enumerate(shown, 1):
        part = pipe(*shown[:end], finish(torch.uint8))
        pictures.append(caption(_sample(data, part, index, seed, epoch), repr(stage)))
    return preview.tile(pictures, columns=min(4, len(pictures)))


def counts(
    data: Dataset, pipeline: Pipeline, ids: Sequence[int], *, seed: int = 0, epoch: int = 0
) -> Sheet:
    """Histograms of classes and of box sizes, before and after the pipeline; needs Matplotlib.

    A box's size is the root of its area, in parts of its image's. Errors: ArgumentError where
    Matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ArgumentError("histograms want Matplotlib: pip install 'fnpipe[preview]'") from error
    before, after = samples_before_and_after(data, pipeline, ids, seed=seed, epoch=epoch)
    figure = Figure(figsize=(12, 8), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    classes, sizes = figure.subplots(2, 1)
    _draw_classes(classes, before[0], after[0], data.names)
    sizes.hist(
        [before[1].numpy(), after[1].numpy()],
        bins=np.linspace(0, 1, BINS + 1).tolist(),
        label=[f"before: {len(before[1])} boxes", f"after: {len(after[1])} boxes"],
        color=["0.7", "C0"],
    )
    sizes.set(xlabel="box size: square root of its share of the image", ylabel="boxes")
    sizes.legend()
    figure.suptitle(f"{len(ids)} photos, and one image of each")
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[:, :, :3]
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()


def samples_before_and_after(
    data: Dataset, pipeline: Pipeline, ids: Sequence[int], *, seed: int = 0, epoch: int = 0
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Labels and box sizes, in [0, 1], of the photos ``ids`` and of the images made of them."""
    rows = as_rows("ids", ids)
    subset = data.subset(rows).targets
    plan = pipeline.draw(key(seed=seed, epoch=epoch, sample=rows), data)
    moved = pipeline.annotate(plan, data)
    height, width = plan.size
    whole = torch.tensor([[width, height]]).expand(len(rows), 2)
    before = subset.labels, _box_sizes(subset, data.sizes[rows])
    return before, (moved.labels, _box_sizes(moved, whole))


def _box_sizes(targets: Targets, sizes: Tensor) -> Tensor:
    sides = targets.boxes[:, 2:] - targets.boxes[:, :2]
    return (sides.prod(1) / sizes[targets.owner].prod(1)).sqrt()


def _draw_classes(axes: Any, before: Tensor, after: Tensor, names: Sequence[str]) -> None:
    """Bars of the commonest classes, in the order of the photos' counts."""
    tables = [torch.bincount(t, minlength=len(names)) for t in (before, after)]
    shown = torch.stack(tables).amax(0).argsort(descending=True, stable=True)
    shown = [int(i) for i in shown[:30] if tables[0][i] or tables[1][i]]
    places = np.arange(len(shown))
    for shift, table, ink in ((-0.2, tables[0], "0.7"), (0.2, tables[1], "C0")):
        axes.bar(places + shift, [int(table[i]) for i in shown], 0.4, color=ink)
    axes.set_xticks(places, [names[i] for i in shown], rotation=45, ha="right")
    axes.set(ylabel="instances", xlim=(-0.6, max(1, len(shown)) - 0.4))


def _photo(data: Dataset, index: int, cell: int) -> Picture:
    sample = data[index]
    zoom = cell / max(sample.image.shape[1:])
    return preview.draw(sample.image, sample.targets, names=data.names, zoom=zoom)


def _sample(data: Dataset, pipeline: Pipeline, index: int, seed: int, epoch: int) -> Picture:
    batch = make_batch(data, pipeline, [index], seed=seed, epoch=epoch)
    zoom = CELL / max(batch.images.shape[2:])
    return preview.draw(batch.images[0], batch.targets, names=data.names, zoom=zoom)
