"""One GPU: images a second from a pool in device memory to finished bf16 channels-last batches.

``python bench/device.py [--json] [--out DIR] [--plot FILE.png] [--sizes ...] [--batches ...]``
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from itertools import cycle
from pathlib import Path

import contract
import peers
import torch
from contract import Contestant, Row
from torch import Tensor


CASE = "mosaic + affine + hsv + flip + quantise + bf16 channels-last"
PAINT = "colour pass alone, float32 planes in, bf16 channels-last out"
PATHS = ("eager", "compiled", "triton")
COPY = "bound/device copy"
PLANS = 4
"""Batches that take turns, so that a cache does not serve one batch over and over."""


def ours(
    path: str, photos: peers.Photos, *, batch: int, size: int, device: torch.device
) -> Contestant:
    """One of our paths: render batches, drawn ahead as loader workers do, from a device pool."""
    import fnpipe as fp

    train = peers.pipeline(size, dtype=torch.bfloat16)
    pool = peers.pool(photos, device=device)
    ids = [(torch.arange(batch) + i * batch) % len(pool.data) for i in range(PLANS)]
    drawn = [train.draw(fp.key(seed=0, epoch=0, sample=i), pool.data) for i in ids]
    plans = cycle([plan.to(device) for plan in drawn])

    def run() -> Tensor:
        return train.render(next(plans), pool.sources, backend=path)

    return Contestant(f"fnpipe/{path}", run, batch, note="drawn ahead, targets apart")


def bytes_an_image(photos: peers.Photos, size: int) -> int:
    """Bytes that no renderer can save: the output written once, its source pixels read once.

    Output: 3 channels of 2 bytes. Source: 3 bytes a pixel, counted at the mean zoom, where the
    mosaic of four photos at ``size`` on the longer side fills the output but for its grey margins.
    An output pixel that is smaller than life reads four taps at most.
    """
    areas = torch.tensor([float(image[0].numel()) for image in photos.images])
    longest = torch.tensor([float(max(image.shape)) for image in photos.images])
    filled = (areas / longest**2).mean()
    zooms = torch.linspace(1 - peers.SCALE, 1 + peers.SCALE, 101)[:, None] * size / longest
    taps = torch.minimum(1 / zooms**2, torch.tensor(4.0)).mean()
    return round(size * size * (3 * 2 + 3 * float(filled * taps)))


def device_copy(an_image: int, *, device: torch.device) -> Contestant:
    """A copy of half a gigabyte, too big for a cache, as so many images of ``an_image`` bytes.

    One big copy whatever the batch: a small one would measure the host that launches it.
    """
    source = torch.randint(256, (2**29,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    moved = source.numel() + target.numel()
    note = f"{an_image / 1e6:.2f} MB an image: output written once, source pixels read once"
    return Contestant(COPY, lambda: target.copy_(source), moved / an_image, note=note)


def case(
    size: int, batch: int, photos: peers.Photos, device: torch.device, paths: list[str]
) -> list[Row]:
    """Everybody on one size and one batch."""
    shape = {"batch": batch, "size": size, "device": device}
    an_image = bytes_an_image(photos, size)
    contestants = [
        contract.enter(COPY, partial(device_copy, an_image, device=device)),
        *(contract.enter(f"fnpipe/{path}", partial(ours, path, photos, **shape)) for path in paths),
        contract.enter("kornia", partial(peers.kornia, photos, **shape)),
        contract.enter("torchvision", partial(peers.torchvision, photos, **shape)),
        contract.enter("dali", partial(peers.dali, photos, **shape)),
    ]
    return contract.compete(
        f"{CASE}, {size}, batch {batch}{photos.caveat}",
        contestants,
        unit="images/s",
        timer=contract.cuda_seconds,
        rounds=9,
    )


def paint(
    path: str, photos: peers.Photos, *, batch: int, size: int, device: torch.device
) -> Contestant:
    """The device's part of the cut ``warped``: hsv and quantise on planes that are there."""
    import fnpipe as fp
    from fnpipe.backends import painter

    train = peers.pipeline(size, dtype=torch.bfloat16)
    data = fp.read_coco(photos.annotations, photos.folder)
    plan = train.draw(fp.key(seed=0, epoch=0, sample=torch.arange(batch) % len(data)), data)
    colors = tuple(c.to(device) for c in plan.colors)
    run = painter(train.recipe(plan.size), path)
    planes = [torch.rand(batch, 3, size, size, device=device) * 255 for _ in range(PLANS)]
    turns = cycle(planes)
    return Contestant(f"fnpipe/{path}", lambda: run(next(turns), colors), batch)


def color_pass(
    size: int, batch: int, photos: peers.Photos, device: torch.device, paths: list[str]
) -> list[Row]:
    """Ours against a copy of the same bytes: 4 read and 2 written a code."""
    shape = {"batch": batch, "size": size, "device": device}
    floor = partial(device_copy, size * size * 3 * (4 + 2), device=device)
    return contract.compete(
        f"{PAINT}, {size}, batch {batch}",
        [
            contract.enter(COPY, floor),
            *(
                contract.enter(f"fnpipe/{path}", partial(paint, path, photos, **shape))
                for path in paths
            ),
        ],
        unit="images/s",
        timer=contract.cuda_seconds,
        rounds=9,
    )


def measure(options: Namespace) -> list[Row]:
    """Every size with every batch, and the picture where one is asked for."""
    if not torch.cuda.is_available():
        return [Row(CASE, "fnpipe/triton", None, "images/s", note="no CUDA device here")]
    device = torch.device("cuda", torch.cuda.current_device())
    photos = peers.read_photos()
    results = {}
    for size in options.sizes:
        for batch in options.batches:
            results[size, batch] = case(size, batch, photos, device, options.paths)
            torch.cuda.empty_cache()
    if options.plot:
        plot(results, options.plot)
    rows = [row for rows in results.values() for row in rows]
    return rows + color_pass(640, 64, photos, device, options.paths)


def plot(results: dict[tuple[int, int], list[Row]], file: Path) -> None:
    """Images a second over the batch, a panel a size, a line a contestant; ours are drawn thick."""
    from matplotlib.figure import Figure

    sizes = sorted({size for size, _ in results})
    figure = Figure(figsize=(4 * len(sizes) + 2, 4.5), layout="constrained")
    panels = figure.subplots(1, len(sizes), squeeze=False)[0]
    names = list(dict.fromkeys(row.who for rows in results.values() for row in rows if row.value))
    for panel, size in zip(panels, sizes, strict=True):
        for index, who in enumerate(names):
            points = [
                (batch, row.value)
                for (at, batch), rows in sorted(results.items())
                for row in rows
                if at == size and row.who == who and row.value
            ]
            ours = who.startswith(contract.OURS)
            style = "-" if ours else ":" if who == COPY else "--"
            wide = 2.5 if ours else 1.2
            x, y = zip(*points, strict=True) if points else ((), ())
            panel.plot(x, y, style, color=f"C{index}", linewidth=wide, marker="o", label=who)
        panel.set(xscale="log", yscale="log", xlabel="images a batch", title=f"{size} x {size}")
        panel.set_xticks(batches := sorted({batch for _, batch in results}), map(str, batches))
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("images a second")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.suptitle(CASE)
    figure.savefig(file, dpi=150)


def add_options(parser: ArgumentParser) -> None:
    """The sizes and batches to try, and the picture."""
    parser.add_argument("--sizes", type=int, nargs="+", default=[320, 640, 1280])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--paths", nargs="+", default=list(PATHS), choices=PATHS)
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the table")


if __name__ == "__main__":
    contract.main(__file__, measure, description=__doc__, against=COPY, configure=add_options)
