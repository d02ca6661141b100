"""One CPU thread: milliseconds an image, from decoded photos to uint8 images and their targets.

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


def measure(options: Namespace) -> list[Row]:
    """The one case of this table."""
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
    return contract.compete(
        CASE + photos.caveat,
        contestants,
        unit="ms/image",
        timer=contract.cpu_seconds,
        turn=0.5,
        rounds=options.rounds,
    )


if __name__ == "__main__":
    contract.main(
        __file__,
        measure,
        description=__doc__,
        against="ultralytics",
        configure=lambda parser: parser.add_argument("--rounds", type=int, default=11),
    )
