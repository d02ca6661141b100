"""The command ``bench``: images a second of each part of the work, on your photos and machine."""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from tqdm import tqdm

import fnpipe as fp
from fnpipe.backends import best
from fnpipe.cli.options import (
    add_json,
    add_recipe,
    add_source,
    positive,
    print_json,
    read,
    recipe_at,
    seconds,
)
from fnpipe.data.dataset import Dataset
from fnpipe.ops.windows import gather


TURNS = 5


def parts(data: Dataset, train: fp.Pipeline, count: int) -> dict[str, Callable[[], object]]:
    """What is measured, by name: each call does ``count`` images' worth of it."""
    ids = torch.arange(count) % len(data)
    plan = train.draw(fp.key(seed=0, epoch=0, sample=ids), data)
    sources, local = gather(plan, data.read)
    photos = plan.sources[:, 0].tolist()
    backend, _ = best(torch.device("cpu"), train.recipe(plan.size))
    rendered = {f"render, {b}": b for b in dict.fromkeys(["eager", backend])}
    return {
        "decode one photo": lambda: [data.read(i) for i in photos],
        "draw": lambda: train.draw(fp.key(seed=0, epoch=0, sample=ids), data),
        "annotate": lambda: train.annotate(plan, data),
        **{
            name: lambda backend=backend: train.render(local, sources, backend=backend)
            for name, backend in rendered.items()
        },
    }


def rate(run: Callable[[], object], count: int, span: float) -> tuple[float, float]:
    """Median images a second of some turns, and the distance of their quartiles."""
    run()
    rates = []
    for _ in range(TURNS):
        calls, start = 0, time.perf_counter()
        while not calls or time.perf_counter() - start < span / TURNS:
            run()
            calls += 1
        rates.append(calls * count / (time.perf_counter() - start))
    low, middle, high = statistics.quantiles(rates, n=4)
    return middle, high - low


def run_bench(options: argparse.Namespace) -> None:
    data, train = read(options), recipe_at(options)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        work = parts(data, train, options.count)
        rows = []
        for name, run in tqdm(work.items(), leave=False, disable=None):
            value, spread = rate(run, options.count, options.seconds)
            rows.append({"what": name, "value": value, "spread": spread, "unit": "images/s"})
    finally:
        torch.set_num_threads(threads)
    if options.json:
        print_json({"pipeline": repr(train), "batch": options.count, "rows": rows})
        return
    print(f"{train!r}\none core of the CPU, batches of {options.count}; images / s:")
    for row in rows:
        print(f"{row['what']:20s} {row['value']:10,.1f}  +- {row['spread'] / 2:,.1f}")


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    clock = commands.add_parser(
        "bench",
        help="measure what a recipe costs on this machine, with your photos",
        description="Prints images a second, on one core, of decoding, drawing, moving targets and "
        "rendering: medians of five turns.",
    )
    clock.set_defaults(run=run_bench)
    add_source(clock)
    add_recipe(clock)
    clock.add_argument("--count", type=positive, default=16, help="images a batch (default: 16)")
    clock.add_argument("--seconds", type=seconds, default=2.0, help="for each part (default: 2)")
    add_json(clock)
