"""The photos that everybody is given, and the peers: each built as its own documentation says.

A peer is a function from decoded photos to a contestant, whose ``note`` says in one line what it
does differently. Packages are imported inside, so that one which is absent costs one row.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contract import Contestant
from jaxtyping import Float32, Int64, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate, pad


# The recipe of every table; gains as YOLO's defaults have them.
TRANSLATE, SCALE = 0.1, 0.5
HUE, SATURATION, VALUE = 0.015, 0.7, 0.4
FLIP = 0.5
FILL = 114


@dataclass(frozen=True)
class Photos:
    """Decoded photos with their boxes (x0, y0, x1, y1) and outlines (x, y), in pixels.

    An outline is all parts of an instance in one ring, as the YOLO format has it. ``annotations``
    and ``folder`` are the COCO data set that all this was read from; ``caveat`` goes into the case.
    """

    images: list[UInt8[Tensor, "3 _h _w"]]
    boxes: list[Float32[Tensor, "_n 4"]]
    outlines: list[list[Float32[Tensor, "_k 2"]]]
    labels: list[Int64[Tensor, " _n"]]
    annotations: Path
    folder: Path
    caveat: str


def shared(name: str) -> Path:
    """Where a folder of the usual photos lies: in ``FNPIPE_DATA`` or ``../shared/data``."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("FNPIPE_DATA", beside)) / name


def read_photos() -> Photos:
    """The 128 training photos of the usual ones; else scikit-image's."""
    root = shared("coco")
    annotations, folder = root / "annotations" / "instances_train2017.json", root / "train2017"
    if annotations.is_file():
        return decode(annotations, folder)
    annotations, folder = write_fallback(Path(tempfile.gettempdir()) / "fnpipe-bench-photos")
    caveat = f" (NOT the usual photos: none at {root}, so scikit-image's four, repeated)"
    return decode(annotations, folder, caveat=caveat)


def pipeline(size: int, *, dtype: torch.dtype = torch.uint8):
    """Our spelling of the recipe; whole codes, or another dtype, channels last."""
    import fnpipe as fp

    return fp.pipe(
        fp.mosaic(size),
        fp.affine(translate=TRANSLATE, scale=SCALE),
        fp.hsv(hue=HUE, saturation=SATURATION, value=VALUE),
        fp.flip(horizontal=FLIP),
        fp.finish(dtype, channels_last=dtype != torch.uint8),
    )


def pool(
    photos: Photos, *, device: torch.device | str = "cpu", task: str = "detect", repeat: int = 1
):
    """The photos as a pool of ours, in memory or on a GPU, each listed ``repeat`` times."""
    import fnpipe as fp

    data = fp.read_coco(photos.annotations, photos.folder, task=task)
    data = in_turns(data, repeat * len(data))
    kind = "ram" if torch.device(device).type == "cpu" else "device"
    return fp.pool(data, kind, device=device, progress=False)


def in_turns(data: Any, count: int) -> Any:
    """``count`` photos of a data set of ours, in turns, each time under a fresh sample id."""
    return data.subset(torch.arange(count) % len(data))


def decode(annotations: Path, folder: Path, *, caveat: str = "") -> Photos:
    """Read a COCO file without fnpipe, crowds left out; labels are ranks of category ids."""
    coco = json.loads(annotations.read_text())
    rank = {id: i for i, id in enumerate(sorted(c["id"] for c in coco["categories"]))}
    objects: dict[int, list[dict]] = {photo["id"]: [] for photo in coco["images"]}
    for a in coco["annotations"]:
        if not a["iscrowd"]:
            objects[a["image_id"]].append(a)
    rows = list(objects.values())
    boxes = [torch.tensor([a["bbox"] for a in row]).reshape(-1, 4) for row in rows]
    return Photos(
        images=[decode_photo(folder / photo["file_name"]) for photo in coco["images"]],
        boxes=[torch.cat([b[:, :2], b[:, :2] + b[:, 2:]], 1) for b in boxes],
        outlines=[
            [torch.tensor([*chain(*a["segmentation"])]).reshape(-1, 2) for a in row] for row in rows
        ],
        labels=[
            torch.tensor([rank[a["category_id"]] for a in row], dtype=torch.int64) for row in rows
        ],
        annotations=annotations,
        folder=folder,
        caveat=caveat,
    )


def decode_photo(file: Path) -> UInt8[Tensor, "3 h w"]:
    """One photo as RGB codes."""
    with Image.open(file) as photo:
        return torch.from_numpy(np.array(photo.convert("RGB"))).permute(2, 0, 1).contiguous()


def write_fallback(root: Path) -> tuple[Path, Path]:
    """scikit-image's photos, 32 files, as a COCO data set with one box a photo."""
    from skimage import data

    root.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for i in range(32):
        pixels = (data.astronaut, data.chelsea, data.coffee, data.rocket)[i % 4]()
        height, width = pixels.shape[:2]
        Image.fromarray(pixels).save(root / f"{i:012}.png", compress_level=1)
        images.append({"id": i, "file_name": f"{i:012}.png", "width": width, "height": height})
        x, y, w, h = width / 4, height / 4, width / 2, height / 2
        ring = [x, y, x + w, y, x + w, y + h, x, y + h]
        annotations.append(
            {"id": i, "image_id": i, "category_id": 1, "bbox": [x, y, w, h], "area": w * h}
            | {"iscrowd": 0, "segmentation": [ring]}
        )
    categories = [{"id": 1, "name": "thing"}]
    file = root / "instances.json"
    coco = {"images": images, "annotations": annotations, "categories": categories}
    file.write_text(json.dumps(coco))
    return file, root


def letterbox(
    photos: Photos, size: int, device: torch.device, *, count: int = 128
) -> UInt8[Tensor, "n 3 size size"]:
    """Up to ``count`` photos, the longer side at ``size``, centred on the fill: equal shapes."""
    canvases = []
    for image in photos.images[:count]:
        _, height, width = image.shape
        scale = size / max(height, width)
        inside = max(1, round(height * scale)), max(1, round(width * scale))
        codes = image[None].to(device, torch.float32)
        small = interpolate(codes, inside, mode="bilinear", antialias=True)[0]
        top, left = (size - inside[0]) // 2, (size - inside[1]) // 2
        margins = (left, size - inside[1] - left, top, size - inside[0] - top)
        canvases.append(pad(small, margins, value=FILL).round().to(torch.uint8))
    return torch.stack(canvases)


def ultralytics(photos: Photos, *, size: int = 640, polygons: bool = False) -> Contestant:
    """``YOLODataset`` with its training transforms and ``cache="ram"``, one sample a call.

    Its own COCO has polygons as labels, also for detection, and then bounds every box anew: 1.6 to
    2.4 times the time of plain boxes. ``polygons`` says which of the two it gets.
    """
    data = yolo_data(photos, size, polygons=polygons)
    order = cycle(range(len(data)))
    labels = "polygons" if polygons else "boxes"
    return Contestant(
        "ultralytics/polygons" if polygons else "ultralytics",
        lambda: data[next(order)],
        note=f"labels are {labels}; its cache holds photos already resized",
    )


def yolo_data(
    photos: Photos,
    size: int,
    *,
    polygons: bool = False,
    records: int | None = None,
    batch: int = 16,
):
    """``YOLODataset``, ready; ``records`` says how many it has, photos in turns, if not as many."""
    # Ultralytics writes a settings file where it is first imported, and asks the network for news.
    os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.gettempdir())
    os.environ.setdefault("YOLO_OFFLINE", "true")
    from ultralytics.cfg import get_cfg
    from ultralytics.data.dataset import YOLODataset

    recipe = get_cfg(
        overrides={
            "mosaic": 1.0,
            "translate": TRANSLATE,
            "scale": SCALE,
            "hsv_h": HUE,
            "hsv_s": SATURATION,
            "hsv_v": VALUE,
            "fliplr": FLIP,
            "deterministic": False,
            "augmentations": [],  # None would add blurs where albumentations is installed
        }
    )
    names = {i: str(i) for i in range(1 + max(int(t.max()) for t in photos.labels if len(t)))}
    with tempfile.TemporaryDirectory() as root:
        files = sorted(write_yolo(photos, Path(root), polygons).iterdir())
        lines = islice(cycle(map(str, files)), records or len(files))
        listed = Path(root) / "photos.txt"
        listed.write_text("\n".join(lines))
        return YOLODataset(
            str(listed), imgsz=size, cache="ram", augment=True, hyp=recipe, data={"names": names},
            batch_size=batch,
        )  # fmt: skip


def write_yolo(photos: Photos, root: Path, polygons: bool) -> Path:
    """Photos, lossless, and labels in the YOLO layout; returns the folder of the images."""
    (root / "images").mkdir()
    (root / "labels").mkdir()
    for i, image in enumerate(photos.images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / "images" / f"{i:06}.bmp")
        extent = torch.tensor([image.shape[2], image.shape[1]])
        corners = photos.boxes[i].reshape(-1, 2, 2) / extent
        boxes = torch.cat([corners.mean(1), corners[:, 1] - corners[:, 0]], 1)
        rings = [(ring / extent).clamp(0, 1) for ring in photos.outlines[i]]
        rows = [row.flatten().tolist() for row in (rings if polygons else boxes)]
        labels = photos.labels[i].tolist()
        lines = [" ".join(map(str, [c, *row])) for c, row in zip(labels, rows, strict=True)]
        (root / "labels" / f"{i:06}.txt").write_text("\n".join(lines))
    return root / "images"


def kornia(photos: Photos, *, batch: int, size: int, device: torch.device) -> Contestant:
    """``AugmentationSequential`` of mosaic, affine, colour and flip on float images."""
    import kornia.augmentation as augmentation

    canvases = letterbox(photos, size, device)
    augment = augmentation.AugmentationSequential(
        augmentation.RandomMosaic((size, size), p=1.0),  # pyright: ignore[reportArgumentType]
        augmentation.RandomAffine(
            0.0,
            translate=(TRANSLATE, TRANSLATE),
            scale=(1 - SCALE, 1 + SCALE),
            padding_mode="fill",
            fill_value=torch.full((3,), FILL / 255),
            p=1.0,
        ),
        augmentation.ColorJiggle(brightness=VALUE, saturation=SATURATION, hue=HUE, p=1.0),
        augmentation.RandomHorizontalFlip(p=FLIP),
        data_keys=["input"],
    )

    @torch.inference_mode()
    def run() -> Tensor:
        pick = torch.randint(len(canvases), (batch,), device=device)
        images = augment(canvases[pick].float() * (1 / 255))
        return images.to(torch.bfloat16, memory_format=torch.channels_last)

    return Contestant(
        "kornia",
        run,
        batch,
        note="photos letterboxed ahead, tiles from within the batch, affine after the mosaic's "
        "crop, brightness added, not multiplied; no targets",
    )


def torchvision(photos: Photos, *, batch: int, size: int, device: torch.device) -> Contestant:
    """``transforms.v2`` on a batch of float32 images: 1.18 times as fast as on uint8 (one H200)."""
    from torchvision.transforms import v2

    canvases = letterbox(photos, size, device)
    augment = v2.Compose(
        [
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomAffine(
                (0, 0),
                translate=(TRANSLATE, TRANSLATE),
                scale=(1 - SCALE, 1 + SCALE),
                interpolation=v2.InterpolationMode.BILINEAR,
                fill=FILL / 255,
            ),
            v2.ColorJitter(brightness=VALUE, saturation=SATURATION, hue=HUE),
            v2.RandomHorizontalFlip(FLIP),
            v2.ToDtype(torch.bfloat16),
        ]
    )

    @torch.inference_mode()
    def run() -> Tensor:
        pick = torch.randint(len(canvases), (batch,), device=device)
        return augment(canvases[pick]).contiguous(memory_format=torch.channels_last)

    return Contestant(
        "torchvision",
        run,
        batch,
        note="NO mosaic, one draw for the whole batch, photos letterboxed ahead; no targets",
    )


def dali(photos: Photos, *, batch: int, size: int, device: torch.device) -> Contestant:
    """A pipeline fed from device memory. Written from DALI's documentation."""
    canvases = letterbox(photos, size, device).permute(0, 2, 3, 1).contiguous()

    def source() -> Tensor:
        return canvases[torch.randint(len(canvases), (batch,), device=device)]

    pipeline = dali_pipeline(source, size=size, batch_size=batch, device_id=device.index or 0)

    def run() -> Tensor:
        (images,) = pipeline.run()
        return torch.from_dlpack(images.as_tensor()).permute(0, 3, 1, 2).bfloat16()

    return Contestant(
        "dali",
        run,
        batch,
        note="NO mosaic, hue by a linear approximation, float16 between, photos letterboxed ahead; "
        "no targets",
    )


def dali_pipeline(source: Callable[[], Tensor], *, size: int, batch_size: int, device_id: int):
    """Affine, colour, flip and scaling of what ``source`` returns, uint8 [batch, h, w, 3]."""
    from nvidia.dali import fn, pipeline_def, types  # pyright: ignore[reportMissingImports]

    def between(low: float, high: float, **options):
        return fn.random.uniform(range=(low, high), **options)

    @pipeline_def(batch_size=batch_size, num_threads=4, device_id=device_id, exec_dynamic=True)
    def graph():
        images = fn.external_source(
            source, device="gpu", batch=True, layout="HWC", dtype=types.UINT8
        )
        scale = between(1 - SCALE, 1 + SCALE)
        shift = between(-TRANSLATE * size, TRANSLATE * size, shape=2)
        matrix = fn.transforms.scale(scale=fn.stack(scale, scale), center=(size / 2, size / 2))
        matrix = fn.transforms.translation(matrix, offset=shift)
        images = fn.warp_affine(
            images, matrix, inverse_map=False, fill_value=FILL, interp_type=types.INTERP_LINEAR
        )
        images = fn.hsv(
            images,
            hue=between(-360 * HUE, 360 * HUE),
            saturation=between(1 - SATURATION, 1 + SATURATION),
            value=between(1 - VALUE, 1 + VALUE),
        )
        mirror = fn.random.coin_flip(probability=FLIP)
        return fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT16,
            output_layout="HWC",
            mean=[0.0],
            std=[255.0],
            mirror=mirror,
        )

    pipeline = graph()
    pipeline.build()
    return pipeline
