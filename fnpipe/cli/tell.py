"""Commands that tell: ``check``, ``explain``, ``replay`` and ``bill``."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import fnpipe as fp
from fnpipe.cli.options import (
    DIM,
    GREEN,
    RED,
    add_json,
    add_recipe,
    add_source,
    check_index,
    drawn,
    paint,
    picture,
    positive,
    print_json,
    read,
    recipe,
    recipe_at,
)
from fnpipe.cli.show import digest
from fnpipe.data.dataset import Dataset
from fnpipe.explain import bytes_of
from fnpipe.schedules import Schedule


NOTES = {
    *("clipped", "snapped", "keypoint outside", "crowd dropped"),
    *("photo without label file", "empty label file"),
}
"""What a sound data set may have. All else that a reader reports is a problem."""

MOST = 1 / 2
"""A share that a sound data set does not reach: of DOTA8, 16 of 133 instances leave their photo."""


def findings(data: Dataset) -> dict[str, Any]:
    """What :func:`run_check` says of a data set, as a table."""
    counts = data.report.counts
    instances = torch.bincount(data.targets.owner, minlength=len(data))
    per_class = torch.bincount(data.targets.labels, minlength=len(data.names)).tolist()
    problems = {kind: n for kind, n in counts.items() if kind not in NOTES}
    unlikely = suspicions(data)
    if unlikely:
        problems["unlikely"] = len(unlikely)
    return {
        "photos": len(data),
        "photos_without_instances": int((instances == 0).sum()),
        "instances": len(data.targets),
        "classes": dict(zip(_distinct(data), per_class, strict=True)),
        "problems": problems,
        "notes": {kind: n for kind, n in counts.items() if kind in NOTES},
        "lines": [*data.report.lines, *(f"unlikely: {what}" for what in unlikely)],
    }


def _distinct(data: Dataset) -> list[str]:
    """The classes' names, of those that several have with the id in the file."""
    return [
        f"{name} ({id})" if data.names.count(name) > 1 else name
        for name, id in zip(data.names, data.categories, strict=True)
    ]


def suspicions(data: Dataset) -> list[str]:
    """What is right row by row, and is hardly meant of the whole data set."""
    count, beyond = len(data.targets), data.report.counts.get("clipped", 0)
    found = []
    if beyond > count * MOST:
        found.append(
            f"{beyond} of {count} instances leave their photo, as where x0, y0, x1, y1 stands for "
            "x, y, width, height"
        )
    tiny = int(((data.targets.boxes[:, 2:] - data.targets.boxes[:, :2]).amax(1) < 2.0).sum())
    if tiny > count * MOST:
        found.append(
            f"{tiny} of {count} boxes have no side of 2 pixels, as where fractions stand for pixels"
        )
    return found


def run_check(options: argparse.Namespace) -> int:
    """0 where nothing is wrong, 1 where something is."""
    scan = "header" if options.quick else "decode"
    found = findings(read(options, rows=options.rows or "drop", scan=scan))
    problems, notes = found["problems"], found["notes"]
    if options.json:
        print_json(found)
        return 1 if problems else 0
    used = sum(count > 0 for count in found["classes"].values())
    print(
        f"{found['photos']} photos, {found['photos_without_instances']} of them without instances; "
        f"{found['instances']} instances of {used} classes, out of {len(found['classes'])}"
    )
    for line in found["lines"]:
        kind, _, what = line.partition(": ")
        print(f"{paint(kind, DIM if kind in NOTES else RED)}: {what}")
    for kind, count in (problems | notes).items():
        print(f"{count:8d} {paint(kind, DIM if kind in NOTES else RED)}")
    if problems:
        print(paint(f"{sum(problems.values())} problems", RED))
    else:
        print(paint("no problem found", GREEN))
    return 1 if problems else 0


def run_explain(options: argparse.Namespace) -> None:
    asked = recipe(options)
    parts = asked if isinstance(asked, Schedule) else Schedule((0,), (asked,))
    if options.json:
        tables = [
            {"stages": [repr(s) for s in each.stages], "bytes_an_image": bytes_of(each)}
            for each in parts.values
        ]
        by_epoch = {"from_epoch": dict(zip(parts.starts, tables, strict=True))}
        print_json(by_epoch if len(tables) > 1 else tables[0])
        return
    texts = [each.explain() for each in parts.values]
    heads = [f"from epoch {start} on\n" if len(texts) > 1 else "" for start in parts.starts]
    print("\n\n".join(map("".join, zip(heads, texts, strict=True))))


def run_replay(options: argparse.Namespace) -> None:
    """One sample anew from its address: its plan in numbers, its picture, its digest."""
    at = {"seed": options.seed, "epoch": options.epoch}
    data, train = read(options), recipe_at(options, **at)
    index = check_index(options.index, data, name="INDEX")
    plan = train.draw(fp.key(**at, sample=torch.tensor([index])), data)
    told = replayed(train, plan, data)
    told["sha256"] = digest([fp.make_batch(data, train, [index], **at)])
    if options.json:
        print_json(told)
    else:
        for name, numbers in told.items():
            lines = numbers if isinstance(numbers, list) else [numbers]
            print(f"{name:12s}", *lines, sep="\n    " if len(lines) > 1 else " ")
    if options.out:
        fp.preview.save(drawn(data, train, index, **at), options.out)


def replayed(train: fp.Pipeline, plan: fp.Plan, data: Dataset) -> dict[str, Any]:
    """The plan of one sample, in numbers that can be read."""
    sources = plan.sources[0].tolist()
    colors = {
        s.name: [round(x, 6) for x in row[0].tolist()]
        for s, row in zip(train.colors, plan.colors, strict=True)
    }
    return {
        "pipeline": repr(train),
        "photos": ["(none)" if i < 0 else f"{i} {data.path(i)}" for i in sources],
        "forward": [str([round(x, 5) for x in m.flatten().tolist()]) for m in plan.forward[0]],
        "mirrored": dict(zip(("across", "down"), plan.mirror[0].tolist(), strict=True)),
        "colors": colors,
    }


def run_bill(options: argparse.Namespace) -> None:
    due = fp.bill(read(options), longest=options.longest, folder=options.folder)
    if options.json:
        print_json(asdict(due))
    else:
        print(due)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    look = commands.add_parser(
        "check",
        help="find every problem of a data set, with its file and row",
        description="Reads all labels and decodes all photos of a data set. Exits with 1 where it "
        "found a problem, with 0 where there is at most something to note.",
    )
    look.set_defaults(run=run_check)
    add_source(look)
    look.add_argument("--quick", action="store_true", help="headers of photos only")
    add_json(look)
    say = commands.add_parser(
        "explain",
        help="say what a recipe does, where, and what crosses to the device",
        description="Prints a recipe's stages, which side of each cut they run on, and the bytes "
        "that cross.",
    )
    say.set_defaults(run=run_explain)
    add_recipe(say)
    add_json(say)
    add_replay(
        commands.add_parser(
            "replay",
            help="make one sample of a run anew, from its seed, epoch and index",
            description="Prints the plan of a sample, in numbers, and the digest of its bytes.",
        )
    )
    due = commands.add_parser(
        "bill",
        help="say what keeping your data set's photos decoded would cost",
        description="Prints the bytes that a pool of a data set's photos takes, the time to "
        "build it, and what is free in memory, on the disk and on the device. Makes nothing.",
    )
    due.set_defaults(run=run_bill)
    add_source(due)
    due.add_argument("--longest", type=positive, help="shrink photos to so many pixels a side")
    due.add_argument("--folder", type=Path, metavar="DIR", help="where a pool on disk would lie")
    add_json(due)


def add_replay(again: argparse.ArgumentParser) -> None:
    """Options of ``replay``."""
    again.set_defaults(run=run_replay)
    again.add_argument("seed", type=int, metavar="SEED")
    again.add_argument("epoch", type=int, metavar="EPOCH")
    again.add_argument("index", type=int, metavar="INDEX", help="the sample: a photo's number")
    add_source(again)
    add_recipe(again)
    again.add_argument("--out", type=picture, help="also draw it, as PNG")
    add_json(again)
