"""What runs where: a table of a pipeline's stages and of the bytes that each cut sends over."""

from typing import Any

from fnpipe.stages.finish import finish, keep
from fnpipe.stages.stage import Color, Layout


UNKNOWN = (640, 640)


def role(stage: Any) -> str:
    """What a stage does to pixels, in a few words."""
    if isinstance(stage, Layout):
        return "layout: one tile a pixel"
    if isinstance(stage, Color):
        return "colour, pointwise"
    if isinstance(stage, finish):
        return "quantise, dtype, layout"
    if isinstance(stage, keep):
        return "targets only"
    return "geometry: into one homography"


def bytes_of(pipeline: Any, size: tuple[int, int]) -> dict[str, float]:
    """Bytes an image that cross from a worker to the device, by cut (targets not counted)."""
    pixels = size[0] * size[1]
    done = pipeline.finishing.dtype.itemsize * 3 * pixels
    tiles = getattr(pipeline.stages[0], "tiles", 1) if pipeline.stages else 1
    numbers = 4 * (sum(2 for _ in pipeline.colors) + 9 * tiles + 12)
    return {"finished": done, "warped": 12 * pixels + numbers}


def explain(pipeline: Any, *, size: tuple[int, int] | None = None) -> str:
    """A table: stages in the order they run, then the cuts. ``size`` is (height, width)."""
    height, width = size or _static_size(pipeline) or UNKNOWN
    lines = [f"{'stage':48s} {'on pixels':32s} finished  warped"]
    ordered = sorted(pipeline.stages, key=lambda s: isinstance(s, Color | finish | keep))
    for s in ordered:
        late = isinstance(s, Color | finish)
        where = ("worker", "device" if late else "worker")
        lines.append(f"{s!r:48s} {role(s):32s} {where[0]:9s} {where[1]}")
    lines.append("")
    lines.append(f"crosses to the device, per {width} x {height} image:")
    for cut, count in bytes_of(pipeline, (height, width)).items():
        lines.append(f"  {cut:10s} {count / 1e6:8.2f} MB")
    return "\n".join(lines)


def _static_size(pipeline: Any) -> tuple[int, int] | None:
    from fnpipe.stages.stage import as_size

    sizes = [s.size for s in pipeline.stages if hasattr(s, "size")]
    return as_size("explain", sizes[-1]) if sizes else None
