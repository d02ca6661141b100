"""``fnpipe explore``: a page of sliders for a recipe, on one's own photos; needs marimo.

What the page shows is made by :func:`picture` and :func:`code`; ``app.py`` lays it out.
"""

import io
import os
import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from fnpipe import preview, recipes
from fnpipe.cli.options import drawn
from fnpipe.data.dataset import Dataset
from fnpipe.types import ArgumentError


APP = Path(__file__).with_name("app.py")
RANGES: dict[str, tuple[float, float, float]] = {
    **{f"hsv_{c}": (0.0, top, 0.005) for c, top in (("h", 0.5), ("s", 1.0), ("v", 1.0))},
    "degrees": (0.0, 180.0, 1.0),
    "shear": (0.0, 45.0, 0.5),
    "perspective": (0.0, 0.002, 0.0001),
    "scale": (0.0, 0.95, 0.05),
    "hue": (0.0, 0.5, 0.005),
    "side": (0.0, 32.0, 1.0),
    **dict.fromkeys(("saturation", "brightness", "contrast"), (0.0, 1.0, 0.005)),
    **dict.fromkeys(
        ("translate", "flipud", "fliplr", "mosaic", "distort", "zoom", "visible"), (0.0, 1.0, 0.05)
    ),
}
"""Least, greatest and step of a parameter's slider."""


def sliders(recipe: str, data: Dataset) -> dict[str, tuple[float, float, float, float]]:
    """Least, greatest, step and first value of each parameter of a recipe that has a slider.

    The first value is the recipe's default, but for mirrors of poses without a left/right map.
    """
    found = recipes.defaults(recipe)
    if data.task == "pose" and not data.keypoint_flip:
        found |= {name: 0.0 for name in ("fliplr", "flipud") if name in found}
    return {name: (*RANGES[name], found[name]) for name in found if name in RANGES}


def table(recipe: str, imgsz: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's table with the parameters that differ from its defaults."""
    known = recipes.defaults(recipe)
    changed = {name: value for name, value in values.items() if value != known[name]}
    return {"recipe": recipe, "imgsz": imgsz, **changed}


def picture(
    data: Dataset, chosen: Mapping[str, Any], index: int, *, seed: int, epoch: int
) -> bytes:
    """The sample as a model will see it, targets drawn on top: PNG."""
    file = io.BytesIO()
    preview.save(drawn(data, recipes.from_dict(chosen), index, seed=seed, epoch=epoch), file)
    return file.getvalue()


def code(chosen: Mapping[str, Any], index: int, *, seed: int, epoch: int) -> str:
    """Python that makes what is seen, given ``data``."""
    key = f"fp.key(seed={seed}, epoch={epoch}, sample={index})"
    given = [f"{k}={v!r}" for k, v in chosen.items() if k not in ("recipe", "imgsz")]
    call = ", ".join([str(chosen["imgsz"]), *given])
    return (
        "import fnpipe as fp\nfrom fnpipe import recipes\n\n"
        f"train = recipes.{chosen['recipe']}({call})\n"
        f"image, targets = train({key}, data[{index}])\n"
    )


def serve(arguments: list[str], *, port: int, open_browser: bool) -> NoReturn:
    """Become the server of the page, for this machine alone; ``arguments`` name the data set.

    Errors: ArgumentError where marimo is not installed, or the port is taken.
    """
    if find_spec("marimo") is None:
        raise ArgumentError("explore wants marimo: pip install 'fnpipe[explore]'")
    try:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
    except OSError as error:
        raise ArgumentError(f"port {port}: {error.strerror}; --port 0 takes a free one") from error
    command = [sys.executable, "-m", "marimo", "run", str(APP), "--host", "127.0.0.1"]
    port_and_browser = ["--port", str(port), *([] if open_browser else ["--headless"])]
    os.execv(sys.executable, [*command, *port_and_browser, "--", *arguments])
