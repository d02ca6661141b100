"""``python -m fnpipe demo``, ``preview`` and ``bill``."""

import argparse
import hashlib
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.types import ArgumentError, Batch, DataError, NumericsError


ROWS = 4
"""Rows and columns of the demo's picture: an epoch a row."""


def training(size: int, *, mirrored: bool = True) -> fp.Pipeline:
    """What the commands show: the usual augmentation of a detector."""
    return fp.pipe(
        fp.mosaic(size),
        fp.affine(translate=0.1, scale=0.5),
        fp.hsv(hue=0.015, saturation=0.7, value=0.4),
        fp.flip(horizontal=0.5 if mirrored else 0.0),
        fp.finish(torch.uint8),
    )


def digest(batches: Iterable[Batch]) -> str:
    """SHA-256 of the bytes of images, boxes and labels, in that order, batch by batch."""
    seen = hashlib.sha256()
    for batch in batches:
        for tensor in (batch.images, batch.boxes, batch.labels):
            seen.update(tensor.contiguous().numpy().tobytes())
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


def read(options: argparse.Namespace) -> Dataset:
    """The data set that a command was asked for."""
    if options.yolo:
        return fp.read_yolo(options.yolo, split=options.split, task=options.task, root=options.root)
    if options.images is None:
        given = "--coco" if options.coco else "--dota"
        raise ArgumentError(f"{given} needs --images, the folder of its photos")
    if options.dota:
        return fp.read_dota(options.images, options.dota)
    return fp.read_coco(options.coco, options.images, task=options.task)


def run_preview(options: argparse.Namespace) -> None:
    from fnpipe import preview

    data = read(options)
    if not 0 <= options.index < len(data):
        raise ArgumentError(f"--index must be 0 to {len(data) - 1}, got {options.index}")
    ids = range(options.index, min(options.index + options.count, len(data)))
    if options.plain:
        samples = [data[i] for i in ids]
        pictures = [
            preview.draw(s.image, s.targets, names=data.names, zoom=320 / max(s.image.shape[1:]))
            for s in samples
        ]
        shown = preview.tile(pictures)
    else:
        # A pose without a left/right map cannot be mirrored, and says so where it is tried.
        mirrored = data.task != "pose" or bool(data.keypoint_flip)
        if not mirrored:
            print("keypoints without a left/right map: photos are not mirrored")
        train = training(options.size, mirrored=mirrored)
        batch = fp.make_batch(
            data, train, torch.tensor(ids), seed=options.seed, epoch=options.epoch
        )
        shown = preview.grid(batch, names=data.names)
    preview.save(shown, options.out)
    print(f"{options.out}: photos {ids.start} to {ids.stop - 1} of {len(data)}")


def run_bill(options: argparse.Namespace) -> None:
    from fnpipe.data.bill import bill

    print(bill(read(options), longest=options.longest, folder=options.folder))


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("fnpipe", description="Training input with equal bytes anywhere.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_demo(
        commands.add_parser(
            "demo",
            help="augment five photos and show all that is known of the result",
            description="Augments five photos that come with scikit-image, draws the result with "
            "its targets, and prints what runs where, images a second, and a digest of the "
            "batches' bytes that is the same on every machine.",
        )
    )
    add_preview(
        commands.add_parser(
            "preview",
            help="draw photos of your data set as a model will see them",
            description="Draws consecutive photos of a data set, augmented, with their targets.",
        )
    )
    add_bill(
        commands.add_parser(
            "bill",
            help="say what keeping your data set's photos decoded would cost",
            description="Prints the bytes that a pool of a data set's photos takes, the time to "
            "build it, and what is free in memory, on the disk and on the device. Makes nothing.",
        )
    )
    return top


def add_demo(demo: argparse.ArgumentParser) -> None:
    """Options of ``demo``."""
    demo.set_defaults(run=run_demo)
    demo.add_argument("--seed", type=int, default=0, help="of all randomness (default: 0)")
    demo.add_argument("--out", type=Path, default=Path("demo.png"), help="default: demo.png")


def add_preview(show: argparse.ArgumentParser) -> None:
    """Options of ``preview``."""
    show.set_defaults(run=run_preview)
    add_source(show)
    show.add_argument("--index", type=int, default=0, help="the first photo (default: 0)")
    show.add_argument("--count", type=positive, default=16, help="how many (default: 16)")
    show.add_argument("--seed", type=int, default=0, help="of all randomness (default: 0)")
    show.add_argument("--epoch", type=int, default=0, help="each looks different (default: 0)")
    show.add_argument("--size", type=positive, default=640, help="output side (default: 640)")
    show.add_argument("--plain", action="store_true", help="the photos as they are, not augmented")
    show.add_argument("--out", type=Path, default=Path("preview.png"), help="default: preview.png")


def add_bill(due: argparse.ArgumentParser) -> None:
    """Options of ``bill``."""
    due.set_defaults(run=run_bill)
    add_source(due)
    due.add_argument("--longest", type=positive, help="shrink photos to so many pixels a side")
    due.add_argument("--folder", type=Path, metavar="DIR", help="where a pool on disk would lie")


def add_source(command: argparse.ArgumentParser) -> None:
    """Options that name a data set."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--coco", type=Path, metavar="JSON", help="COCO annotations")
    source.add_argument("--yolo", type=Path, metavar="YAML", help="a YOLO data set's data.yaml")
    source.add_argument("--dota", type=Path, metavar="DIR", help="a folder of DOTA's texts")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0, or 2 with one line on stderr for a fault of the user's or the data's."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except (ArgumentError, DataError, NumericsError, OSError) as error:
        print("fnpipe:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
