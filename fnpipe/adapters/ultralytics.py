"""Ultralytics: the dict that its trainers eat. Nothing of its package is imported here."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fnpipe.adapters.batches import bare, instance_planes
from fnpipe.data.dataset import TASKS, Dataset, lacks_outlines
from fnpipe.loader import Loader
from fnpipe.ops import paint
from fnpipe.ops.annotate import select
from fnpipe.ops.points import quads_to_rboxes
from fnpipe.types import ArgumentError, Batch, Targets, check_batch, check_choice


def to_ultralytics(batch: Batch, *, task: str = "detect", mask_ratio: int = 4) -> dict[str, Any]:
    """The batch dict of Ultralytics' trainers: positions in parts of the image.

    ``img`` are uint8 codes, which trainers divide by 255 themselves. ``bboxes`` are x, y, w, h of
    the centre, for "obb" with the angle in radians; "segment" adds ``masks``, one index map
    [b, h / r, w / r] an image (their ``overlap_mask=True``, the default), and ``sem_masks``, of the
    planes of a pipeline with ``masks(stride=mask_ratio)``, else of rings, to the same bits; "pose"
    adds ``keypoints``. What is to be ignored is left out: they have no word for it.
    Errors: ArgumentError for another task, for float images, and for what the batch does not have.
    """
    check_choice("task", task, TASKS)
    check_batch(batch)
    if batch.images.dtype != torch.uint8:
        raise ArgumentError(
            f"images wanted uint8 codes, came {batch.images.dtype}: recipes.yolo(..., "
            "dtype=torch.uint8)"
        )
    targets = select(bare(batch.targets), ~batch.targets.ignore)
    height, width = batch.images.shape[2:]
    table = {
        "img": batch.images,
        "cls": targets.labels[:, None].float(),
        "bboxes": _boxes(targets, task, height, width),
        "batch_idx": targets.owner.float(),
        "im_file": [str(i) for i in batch.ids.tolist()],
        "ori_shape": [(height, width)] * len(batch),
        "resized_shape": [(height, width)] * len(batch),
    }
    if task == "segment":
        table |= _masks(batch, targets, mask_ratio)
    if task == "pose":
        if not targets.keypoints.shape[1]:
            raise ArgumentError(
                "task 'pose' wanted keypoints, came none: read the data with task='pose'"
            )
        scale = targets.keypoints.new_tensor([1 / width, 1 / height, 1.0])
        table["keypoints"] = targets.keypoints * scale
    return table


class TrainLoader:
    """A :class:`fnpipe.Loader` as their trainers use a data loader: an epoch a ``for``."""

    loader: Loader
    task: str
    mask_ratio: int
    dataset: Dataset
    batch_size: int
    drop_last: bool = False
    num_workers: int = 0
    sampler: "_Order"

    def __init__(
        self, loader: Loader, batch_size: int, *, task: str = "detect", mask_ratio: int = 4
    ) -> None:
        """Errors: ArgumentError for another task, and masks of a data set without outlines."""
        check_choice("task", task, TASKS)
        if not isinstance(loader, Loader):
            raise ArgumentError(f"loader wanted fnpipe.Loader, came {loader!r:.80}")
        self.loader, self.task, self.mask_ratio = loader, task, mask_ratio
        self.dataset = loader.job.data
        if task == "segment" and lacks_outlines(self.dataset):
            raise ArgumentError(
                "task 'segment' wanted outlines, came none: read the data with task='segment'"
            )
        self.batch_size, self.sampler = batch_size, _Order(loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            yield to_ultralytics(batch, task=self.task, mask_ratio=self.mask_ratio)

    def reset(self) -> None:
        """They call this where they close the mosaic; here a schedule has done so."""


class _Order:
    """What they ask of a sampler."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader.job.data)


def _boxes(targets: Targets, task: str, height: int, width: int) -> Tensor:
    if task != "obb":
        low, high = targets.boxes[:, :2], targets.boxes[:, 2:]
        boxes = torch.cat([(low + high) * 0.5, high - low], 1)
    elif targets.quads.shape[1] != 4:
        raise ArgumentError("task 'obb' wanted quads, came none: read the data with task='obb'")
    else:
        boxes = quads_to_rboxes(targets.quads)
    scale = [1 / width, 1 / height, 1 / width, 1 / height, 1.0][: boxes.shape[1]]
    return boxes * boxes.new_tensor(scale)


def _masks(batch: Batch, targets: Targets, ratio: int) -> dict[str, Tensor]:
    """Index maps of the targets that are kept, and the class at each pixel."""
    planes = instance_planes(batch, stride=ratio)[~batch.targets.ignore]
    numbers = paint.number(planes, targets.owner, len(batch), impl=paint.fastest(batch.boxes))
    images = torch.arange(len(batch), device=targets.owner.device)
    first = torch.searchsorted(targets.owner, images)
    row = (numbers.long() - 1 + first[:, None, None]).clamp(min=0)
    labels = torch.cat([targets.labels, targets.labels.new_zeros(1)])[row]
    return {"masks": numbers.float(), "sem_masks": torch.where(numbers > 0, labels, 0).float()}
