"""One CPU thread: from decoded photos to uint8 images and their targets, and the targets alone.

``python bench/cpu.py [--json] [--out DIR]``
"""

from argparse import Namespace
from functools import partial
from itertools import count

import contract
import peers
import torch
from contract import Contestant, Row


SIZE = 640
CASE = f"mosaic + affine + hsv + flip + quantise, {SIZE}, one thread, photos already decoded"
TARGETS = "targets of 64 mosaics: draw + annotate, one thread"
BATCH = 16
PATHS = ("eager", "compiled", "package")


def ours(path: str, photos: peers.Photos) -> Contestant:
    """One of our paths on the same photos: draw, annotate and render ``BATCH`` images a call."""
    import fnpipe as fp

    train = peers.pipeline(SIZE)
    pool = peers.pool(photos, task="segment")
    data, steps = pool.data, count()

    def run() -> object:
        ids = (torch.arange(BATCH) + next(steps) * BATCH) % len(data)
        plan = train.draw(fp.key(seed=0, epoch=0, sample=ids), data)
        return train.render(plan, pool.sources, backend=path), train.annotate(plan, data)

    return Contestant(f"fnpipe/{path}", run, BATCH)


def targets(task: str, photos: peers.Photos) -> Contestant:
    """Draw and annotate 64 mosaics of random photos a call; ``task`` says with which labels."""
    import fnpipe as fp

    train = peers.pipeline(SIZE)
    data = fp.read_coco(photos.annotations, photos.folder, task=task)
    generator, steps = torch.Generator().manual_seed(0), count()

    def run() -> object:
        ids = torch.randint(len(data), (64,), generator=generator)
        plan = train.draw(fp.key(seed=0, epoch=next(steps), sample=ids), data)
        return train.annotate(plan, data)

    labels = "polygons" if task == "segment" else "boxes"
    return Contestant(f"fnpipe/{labels}", run, note="one batch of 64 a call")


def measure(options: Namespace) -> list[Row]:
    """Whole images against Ultralytics, then targets alone."""
    torch.set_num_threads(1)
    photos = peers.read_photos()
    contestants = [
        contract.enter("ultralytics", partial(peers.ultralytics, photos, size=SIZE)),
        contract.enter(
            "ultralytics/polygons", partial(peers.ultralytics, photos, size=SIZE, polygons=True)
        ),
    ]
    contestants += [contract.enter(f"fnpipe/{p}", partial(ours, p, photos)) for p in PATHS]
    # Ultralytics turns OpenCV's threads off when imported; other packages may turn torch's on.
    torch.set_num_threads(1)
    compete = partial(contract.compete, timer=contract.cpu_seconds, turn=0.5, rounds=options.rounds)
    alone = [targets(task, photos) for task in ("detect", "segment")]
    return [
        *compete(CASE + photos.caveat, contestants, unit="ms/image"),
        *compete(TARGETS + photos.caveat, alone, unit="ms/batch"),
    ]


if __name__ == "__main__":
    contract.main(
        __file__,
        measure,
        description=__doc__,
        against="ultralytics",
        configure=lambda parser: parser.add_argument("--rounds", type=int, default=11),
    )
