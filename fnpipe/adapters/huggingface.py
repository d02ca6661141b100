"""Hugging Face image processors: their pixel format, and the dict that their detectors eat."""

from collections.abc import Mapping
from typing import Any

import torch

from fnpipe.adapters.batches import bare, spans
from fnpipe.ops.annotate import select
from fnpipe.stages.finish import finish
from fnpipe.types import ArgumentError, Batch, check_batch


def finish_of(
    processor: Any, *, dtype: torch.dtype = torch.float32, channels_last: bool = False
) -> finish:
    """The last stage that gives an image processor's numbers: ``(code * rescale - mean) / std``.

    ``processor`` is one of theirs, or the table of its ``preprocessor_config.json``. What it does
    to sizes is not here: that is the pipeline's own. In float32 theirs round once more than ours:
    the results differ by 1e-6 at most. Errors: ArgumentError for a rescaling other than 1/255, and
    for what is no processor.
    """
    table = processor if isinstance(processor, Mapping) else getattr(processor, "__dict__", {})
    factor = table.get("rescale_factor", 1 / 255) if table.get("do_rescale", True) else 1.0
    if not abs(factor * 255 - 1) < 1e-6:
        raise ArgumentError(f"processor: rescale_factor wanted 1/255, came {factor}")
    if not table.get("do_normalize", True):
        return finish(dtype, channels_last=channels_last)
    if not table.keys() >= {"image_mean", "image_std"}:
        came = ", ".join(table) or repr(processor)
        raise ArgumentError(f"processor: wanted image_mean and image_std, came {came}")
    mean, std = (tuple(table[name]) for name in ("image_mean", "image_std"))
    return finish(dtype, channels_last=channels_last, mean=mean, std=std)  # type: ignore[arg-type]


def to_detr(batch: Batch) -> dict[str, Any]:
    """``pixel_values``, ``pixel_mask`` and ``labels``, as DETR, RT-DETR and their kin take them.

    A label is a dict an image: ``class_labels`` [n], ``boxes`` [n, 4] as centre, width and height
    in parts of the image, ``area``, ``iscrowd``, ``image_id``, ``size``, ``orig_size``. Instances
    to ignore are left out. The mask is all ones: no pixel of an image is padding of a batch.
    Errors: ArgumentError for what is no batch.
    """
    check_batch(batch)
    targets = select(bare(batch.targets), ~batch.targets.ignore)
    height, width = batch.images.shape[2:]
    device = batch.images.device
    low, high = targets.boxes[:, :2], targets.boxes[:, 2:]
    scale = targets.boxes.new_tensor([1 / width, 1 / height])
    boxes = torch.cat([(low + high) * 0.5 * scale, (high - low) * scale], 1)
    area = (high - low).prod(1)
    size = torch.tensor([height, width], device=device)
    labels = [
        {
            "class_labels": targets.labels[start:stop],
            "boxes": boxes[start:stop],
            "area": area[start:stop],
            "iscrowd": torch.zeros(stop - start, dtype=torch.int64, device=device),
            "image_id": batch.ids[i : i + 1],
            "size": size,
            "orig_size": size,
        }
        for i, (start, stop) in enumerate(spans(targets, len(batch)))
    ]
    mask = torch.ones(len(batch), height, width, dtype=torch.int64, device=device)
    return {"pixel_values": batch.images, "pixel_mask": mask, "labels": labels}
