"""How many words differ between eager on the CPU and every other path, over real photos.

``python bench/parity.py [--json] [--out DIR] [--images N]``. Finished bf16 batches are compared,
and for eager CUDA float32 planes before quantising too. 1024 images of 640 x 640 have
1,258,291,200 codes.
"""

from argparse import ArgumentParser, Namespace

import contract
import peers
import torch
from contract import Row


SIZE = 640
BATCH = 32


def measure(options: Namespace) -> list[Row]:
    """Mosaic on and off, half of the images each."""
    import fnpipe as fp

    pool = peers.pool(peers.read_photos())
    late = (
        fp.affine(degrees=5.0, translate=peers.TRANSLATE, scale=peers.SCALE, shear=2.0),
        fp.hsv(hue=peers.HUE, saturation=peers.SATURATION, value=peers.VALUE),
        fp.flip(horizontal=peers.FLIP, vertical=0.5),
        fp.finish(torch.bfloat16, channels_last=True),
    )
    rows = []
    for name, first in (("mosaic", fp.mosaic(SIZE)), ("letterbox", fp.letterbox(SIZE))):
        pipeline = fp.pipe(first, *late)
        rows += compare(name, pipeline, pool.data, pool.sources, options.images // 2)
    return rows


def compare(name: str, pipeline: object, data: object, sources: object, images: int) -> list[Row]:
    """Differing words of every path that this machine has."""
    import fnpipe as fp
    from fnpipe.backends import renderer, warper
    from fnpipe.numerics import count_differences

    cuda = torch.cuda.is_available()
    paths = ("eager", "compiled", "triton") if cuda else ("compiled", "package")
    device = torch.device("cuda" if cuda else "cpu")
    there = sources.to(device)
    counts = dict.fromkeys(paths, 0)
    planes, words = 0, 0
    for first in range(0, images, BATCH):
        ids = (torch.arange(BATCH) + first) % len(data)
        plan = pipeline.draw(fp.key(seed=7, epoch=first, sample=ids), data)
        recipe, moved = pipeline.recipe(plan.size), plan.to(device)
        expected = renderer(recipe, "eager")(sources, plan)
        words += expected.numel()
        for path in paths:
            got = renderer(recipe, path)(there, moved)
            counts[path] += count_differences(expected, got.cpu())[0]
        if cuda:
            before = warper(recipe, "eager")(sources, plan)
            planes += count_differences(before, warper(recipe, "eager")(there, moved).cpu())[0]
    rows = [
        Row(f"{name}: of {words:,} codes differ from eager CPU", f"fnpipe/{path}", count, "words")
        for path, count in counts.items()
    ]
    if cuda:
        case = f"{name}: of {words:,} float32 words before quantising differ"
        rows.append(Row(case, "fnpipe/eager", planes, "words"))
    return rows


def add_options(parser: ArgumentParser) -> None:
    """How many images."""
    parser.add_argument("--images", type=int, default=1024)


if __name__ == "__main__":
    contract.main(__file__, measure, description=__doc__, against=None, configure=add_options)
