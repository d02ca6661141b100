"""The cut ``plan`` end to end: workers draw and annotate, the GPU renders, boxes come along.

``python bench/plan.py [--json] [--out DIR] [--workers N]``. No model: the consumer only waits for
the batch to be finished. ``host`` is what a step costs the main process when the parcel is there.
"""

import os
import time
from argparse import ArgumentParser, Namespace
from typing import Any

import contract
import peers
import torch
from contract import Row


SIZE = 640
BATCH = 64
CASE = f"plan cut, mosaic + affine + hsv + flip, {SIZE}, batch {BATCH}, with boxes"


def measure(options: Namespace) -> list[Row]:
    """Images a second through the loader, and the host's share of a step."""
    import fnpipe as fp

    if not torch.cuda.is_available():
        return [Row(CASE, "fnpipe/triton", None, "images/s", note="no CUDA device here")]
    device = torch.device("cuda", torch.cuda.current_device())
    pool = peers.pool(peers.read_photos(), device=device, repeat=options.repeat)
    loader = fp.Loader(
        pool.data, peers.pipeline(SIZE, dtype=torch.bfloat16), batch_size=BATCH, seed=0,
        device=device, cut="plan", pool=pool, workers=options.workers, drop_last=True, prefetch=8,
    )  # fmt: skip
    rates, boxes = [], 0
    for epoch in range(4):
        start, images = time.perf_counter(), 0
        for batch in loader:
            images += len(batch)
            boxes += len(batch.boxes)
        torch.cuda.synchronize()
        if epoch:
            rates.append(images / (time.perf_counter() - start))
    note = f"{options.workers} workers, {boxes} boxes in all"
    return [
        Row(CASE, "fnpipe/triton", sorted(rates)[1], "images/s", max(rates) - min(rates), note),
        Row(f"{CASE}: host", "fnpipe/triton", host_cost(loader), "ms/step"),
    ]


def host_cost(loader: Any) -> float:
    """Milliseconds that the main process spends on a step: copy, unpack, launch."""
    from fnpipe.feed.addresses import Address
    from fnpipe.packing import packed

    buffer = packed(loader.job.prepare(Address(0, 0))).pin_memory()
    loader.close()  # so that what is measured has the machine to itself
    times = []
    for _ in range(200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loader._complete(loader._move(buffer), loader.job.recipe)
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[100]


def add_options(parser: ArgumentParser) -> None:
    """Workers, and how often the photos are repeated."""
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--repeat", type=int, default=64, help="times the photos are repeated")


if __name__ == "__main__":
    contract.main(__file__, measure, description=__doc__, against=None, configure=add_options)
