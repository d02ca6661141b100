"""What commands share: options that name a data set and a recipe, and ways to print."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import fnpipe as fp
from fnpipe import recipes
from fnpipe.data.dataset import Dataset
from fnpipe.recipes.table import nearest
from fnpipe.types import ArgumentError


RED, GREEN, DIM = 31, 32, 2


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


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
    command.add_argument(
        "--split", default="train", help="of --yolo: train, val, test (default: train)"
    )
    command.add_argument(
        "--task",
        choices=("detect", "segment", "pose", "obb"),
        default="detect",
        help="which targets to read (default: detect)",
    )


def parse_source(arguments: list[str]) -> argparse.Namespace:
    """The options of :func:`add_source` alone."""
    command = argparse.ArgumentParser()
    add_source(command)
    return command.parse_args(arguments)


def source_arguments(options: argparse.Namespace) -> list[str]:
    """The reverse of :func:`parse_source`."""
    named = {
        n: getattr(options, n) for n in ("coco", "yolo", "dota", "images", "root", "split", "task")
    }
    return [a for n, given in named.items() if given is not None for a in (f"--{n}", str(given))]


def read(options: argparse.Namespace, **how: Any) -> Dataset:
    """The data set that a command was asked for."""
    if options.yolo:
        where = {"split": options.split, "task": options.task, "root": options.root}
        return fp.read_yolo(options.yolo, **where, **how)
    name = "--coco" if options.coco else "--dota"
    if options.images is None:
        raise ArgumentError(f"{name} needs --images, the folder of its photos")
    if options.dota:
        return fp.read_dota(options.images, options.dota, **how)
    return fp.read_coco(options.coco, options.images, task=options.task, **how)


def add_recipe(command: argparse.ArgumentParser, *, default: str = "yolo") -> None:
    """Options that name a pipeline."""
    command.add_argument(
        "--recipe",
        default=default,
        metavar="NAME",
        help=f"{', '.join(recipes.RECIPES)}, or a TOML file (default: {default})",
    )
    command.add_argument("--size", type=positive, default=640, help="output side (default: 640)")


def recipe(options: argparse.Namespace) -> fp.Pipeline:
    """The pipeline that a command was asked for."""
    name = options.recipe
    if name in recipes.RECIPES:
        return recipes.RECIPES[name](options.size)
    if not Path(name).is_file():
        raise ArgumentError(f"--recipe: no file or recipe {name}; {nearest(name, recipes.RECIPES)}")
    return recipes.from_toml(Path(name))


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
