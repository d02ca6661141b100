"""Where the batches of a fit come from: ours at every cut, the peers', and none at all.

An arm makes an :class:`Input` of a :class:`Task`: all that is made once a machine (pools, caches,
packages, kernels) is ready when it returns, workers are not yet started.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import peers
import torch
from detector import Truth, pad
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import fnpipe as fp
from fnpipe.data.dataset import Dataset as Data
from fnpipe.ops import raster


Ready = tuple[Float[Tensor, "b 3 h w"], Truth, Int64[Tensor, ""]]
"""What a step takes: images, boxes, and how many boxes the fullest image has."""
Collated = tuple[
    UInt8[Tensor, "b 3 h w"], Float32[Tensor, "n 4"], Int64[Tensor, " n"], Int64[Tensor, " n"]
]


@dataclass(frozen=True)
class Task:
    """What every arm of a fit does. ``backend`` names one for both sides, None the fastest."""

    records: int
    batch: int
    size: int
    workers: int
    device: torch.device
    seed: int = 0
    backend: str | None = None

    @property
    def steps(self) -> int:
        """Batches an epoch; a short last one is dropped."""
        return self.records // self.batch

    @property
    def dtype(self) -> torch.dtype:
        """What the model eats."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32


@dataclass(frozen=True)
class Input:
    """``epoch()`` is the next epoch's batches, as they come; ``ready`` brings one to the device.

    ``worked()`` are the seconds that the host has spent on moving and launching inside ``epoch()``.
    """

    epoch: Callable[[], Iterable[Any]]
    ready: Callable[[Any], Ready]
    close: Callable[[], object]
    worked: Callable[[], float] = float
    state: Callable[[], dict[str, Any]] = dict
    note: str = ""


@dataclass(frozen=True)
class Ours:
    """An arm of ours: a cut, and what it does otherwise than the table's main rows.

    ``backend`` is the device's; ``pool`` holds photos decoded, ``longest`` prepares them; ``size``
    is another than the task's; ``masks`` adds masks, which workers make by that function of
    :mod:`fnpipe.ops.raster`; ``part`` is how many times fewer photos an epoch has; ``most`` is how
    many workers are of use, where a few do.
    """

    cut: str
    backend: str | None = None
    pool: bool = True
    ahead: bool = True
    longest: int | None = None
    size: int | None = None
    masks: str | None = None
    part: int = 1
    most: int | None = None

    def task(self, task: Task) -> Task:
        """The task as this arm takes it."""
        records = max(task.records // self.part, task.batch)
        return replace(task, size=self.size or task.size, records=records)

    @property
    def stream(self) -> str:
        """Arms of one stream see the same bytes."""
        return f"{self.size} {self.longest} {self.part}"

    def pipeline(self, task: Task) -> fp.Pipeline:
        """The recipe of every bench, and masks where they are asked for."""
        recipe = peers.pipeline(task.size, dtype=task.dtype)
        return fp.pipe(recipe, fp.masks()) if self.masks else recipe

    def __call__(self, task: Task) -> Input:
        if self.masks:
            raster.RASTERISERS |= dict.fromkeys(("torch", "package"), getattr(raster, self.masks))
        data = photos_of("train2017", task.records, task="segment" if self.masks else "detect")
        held = self.hold(data, task.device)
        make = partial(
            fp.Loader, data if held is None else held.data, self.pipeline(task),
            batch_size=task.batch, seed=task.seed, device=task.device, cut=self.cut, pool=held,
            drop_last=True, ahead=self.ahead, backend=self.backend or task.backend,
            worker_backend=task.backend,
        )  # fmt: skip
        with make(workers=0) as warm:
            next(iter(warm))
        workers = task.workers if self.most is None else min(task.workers, self.most)
        loader = make(workers=workers)
        chosen = next(iter(loader.backends.values()))
        note = f"{workers} workers, {chosen.worker}; device {chosen.device}"
        return Input(
            lambda: loader, ours_ready, loader.close, lambda: loader.stats().completed,
            loader.state_dict, note,
        )  # fmt: skip

    def hold(self, data: Data, device: torch.device) -> fp.Pool | None:
        """The pool that this cut wants, or None."""
        if not self.pool:
            return None
        kind = "device" if self.cut == "plan" else "ram"
        return fp.pool(data, kind, longest=self.longest, device=device, progress=False)


def photos_of(split: str, count: int, *, task: str = "detect") -> Data:
    """``count`` photos of one split of the usual data set, in turns. Errors: FileNotFoundError."""
    root = peers.shared("coco")
    file = root / "annotations" / f"instances_{split}.json"
    if not file.is_file():
        raise FileNotFoundError(f"no photos at {root}; set FNPIPE_DATA")
    return peers.in_turns(fp.read_coco(file, root / split, task=task), count)


def ours_ready(batch: fp.Batch) -> Ready:
    """Our batch is on the device already. Crowds are no objects."""
    keep = ~batch.targets.ignore
    return batch.images, *pad(batch.boxes, batch.labels, batch.owner, keep, len(batch))


def fixed(task: Task, split: str, recipe: fp.Pipeline, count: int) -> Ready:
    """The first ``count`` samples of a split, made once, on the device, by the eager definition."""
    data = photos_of(split, count)
    loader = fp.Loader(
        data, recipe, batch_size=count, seed=task.seed, shuffle=False, device=task.device,
        cut="source", backend="eager", worker_backend="eager",
    )  # fmt: skip
    with loader:
        return ours_ready(next(iter(loader)))


def validation(task: Task, count: int) -> tuple[Tensor, Truth]:
    """``count`` validation photos, letterboxed: the same for all arms."""
    recipe = fp.pipe(fp.letterbox(task.size), fp.finish(task.dtype, channels_last=True))
    images, truth, _ = fixed(task, "val2017", recipe, count)
    return images, truth


def ultralytics(task: Task) -> Input:
    """Its own data set with its RAM cache, its own loader, and what its trainer does to a batch."""
    from ultralytics.data.build import build_dataloader

    photos = peers.read_photos()
    data = peers.yolo_data(photos, task.size, records=task.records, batch=task.batch)
    loader = build_dataloader(
        data, task.batch, task.workers, shuffle=True, drop_last=True, device=task.device
    )

    def ready(raw: dict[str, Any]) -> Ready:
        names = ("img", "bboxes", "cls", "batch_idx")
        codes, boxes, labels, owner = (raw[n].to(task.device, non_blocking=True) for n in names)
        middle, half = boxes[:, :2], boxes[:, 2:] * 0.5
        boxes = torch.cat([middle - half, middle + half], 1) * task.size
        labels, owner = labels[:, 0].long(), owner.long()
        return codes.float() / 255, *pad(boxes, labels, owner, None, len(codes))

    note = "labels are boxes; its cache holds photos already resized"
    return Input(lambda: loader, ready, lambda: end(loader.iterator), note=note)


def end(iterator: Any) -> None:
    """End a DataLoader's workers and wait for them: only then are their seconds of CPU counted."""
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


class Plain(Dataset[Any]):
    """What one writes with torchvision: a mosaic by hand, then ``transforms.v2``, a sample each.

    Photos are decoded once, ahead, and kept.
    """

    def __init__(self, photos: peers.Photos, size: int, records: int) -> None:
        from torchvision.transforms import v2

        self.photos, self.size, self.records = photos, size, records
        self.transform = v2.Compose(
            [
                v2.RandomAffine(
                    (0, 0),
                    translate=(peers.TRANSLATE / 2,) * 2,  # of a canvas twice as wide
                    scale=(1 - peers.SCALE, 1 + peers.SCALE),
                    interpolation=v2.InterpolationMode.BILINEAR,
                    fill=peers.FILL,
                ),
                v2.CenterCrop(size),
                v2.ColorJitter(brightness=peers.VALUE, saturation=peers.SATURATION, hue=peers.HUE),
                v2.RandomHorizontalFlip(peers.FLIP),
                v2.ClampBoundingBoxes(),
                v2.SanitizeBoundingBoxes(),
            ]
        )

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        canvas, boxes, labels = self.mosaic(index % len(self.photos.images))
        image, target = self.transform(canvas, {"boxes": boxes, "labels": labels})
        return image, target["boxes"].as_subclass(Tensor), target["labels"]

    def mosaic(self, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Four photos round a random point of a canvas of twice the size."""
        from torchvision import tv_tensors
        from torchvision.transforms.v2.functional import resize

        size, wide = self.size, 2 * self.size
        canvas = torch.full((3, wide, wide), peers.FILL, dtype=torch.uint8)
        middle = (torch.rand(2) * size + size / 2).long().tolist()
        rows = [first, *torch.randint(len(self.photos.images), (3,)).tolist()]
        found = []
        for tile, row in enumerate(rows):
            photo = self.photos.images[row]
            scale = size / max(photo.shape[1:])
            height, width = (max(1, round(side * scale)) for side in photo.shape[1:])
            photo = resize(photo, [height, width], antialias=False)
            x = middle[0] - width * (tile % 2 == 0)
            y = middle[1] - height * (tile < 2)
            left, top = max(-x, 0), max(-y, 0)
            part = photo[:, top : wide - y, left : wide - x]
            y0, x0 = y + top, x + left
            canvas[:, y0 : y0 + part.shape[1], x0 : x0 + part.shape[2]] = part
            found.append(self.photos.boxes[row] * scale + torch.tensor([x, y, x, y]))
        boxes = tv_tensors.BoundingBoxes(torch.cat(found), format="XYXY", canvas_size=(wide, wide))  # type: ignore[call-overload]
        return tv_tensors.Image(canvas), boxes, torch.cat([self.photos.labels[r] for r in rows])


def collate(samples: list[tuple[Tensor, Tensor, Tensor]]) -> Collated:
    """Images stacked, boxes and labels one after the other with the image they belong to."""
    images, boxes, labels = zip(*samples, strict=True)
    counts = torch.tensor([len(b) for b in boxes])
    owner = torch.repeat_interleave(torch.arange(len(boxes)), counts)
    stacked = torch.stack([i.as_subclass(Tensor) for i in images])
    return stacked, torch.cat(boxes), torch.cat(labels), owner


def torchvision(task: Task) -> Input:
    """A plain ``DataLoader`` with workers that stay."""
    cuda = task.device.type == "cuda"
    loader = DataLoader(
        Plain(peers.read_photos(), task.size, task.records), task.batch, shuffle=True,
        num_workers=task.workers, collate_fn=collate, pin_memory=cuda, drop_last=True,
        persistent_workers=task.workers > 0,
    )  # fmt: skip

    def ready(raw: Collated) -> Ready:
        images, boxes, labels, owner = (t.to(task.device, non_blocking=True) for t in raw)
        return images.float() / 255, *pad(boxes, labels, owner, None, len(images))

    note = "a mosaic by hand, decoded photos kept"
    return Input(lambda: loader, ready, lambda: end(loader._iterator), note=note)


def model_alone(task: Task) -> Input:
    """One batch, again and again: what is left is the model, validation and checkpoints."""
    batch = fixed(task, "train2017", peers.pipeline(task.size, dtype=task.dtype), task.batch)
    return Input(lambda: repeat(None, task.steps), lambda _: batch, lambda: None,
                 note="no input: one batch, made ahead")  # fmt: skip


FEW = 4
"""Workers that draw and move boxes alone: 2.5 ms a batch of 64 each. To start 16 takes 0.4 s."""
ARMS: dict[str, Callable[[Task], Input]] = {
    "fnpipe/plan": Ours("plan", most=FEW),
    "fnpipe/source": Ours("source", most=FEW),
    "fnpipe/warped": Ours("warped"),
    "fnpipe/finished": Ours("finished"),
    "ultralytics": ultralytics,
    "torchvision": torchvision,
    "bound/model": model_alone,
    "fnpipe/plan compiled": Ours("plan", backend="compiled", most=FEW),
    "fnpipe/source compiled": Ours("source", backend="compiled", most=FEW),
    "fnpipe/warped compiled": Ours("warped", backend="compiled"),
    "fnpipe/warped eager": Ours("warped", backend="eager"),
    "fnpipe/source without pool": Ours("source", pool=False),
    "fnpipe/finished without pool": Ours("finished", pool=False),
    "fnpipe/source not ahead": Ours("source", ahead=False, most=FEW),
    "fnpipe/source 320": Ours("source", size=320, most=FEW),
    "fnpipe/source 320 prepared": Ours("source", size=320, longest=320, most=FEW),
    "fnpipe/masks dense": Ours("finished", masks="rasterize_dense", part=4),
    "fnpipe/masks window": Ours("finished", masks="rasterize_windows", part=4),
    "fnpipe/masks parity": Ours("finished", masks="rasterize_parity", part=4),
}
"""Every arm; the first seven are the main table."""
MAIN = tuple(ARMS)[:7]
ABLATION = {
    "decode cache": ("fnpipe/source without pool", "fnpipe/source"),
    "decode cache at finished": ("fnpipe/finished without pool", "fnpipe/finished"),
    "prepared sources": ("fnpipe/source 320", "fnpipe/source 320 prepared"),
    "deferred colour": ("fnpipe/finished", "fnpipe/warped"),
    "fused colour pass": ("fnpipe/warped eager", "fnpipe/warped"),
    "fused for compiled": ("fnpipe/warped compiled", "fnpipe/warped"),
    "next epoch ahead": ("fnpipe/source not ahead", "fnpipe/source"),
    "masks in windows": ("fnpipe/masks dense", "fnpipe/masks window"),
    "masks by parity": ("fnpipe/masks window", "fnpipe/masks parity"),
}
"""A feature, the arm without it and the arm with it: a pair of its own, nothing adds up."""


def task_of(name: str, task: Task) -> Task:
    """The task as an arm takes it. Errors: KeyError."""
    arm = ARMS[name]
    return arm.task(task) if isinstance(arm, Ours) else task


def stream_of(name: str) -> str | None:
    """Whose training must be equal byte for byte; None for peers and bounds."""
    arm = ARMS[name]
    return arm.stream if isinstance(arm, Ours) else None
