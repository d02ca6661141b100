"""What commands share: options that name a data set and a recipe, and ways to print."""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import UInt8
from torch import Tensor

import fnpipe as fp
from fnpipe import recipes
from fnpipe.data.dataset import TASKS, Dataset
from fnpipe.recipes.table import nearest
from fnpipe.schedules import value_at
from fnpipe.types import ArgumentError, DataError


T = TypeVar("T")
RED, GREEN, DIM = 31, 32, 2


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def seconds(text: str) -> float:
    return _parsed(text, float, lambda number: 0 < number < math.inf, "a number above 0")


def port(text: str) -> int:
    return _parsed(text, int, lambda number: 0 <= number < 2**16, "0 to 65535")


def _parsed(text: str, kind: Callable[[str], T], good: Callable[[T], bool], wanted: str) -> T:
    with suppress(ValueError):
        if good(number := kind(text)):
            return number
    raise argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}")


def picture(text: str) -> Path:
    """A file that can be written, as far as can be known before the work is done for it."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, got the folder {path}")
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"must end in .png, got {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return path


def add_source(command: argparse.ArgumentParser) -> None:
    """Options that name a data set."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--coco", type=Path, metavar="JSON", help="COCO annotations")
    source.add_argument("--yolo", type=Path, metavar="YAML", help="a YOLO data set's data.yaml")
    source.add_argument("--dota", type=Path, metavar="DIR", help="a folder of DOTA's label files")
    command.add_argument(
        "--images", type=Path, metavar="DIR", help="the photos of --coco or --dota"
    )
    command.add_argument(
        "--root", type=Path, metavar="DIR", help="of --yolo, in place of its file's path"
    )
    command.add_argument("--split", help="of --yolo: train, val, test (default: train)")
    command.add_argument(
        "--labels", metavar="NAME", help="of --yolo: the folder beside images (default: labels)"
    )
    command.add_argument(
        "--task",
        choices=TASKS,
        help="which targets to read (default: detect; of --dota: obb)",
    )
    command.add_argument(
        "--rows",
        choices=("raise", "drop"),
        help="what to do about a row that cannot be understood (default: raise; of check: drop)",
    )


def parse_source(arguments: list[str]) -> argparse.Namespace:
    """The options of :func:`add_source` alone."""
    command = argparse.ArgumentParser()
    add_source(command)
    return command.parse_args(arguments)


def source_arguments(options: argparse.Namespace) -> list[str]:
    """The reverse of :func:`parse_source`."""
    named = {
        n: getattr(options, n)
        for n in ("coco", "yolo", "dota", "images", "root", "split", "labels", "task", "rows")
    }
    return [a for n, given in named.items() if given is not None for a in (f"--{n}", str(given))]


USES: dict[str, tuple[str, ...]] = {
    "coco": ("images", "task"),
    "yolo": ("root", "split", "labels", "task"),
    "dota": ("images", "task"),
}
"""Which of the other options a kind of data set takes."""


def read(options: argparse.Namespace, **how: Any) -> Dataset:
    """The data set that a command was asked for, which has photos."""
    data = _read(options, **how)
    if not len(data):
        raise DataError(f"{options.coco or options.yolo or options.dota}: no photos")
    return data


def _read(options: argparse.Namespace, **how: Any) -> Dataset:
    kind = next(name for name in USES if getattr(options, name) is not None)
    for name in ("images", "root", "split", "labels", "task"):
        if getattr(options, name) is not None and name not in USES[kind]:
            raise ArgumentError(f"--{name} is not for --{kind}; leave it out")
    if "images" in USES[kind] and options.images is None:
        raise ArgumentError(f"--{kind} needs --images, the folder of its photos")
    how.setdefault("rows", options.rows or "raise")
    if kind == "dota":
        if options.task not in (None, "obb"):
            raise ArgumentError(f"--dota has --task obb alone, got {options.task}")
        return fp.read_dota(options.images, options.dota, **how)
    how["task"] = options.task or "detect"
    if kind == "coco":
        return fp.read_coco(options.coco, options.images, **how)
    how |= {"split": options.split or "train", "labels": options.labels or "labels"}
    return fp.read_yolo(options.yolo, root=options.root, **how)


def add_recipe(command: argparse.ArgumentParser) -> None:
    """Options that name a pipeline."""
    command.add_argument(
        "--recipe",
        default="yolo",
        metavar="NAME",
        help=f"{', '.join(recipes.RECIPES)}, or a TOML file (default: yolo)",
    )
    command.add_argument(
        "--size", type=positive, help="output side of a NAME (default: 640); a file says its own"
    )


def recipe(options: argparse.Namespace) -> Any:
    """The pipeline that a command was asked for, or the schedule of them."""
    name = options.recipe
    if name in recipes.RECIPES:
        return recipes.RECIPES[name](options.size or 640)
    if not Path(name).is_file():
        raise ArgumentError(
            f"--recipe: no file or recipe {name!r}; {nearest(name, recipes.RECIPES)}"
        )
    if options.size is not None:
        raise ArgumentError(f"--size is not for a file; write it into {name}")
    return recipes.from_toml(Path(name))


def recipe_at(options: argparse.Namespace, *, seed: int = 0, epoch: int = 0) -> fp.Pipeline:
    """The pipeline that a command was asked for, in that epoch."""
    return value_at(recipe(options), seed=seed, epoch=epoch, step=0)


def without_mirrors(pipeline: fp.Pipeline, data: Dataset) -> fp.Pipeline:
    """The pipeline for this data set: a pose without a left/right map cannot be mirrored."""
    if data.task != "pose" or data.keypoint_flip:
        return pipeline
    print("keypoints without a left/right map: photos are not mirrored")
    return fp.pipe(*(s for s in pipeline.stages if not isinstance(s, fp.flip)))


def as_codes(pipeline: fp.Pipeline) -> fp.Pipeline:
    """The same with 8-bit codes at its end, which can be shown."""
    rest = [s for s in pipeline.stages if not isinstance(s, fp.finish)]
    return fp.pipe(*rest, fp.finish(torch.uint8))


def drawn(
    data: Dataset, pipeline: fp.Pipeline, index: int, *, seed: int, epoch: int
) -> UInt8[Tensor, "3 h w"]:
    """One sample with its targets on top, enlarged to be looked at."""
    batch = fp.make_batch(data, as_codes(pipeline), [index], seed=seed, epoch=epoch)
    zoom = max(1.0, 640 / max(batch.images.shape[2:]))
    return fp.preview.draw(batch.images[0], batch.targets, names=data.names, zoom=zoom)


def check_index(index: int, data: Dataset, *, name: str = "--index") -> int:
    if not 0 <= index < len(data):
        raise ArgumentError(f"{name} must be 0 to {len(data) - 1}, got {index}")
    return index


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="for a program to read")


def print_json(table: Any) -> None:
    print(json.dumps(table, indent=2, ensure_ascii=False, default=str))


def paint(text: str, code: int) -> str:
    """Coloured where a person reads it on a terminal that has not refused (https://no-color.org)."""
    plain = (
        not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    )
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
