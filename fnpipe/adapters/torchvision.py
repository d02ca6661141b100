"""torchvision: what its detection models eat, and tv_tensors both ways. Only views and counting."""

from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors

from fnpipe.adapters.batches import bare, instance_planes, spans
from fnpipe.ops.annotate import select, take
from fnpipe.types import ArgumentError, Batch, Rings, Sample, Targets, check_batch


def to_detection(
    batch: Batch, *, first_label: int = 1, masks: bool = False
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """``images, targets`` for ``model(images, targets)`` of torchvision's detection models.

    These models count classes from 1, so labels grow by ``first_label`` (0 for those without a
    background class). They have no word for instances to ignore: those are left out. ``masks`` adds
    uint8 [n, h, w]: those of a pipeline with ``masks(stride=1)``, else made now, of rings, to the
    same bits. Keypoints come along where there are any. Images must be floats in [0, 1], without
    mean and deviation: the models normalise by themselves. Errors: ArgumentError.
    """
    check_batch(batch)
    if not batch.images.is_floating_point():
        raise ArgumentError(
            f"images wanted floats in [0, 1], came {batch.images.dtype}: "
            "finish(torch.float32) at the end of the pipeline"
        )
    kept = ~batch.targets.ignore
    targets = select(bare(batch.targets), kept)
    fields = {"boxes": targets.boxes, "labels": targets.labels + first_label}
    if targets.keypoints.shape[1]:
        fields["keypoints"] = targets.keypoints
    if masks:
        fields["masks"] = instance_planes(batch, stride=1)[kept].view(torch.uint8)
    rows = [
        {name: values[start:stop] for name, values in fields.items()} | {"image_id": batch.ids[i]}
        for i, (start, stop) in enumerate(spans(targets, len(batch)))
    ]
    return list(batch.images), rows


def to_tv_tensors(batch: Batch) -> list[tuple[Tensor, dict[str, Any]]]:
    """Each image with its targets, as v2 transforms know them; all instances, crowds too.

    The image is a tv_tensors.Image; ``boxes`` are XYXY; ``labels``, ``ids`` and ``ignore`` plain
    tensors; ``keypoints`` and ``quads`` [n, k, 2] are KeyPoints, the former with ``visibility``
    [n, k] beside them. Errors: ArgumentError for what is no batch.
    """
    check_batch(batch)
    size, targets = (int(batch.images.shape[2]), int(batch.images.shape[3])), bare(batch.targets)
    rows = torch.arange(len(targets), device=targets.owner.device)
    return [
        (tv_tensors.Image(image), _wrap(take(targets, rows[start:stop]), size))
        for image, (start, stop) in zip(batch.images, spans(targets, len(batch)), strict=True)
    ]


def from_tv_tensors(
    image: Tensor, targets: dict[str, Any], *, id: int = 0, data: Any = None
) -> Sample:
    """A sample of what :func:`to_tv_tensors` gives; ``boxes`` and ``labels`` are enough.

    The image is uint8; boxes may be of any format. Rings are not among tv_tensors: the sample has
    none. Errors: ArgumentError for a float image, and for plain boxes or ones of another canvas.
    """
    from torchvision.transforms.v2.functional import convert_bounding_box_format

    height, width = image.shape[-2:]
    if image.dtype != torch.uint8:
        raise ArgumentError(f"image wanted uint8 codes, came {image.dtype}")
    if not isinstance(targets, dict):
        raise ArgumentError(
            f"targets wanted boxes, tv_tensors.BoundingBoxes, and labels, came {targets!r:.80}"
        )
    given = targets.get("boxes")
    if not isinstance(given, tv_tensors.BoundingBoxes) or "labels" not in targets:
        raise ArgumentError(
            "targets wanted boxes, tv_tensors.BoundingBoxes, and labels, came "
            f"{ {name: type(value).__name__ for name, value in targets.items()} }"
        )
    if tuple(given.canvas_size) != (height, width):
        raise ArgumentError(
            f"boxes wanted the image's canvas {(height, width)}, came {tuple(given.canvas_size)}"
        )
    xyxy = convert_bounding_box_format(given, new_format=tv_tensors.BoundingBoxFormat.XYXY)
    boxes, count = xyxy.as_subclass(Tensor).float(), len(given)
    points = targets.get("keypoints", torch.zeros(count, 0, 2)).as_subclass(Tensor).float()
    seen = targets.get("visibility", torch.full(points.shape[:2], 2.0)).float()
    moved = Targets(
        boxes=boxes,
        labels=targets["labels"].to(torch.int64),
        owner=torch.zeros(count, dtype=torch.int64),
        ids=targets.get("ids", torch.arange(count)),
        ignore=targets.get("ignore", torch.zeros(count, dtype=torch.bool)),
        visible=torch.ones(count, dtype=torch.float32),
        keypoints=torch.cat([points, seen[..., None]], 2),
        quads=targets.get("quads", torch.zeros(count, 0, 2)).as_subclass(Tensor).float(),
        rings=Rings.empty(count),
    )
    return Sample(image.as_subclass(Tensor), moved, id, data)


def _wrap(own: Targets, size: tuple[int, int]) -> dict[str, Any]:
    def points(values: Tensor) -> tv_tensors.KeyPoints:
        return tv_tensors.KeyPoints(values, canvas_size=size)  # type: ignore[call-overload]

    boxes = tv_tensors.BoundingBoxes(own.boxes, format="XYXY", canvas_size=size)  # type: ignore[call-overload]
    wrapped = {"boxes": boxes, "labels": own.labels, "ids": own.ids, "ignore": own.ignore}
    if own.keypoints.shape[1]:
        wrapped["keypoints"] = points(own.keypoints[..., :2])
        wrapped["visibility"] = own.keypoints[..., 2]
    if own.quads.shape[1]:
        wrapped["quads"] = points(own.quads)
    return wrapped
