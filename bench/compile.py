"""What compiling costs: time cold and warm, graphs, kernels, and what another size sets off.

``python bench/compile.py [--json] [--out DIR] [--small]``. On the CPU ``compiled`` and ``package``,
on a GPU ``compiled`` and ``triton``. Photos are noise: their content does not matter here.
"""

import os
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial

import contract
import torch
from contract import Row


PIPELINES = {
    "mosaic + affine + hsv + flip": lambda fp, size: fp.pipe(
        fp.mosaic(size), fp.affine(translate=0.1, scale=0.5),
        fp.hsv(hue=0.015, saturation=0.7, value=0.4), fp.flip(horizontal=0.5),
        fp.finish(torch.bfloat16, channels_last=True),
    ),
    "letterbox": lambda fp, size: fp.pipe(
        fp.letterbox(size), fp.finish(torch.bfloat16, channels_last=True)
    ),
}  # fmt: skip
BATCHES = (64, 64, 17, 1)
SIZES = (320, 512, 640)


class Album:
    """Photos of noise, as a data set."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (3, 96, 128)
        self.images = [
            torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            for _ in range(count)
        ]
        self.sizes = torch.tensor([[128, 96]] * count)


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call, the device's work included."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(options: Namespace) -> list[Row]:
    """Every pipeline with every backend that compiles here."""
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backends = ("compiled", "triton") if device.type == "cuda" else ("compiled", "package")
    sizes = SIZES[:1] if options.small else SIZES
    rows = []
    for name in list(PIPELINES)[1:] if options.small else PIPELINES:
        for backend in backends:
            rows += one(name, backend, sizes, device)
    return rows


def one(name: str, backend: str, sizes: tuple[int, ...], device: torch.device) -> list[Row]:
    """A pipeline over all sizes and batches: what was compiled, and for how long."""
    from torch._dynamo.utils import counters

    import fnpipe as fp
    from fnpipe.backends import renderer
    from fnpipe.ops.warp import pack_sources

    album = Album(16)
    sources = pack_sources(album.images).to(device)
    torch._dynamo.reset()
    counters.clear()
    who, rows = f"fnpipe/{backend}", []
    for size in sizes:
        pipeline = PIPELINES[name](fp, size)
        run = renderer(pipeline.recipe((size, size)), backend)
        for step, batch in enumerate(BATCHES):
            ids = torch.arange(batch) % 16
            plan = pipeline.draw(fp.key(seed=0, epoch=step, sample=ids), album).to(device)
            took = seconds(partial(run, sources, plan))
            what = ("first", "again", "other batch", "batch of one")[step]
            rows.append(Row(f"{name}, {size}: {what}, {batch}", who, took, "s"))
    graphs = counters["stats"]["unique_graphs"]
    breaks = sum(counters["graph_break"].values())
    sizes_seen = len(sizes)
    rows.append(Row(f"{name}: graphs for {sizes_seen} sizes, 3 batch sizes", who, graphs, "graphs"))
    rows.append(Row(f"{name}: graph breaks", who, breaks, "breaks"))
    if backend == "triton":
        rows += kernels(name, who)
    return rows


def kernels(name: str, who: str) -> list[Row]:
    """Registers and spills of the fused kernels that were made."""
    from fnpipe.ops import render_triton

    found = {(k.n_regs, k.n_spills) for k, _ in render_triton.COMPILED.values()}
    registers = max((r for r, _ in found), default=None)
    spills = max((s for _, s in found), default=None)
    return [
        Row(f"{name}: registers a thread, at most", who, registers, "registers"),
        Row(f"{name}: spilled registers, at most", who, spills, "registers"),
    ]


def add_options(parser: ArgumentParser) -> None:
    """A short form for tests."""
    parser.add_argument("--small", action="store_true", help="one size, one pipeline")


if __name__ == "__main__":
    contract.main(__file__, measure, description=__doc__, against=None, configure=add_options)
