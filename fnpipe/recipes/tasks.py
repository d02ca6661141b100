"""The recipes: what Ultralytics and DETR trainings do to their images, stage by stage."""

from typing import Any, Literal, TypedDict, Unpack

import torch

from fnpipe.pipeline import Pipeline, pipe
from fnpipe.schedules import schedule
from fnpipe.stages import color, finish, geometry
from fnpipe.stages.mix import cutmix as mix_windows
from fnpipe.stages.mix import mixup as mix_codes
from fnpipe.stages.mosaic import mosaic as tiles
from fnpipe.stages.paste import copy_paste as paste
from fnpipe.types import ArgumentError, check_choice, check_whole


Recipe = Any
"""A pipeline, or with ``close_mosaic`` a schedule of two. Of their union a type checker would let
nobody call ``draw``."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels, on the scale of [0, 1]."""
SOURCES: dict[str, Literal["self", "other"]] = {"flip": "self", "mixup": "other"}
"""What a mode of Ultralytics' copy-paste takes its instances from."""
VARIANTS: dict[str, dict[str, Any]] = {
    "segment": {"visible": 0.01},
    "pose": {},
    "obb": {"degrees": 180.0, "flipud": 0.5},
}
"""In what a task's defaults differ from :func:`yolo`'s."""


class Hyper(TypedDict, total=False):
    """The keyword arguments of :func:`yolo`, for those who keep them in a table."""

    hsv_h: float
    hsv_s: float
    hsv_v: float
    degrees: float
    translate: float
    scale: float
    shear: float
    perspective: float
    flipud: float
    fliplr: float
    mosaic: float
    mixup: float
    cutmix: float
    copy_paste: float
    copy_paste_mode: str
    close_mosaic: int
    epochs: int | None
    visible: float
    side: float
    dtype: torch.dtype
    channels_last: bool


def yolo(
    imgsz: int,
    *,
    hsv_h: float = 0.015,
    hsv_s: float = 0.7,
    hsv_v: float = 0.4,
    degrees: float = 0.0,
    translate: float = 0.1,
    scale: float = 0.5,
    shear: float = 0.0,
    perspective: float = 0.0,
    flipud: float = 0.0,
    fliplr: float = 0.5,
    mosaic: float = 1.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    copy_paste: float = 0.0,
    copy_paste_mode: str = "flip",
    close_mosaic: int = 0,
    epochs: int | None = None,
    visible: float = 0.1,
    side: float = 2.0,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Recipe:
    """Ultralytics' training augmentation, by its hyper-parameters' names, meanings and defaults.

    - ``imgsz``: side of the square images, pixels.
    - ``hsv_h`` in turns, [0, 0.5]; ``hsv_s`` and ``hsv_v``, gains of 1 +- so much.
    - ``degrees``, ``shear``: each way. ``translate``: share of the image. ``scale``: gain of
      1 +- so much. ``perspective``: 1 / pixel, usually under 0.001.
    - ``flipud``, ``fliplr``, ``mosaic``, ``mixup``, ``cutmix``, ``copy_paste``: probabilities.
    - ``copy_paste_mode``: of the image itself, mirrored ("flip"), or of another one ("mixup").
    - ``close_mosaic``: in the last so many of ``epochs`` no photo is mixed with another (mosaic,
      mixup, cutmix, copy-paste), and the result is a schedule, not a pipeline. Ultralytics' default
      of 10 would need to know ``epochs``, so here it is 0.
    - ``visible``, ``side``: which targets stay, as :class:`fnpipe.keep` has it.
    - ``dtype``, ``channels_last``: of the images, in [0, 1] for floats.

    ``docs/recipes.md`` lists how draws were compared with Ultralytics', and all differences.
    Errors: ArgumentError for numbers out of range, and for ``close_mosaic`` without ``epochs``.
    """
    move = geometry.affine(
        degrees=degrees, translate=translate, scale=scale, shear=shear, perspective=perspective
    )
    common = (
        color.hsv(hue=hsv_h, saturation=hsv_s, value=hsv_v),
        geometry.flip(horizontal=fliplr, vertical=flipud),
        finish.keep(visible=visible, side=side),
        finish.finish(dtype, channels_last=channels_last),
    )
    pasted = _pasting(copy_paste, copy_paste_mode)
    own = copy_paste_mode == "flip"
    mixed = pipe(
        tiles(imgsz, p=mosaic) if mosaic else geometry.letterbox(imgsz),
        *(pasted if own else ()),
        move,
        *(() if own else pasted),
        *([mix_codes(p=mixup)] if mixup else []),
        *([mix_windows(p=cutmix)] if cutmix else []),
        *common,
    )
    return _closing(mixed, pipe(geometry.letterbox(imgsz), move, *common), close_mosaic, epochs)


def segment(imgsz: int, **changes: Unpack[Hyper]) -> Recipe:
    """:func:`yolo` for instance masks: as in Ultralytics, 1 % of an instance's area is enough."""
    return yolo(imgsz, **_variant("segment", changes))


def pose(imgsz: int, **changes: Unpack[Hyper]) -> Recipe:
    """:func:`yolo` for keypoints, which change places in a mirrored image by the data set's map."""
    return yolo(imgsz, **_variant("pose", changes))


def obb(imgsz: int, **changes: Unpack[Hyper]) -> Recipe:
    """:func:`yolo` for oriented boxes seen from above: any rotation, mirrored either way.

    Ultralytics has no defaults of its own for them: ``degrees=0, flipud=0`` gives those it uses.
    """
    return yolo(imgsz, **_variant("obb", changes))


def detr(
    imgsz: int,
    *,
    scale: float = 0.5,
    translate: float = 0.2,
    hue: float = 0.05,
    saturation: float = 0.5,
    brightness: float = 0.125,
    contrast: float = 0.5,
    distort: float = 0.5,
    zoom: float = 0.8,
    fliplr: float = 0.5,
    visible: float = 0.1,
    side: float = 1.0,
    mean: tuple[float, float, float] | None = IMAGENET[0],
    std: tuple[float, float, float] | None = IMAGENET[1],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Pipeline:
    """The usual augmentation of RT-DETR and RF-DETR: distort colours, zoom in or out, mirror.

    Photos are stretched to ``imgsz`` square, as these models want them. With probability ``zoom``
    the picture is enlarged or shrunk by a gain of 1 +- ``scale`` and shifted by up to ``translate``
    of it: one stage for what they do in two, an IoU crop and an expansion. With probability
    ``distort`` each, brightness and contrast, then hue and saturation change. ``mean`` and ``std``
    are ImageNet's; None leaves [0, 1]. Errors: ArgumentError for numbers out of range.
    """
    return pipe(
        geometry.resize(imgsz),
        color.brightness(brightness, p=distort),
        color.contrast(contrast, p=distort),
        color.hsv(hue=hue, saturation=saturation, p=distort),
        geometry.affine(translate=translate, scale=scale, p=zoom),
        geometry.flip(horizontal=fliplr),
        finish.keep(visible=visible, side=side),
        finish.finish(dtype, channels_last=channels_last, mean=mean, std=std),
    )


def validation(
    imgsz: int,
    *,
    stretch: bool = False,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Pipeline:
    """Nothing random: letterboxed to ``imgsz`` square, or stretched to it as DETR's are."""
    fit = geometry.resize(imgsz) if stretch else geometry.letterbox(imgsz)
    return pipe(fit, finish.finish(dtype, channels_last=channels_last, mean=mean, std=std))


def _variant(name: str, changes: Hyper) -> dict[str, Any]:
    unknown = changes.keys() - Hyper.__annotations__
    if unknown:  # as Python says it, and not of the function beneath
        raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
    return {**VARIANTS[name], **changes}


def _closing(mixed: Pipeline, alone: Pipeline, last: int, epochs: int | None) -> Recipe:
    """``mixed``, and ``alone`` in the ``last`` of ``epochs``. Errors: ArgumentError."""
    check_whole("close_mosaic", last, 0)
    if not last:
        return mixed
    if epochs is None or last > epochs:
        raise ArgumentError(
            f"close_mosaic wanted epochs=, the length of the run, at least {last}, came {epochs}"
        )
    first = epochs - last
    return schedule({0: mixed, first: alone} if first else {0: alone})


def _pasting(p: float, mode: str) -> tuple[paste, ...]:
    """Copy-paste, where its probability is not zero. Errors: ArgumentError for another mode."""
    check_choice("copy_paste_mode", mode, SOURCES)
    return (paste(p=p, source=SOURCES[mode]),) if p else ()
