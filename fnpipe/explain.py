"""What runs where: a table of a pipeline's stages and of the bytes that each cut sends over."""

import math
from typing import Any

from fnpipe.backends import CUTS, Chosen
from fnpipe.stages.finish import finish, keep
from fnpipe.stages.masks import masks
from fnpipe.stages.stage import Color, Foreign, Layer, Layout, as_size


UNKNOWN = (640, 640)
"""Height, width where a pipeline takes photos at their own size."""


def explain(
    pipeline: Any,
    *,
    size: tuple[int, int] | None = None,
    cut: str | None = None,
    backends: Chosen | None = None,
    lacking: float = 0.0,
    mapped: bool = False,
) -> str:
    """A table: stages in the order they run, then what crosses by cut. ``size``: height, width.

    ``lacking`` is the share of photos that a pool on the device has no room for: at the cut
    ``plan`` their windows cross beside the plan. ``mapped`` is a pool of the host that the device
    reads itself.
    """
    given = None if size is None else as_size("explain", size)
    height, width = size = given or _static_size(pipeline) or UNKNOWN
    shown = CUTS if cut is None else (cut,)
    heads = "".join(f"{c:9s}" for c in shown)
    lines = [f"{'stage':48s} {'on pixels':30s} {heads}"]
    for s in sorted(pipeline.stages, key=lambda s: isinstance(s, Color | finish | keep | masks)):
        places = "".join(f"{_place(s, c):9s}" for c in shown)
        lines.append(f"{s!r:48s} {_role(s):30s} {places}")
    if backends is not None:
        lines.append(f"backends: worker {backends.worker}, device {backends.device}")
        lines.append(f"          ({backends.why})")
    lines.append(f"crosses to the device, per {width} x {height} image:")
    crossing = bytes_of(pipeline, size=size)
    for name, count in crossing.items():
        if name in shown:
            lines.append(f"  {name:10s} {_amount(count)}")
    if lacking and "plan" in shown:
        beside = round(lacking * (crossing["source"] - crossing["plan"]))
        lines.append(f"    windows  {_amount(beside)}, as the pool lacks {lacking:.1%} of photos")
    if mapped:
        lines.append("    windows  copied by the device itself, out of the pool in memory")
    return "\n".join(line.rstrip() for line in lines)


def bytes_of(pipeline: Any, *, size: tuple[int, int] | None = None) -> dict[str, int]:
    """Bytes an image that cross from a worker to the device, by cut (targets not counted).

    For ``source`` at one source pixel a pixel; it grows with the square of the zoom. A layer counts
    as if every image had it; the rings of what is pasted are not counted.
    """
    pixels = math.prod(size or _static_size(pipeline) or UNKNOWN)
    tiles = getattr(pipeline.stages[0], "tiles", 1) if pipeline.stages else 1
    pictures = 1 + sum(isinstance(s, Layer) for s in pipeline.stages)
    colors = sum(_parameters(s) for s in pipeline.stages if isinstance(s, Color))
    # A plan: id, epoch, mirror; a source, two maps and the seams of every tile; colour parameters.
    picture = 18 + tiles * (8 + 36 + 72) + 24 * round(tiles**0.5 - 1)
    numbers = picture + 4 * colors
    # On top another picture and its weight.
    whole = numbers + (pictures - 1) * (picture + 4)
    done = pipeline.finishing.dtype.itemsize * 3 * pixels
    return {
        "finished": numbers + done,
        "warped": numbers + 12 * pixels,
        "source": whole + 4 * pixels * pictures,
        "plan": whole,
    }


def _parameters(stage: Any) -> int:
    return stage.color.__code__.co_argcount - 3


def _place(stage: Any, cut: str) -> str:
    """Where a stage acts on pixels."""
    if isinstance(stage, keep) or cut == "finished":
        return "worker"
    if isinstance(stage, Foreign):
        return "refused"
    late = isinstance(stage, Color | finish | masks) or cut in ("source", "plan")
    return "device" if late else "worker"


def _role(stage: Any) -> str:
    """What a stage does to pixels, in a few words."""
    if isinstance(stage, Layout):
        return "layout: one tile a pixel"
    if isinstance(stage, Foreign):
        return "code of others, not portable"
    if isinstance(stage, Color):
        return "colour, pointwise"
    if isinstance(stage, Layer):
        return "on top, a look more a pixel"
    if isinstance(stage, finish):
        return "quantise, dtype, layout"
    if isinstance(stage, keep):
        return "targets only"
    if isinstance(stage, masks):
        return "rings to masks"
    return "geometry: into one homography"


def _amount(count: int) -> str:
    return f"{count / 1e6:8.2f} MB" if count >= 1e5 else f"{count:8.0f} B"


def _static_size(pipeline: Any) -> tuple[int, int] | None:
    sizes = [s.size for s in pipeline.stages if hasattr(s, "size")]
    return as_size("explain", sizes[-1]) if sizes else None
