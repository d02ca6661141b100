"""Commands that draw: ``demo`` and ``preview``."""

import argparse
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import fnpipe as fp
from fnpipe.cli.options import (
    add_recipe,
    add_source,
    as_codes,
    check_index,
    picture,
    port,
    positive,
    read,
    recipe_at,
    source_arguments,
    without_mirrors,
)
from fnpipe.types import ArgumentError, Batch


ROWS = 4
"""Rows and columns of the demo's picture: an epoch a row."""
PHOTOS = 16
"""In a preview."""
DEFAULTS: dict[str, Any] = {"recipe": "yolo", "seed": 0, "epoch": 0}
IGNORED: dict[str, tuple[str, ...]] = {
    "plain": ("recipe", "size", "seed", "epoch"),
    "sheet stages": ("count",),
}
"""What is no matter where photos are drawn as they are, and where one is."""


def training(size: int) -> fp.Pipeline:
    """What the demo shows: the usual augmentation of a detector."""
    return fp.pipe(
        fp.mosaic(size),
        fp.affine(translate=0.1, scale=0.5),
        fp.hsv(hue=0.015, saturation=0.7, value=0.4),
        fp.flip(horizontal=0.5),
        fp.finish(torch.uint8),
    )


def digest(batches: Iterable[Batch]) -> str:
    """SHA-256 of the bytes of images, boxes and labels, in that order, batch by batch."""
    seen = hashlib.sha256()
    for batch in batches:
        for tensor in (batch.images, batch.boxes, batch.labels):
            seen.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()


def run_demo(options: argparse.Namespace) -> None:
    from fnpipe import demo, preview

    data = demo.load()
    train = training(640)
    print(train.explain())
    start = time.perf_counter()
    batches = [
        fp.make_batch(
            data, train, (torch.arange(ROWS) + row) % len(data), seed=options.seed, epoch=row
        )
        for row in range(ROWS)
    ]
    seconds = time.perf_counter() - start
    rows = [preview.grid(batch, names=data.names, columns=ROWS) for batch in batches]
    preview.save(torch.cat(rows, dim=1), options.out)
    count = sum(map(len, batches))
    print(f"{count / seconds:.1f} images / s: eager reference on the CPU, photos decoded anew")
    print(f"sha256 {digest(batches)}: images, boxes, labels")
    print(f"{options.out}: {count} images with their targets, an epoch a row")


def run_preview(options: argparse.Namespace) -> None:
    from fnpipe import preview, sheets

    _refuse_ignored(options)
    data = read(options)
    first = check_index(options.index, data)
    count = options.count or (len(data) if options.sheet == "counts" else PHOTOS)
    ids = range(first, min(first + count, len(data)))
    at = {"seed": options.seed, "epoch": options.epoch}
    train = as_codes(without_mirrors(recipe_at(options, **at), data))
    said = f"photos {ids.start} to {ids.stop - 1} of {len(data)}"
    if options.sheet == "seeds":
        shown, said = sheets.seeds(data, train, first, count=count, **at), f"photo {first}"
    elif options.sheet == "stages":
        shown, said = sheets.stages(data, train, first, **at), f"photo {first}, stage by stage"
    elif options.sheet == "pairs":
        shown = sheets.pairs(data, train, ids, **at)
    elif options.sheet == "counts":
        shown = sheets.counts(data, train, ids, **at)
    elif options.plain:
        shown = sheets.plain(data, ids)
    else:
        batch = fp.make_batch(data, train, torch.tensor(ids), **at)
        shown = preview.grid(batch, names=data.names)
    preview.save(shown, options.out)
    print(f"{options.out}: {said}")


def _refuse_ignored(options: argparse.Namespace) -> None:
    """Errors: ArgumentError for an option that what is drawn could only ignore."""
    kind = "plain" if options.plain else f"sheet {options.sheet}"
    for name in IGNORED.get(kind, ()):
        if getattr(options, name) != DEFAULTS.get(name):
            raise ArgumentError(f"--{name} is not for --{kind}; leave it out")


def run_explore(options: argparse.Namespace) -> None:
    from fnpipe import explore

    read(options)  # what is wrong with it is said here, not on the page
    explore.serve(source_arguments(options), port=options.port, open_browser=options.open)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    demo = commands.add_parser(
        "demo",
        help="augment five photos and show all that is known of the result",
        description="Augments five photos that come with scikit-image, draws the result with "
        "its targets, and prints what runs where, images a second, and a digest of the "
        "batches' bytes that is the same on every machine.",
    )
    demo.set_defaults(run=run_demo)
    demo.add_argument("--seed", type=int, default=0, help="of all randomness (default: 0)")
    demo.add_argument("--out", type=picture, default=Path("demo.png"), help="default: demo.png")
    add_preview(
        commands.add_parser(
            "preview",
            help="draw photos of your data set as a model will see them",
            description="Draws consecutive photos of a data set, augmented, with their targets; "
            "or one of the sheets.",
        )
    )
    look = commands.add_parser(
        "explore",
        help="a local page with sliders for a recipe, on your photos",
        description="Serves a page to this machine alone: sliders for a recipe's parameters and "
        "for seed, epoch and photo, and the code that makes what is seen.",
    )
    look.set_defaults(run=run_explore)
    add_source(look)
    look.add_argument("--port", type=port, default=8765, help="default: 8765; 0 takes a free one")
    look.add_argument("--open", action="store_true", help="open it in the browser")


def add_preview(show: argparse.ArgumentParser) -> None:
    """Options of ``preview``."""
    show.set_defaults(run=run_preview)
    add_source(show)
    add_recipe(show)
    show.add_argument("--index", type=int, default=0, help="the first photo (default: 0)")
    show.add_argument(
        "--count", type=positive, help=f"how many (default: {PHOTOS}; all for --sheet counts)"
    )
    show.add_argument("--seed", type=int, default=0, help="of all randomness (default: 0)")
    show.add_argument("--epoch", type=int, default=0, help="each looks different (default: 0)")
    how = show.add_mutually_exclusive_group()
    how.add_argument("--plain", action="store_true", help="the photos as they are, not augmented")
    how.add_argument(
        "--sheet",
        choices=("pairs", "seeds", "stages", "counts"),
        help="before and after; one photo under many seeds; one photo stage by stage; histograms "
        "of classes and box sizes before and after",
    )
    show.add_argument(
        "--out", type=picture, default=Path("preview.png"), help="default: preview.png"
    )
