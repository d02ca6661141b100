"""One small data set with targets of every kind, and a batch of it."""

from pathlib import Path

import pytest
import torch
from PIL import Image as pillow

import fnpipe as fp
from fnpipe.data.dataset import pack_names
from fnpipe.ops.points import rboxes_to_quads


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> fp.Dataset:
    """Three photos of 32 x 24; two instances, none, and one beside one to ignore."""
    root: Path = tmp_path_factory.mktemp("photos")
    generator = torch.Generator().manual_seed(0)
    for i in range(3):
        codes = torch.randint(0, 256, (24, 32, 3), dtype=torch.uint8, generator=generator)
        pillow.fromarray(codes.numpy()).save(root / f"{i}.png")
    boxes = torch.tensor([[2, 3, 10, 9], [12, 4, 30, 20], [4, 4, 20, 16], [0, 0, 8, 8.0]])
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].view(4, 4, 2)
    rboxes = torch.tensor(
        [[6, 6, 8, 6, 0.0], [21, 12, 12, 8, 0.5], [12, 10, 10, 6, 0.3], [4, 4, 8, 8, 0]]
    )
    targets = fp.Targets(
        boxes=boxes,
        labels=torch.tensor([1, 0, 2, 0]),
        owner=torch.tensor([0, 0, 2, 2]),
        ids=torch.arange(4),
        ignore=torch.tensor([False, False, False, True]),
        visible=torch.ones(4),
        keypoints=torch.cat([corners[:, :2], torch.full((4, 2, 1), 2.0)], 2),
        quads=rboxes_to_quads(rboxes),
        rings=fp.Rings(corners.reshape(-1, 2), 4 * torch.arange(5), torch.arange(5)),
    )
    letters, starts = pack_names([f"{i}.png" for i in range(3)])
    return fp.Dataset(
        root=root,
        path_bytes=letters,
        path_offsets=starts,
        sizes=torch.tensor([[32, 24]] * 3),
        image_ids=torch.arange(3),
        targets=targets,
        offsets=torch.tensor([0, 2, 2, 4]),
        names=("a", "b", "c"),
        categories=(1, 2, 3),
        keypoint_flip=(1, 0),
    )


@pytest.fixture(scope="session")
def batch(data: fp.Dataset) -> fp.Batch:
    """The photos as they are, as 8-bit codes."""
    return fp.make_batch(data, fp.pipe(), [0, 1, 2], seed=0)


@pytest.fixture(scope="session")
def floats(data: fp.Dataset) -> fp.Batch:
    """The same in [0, 1]."""
    return fp.make_batch(data, fp.pipe(fp.finish()), [0, 1, 2], seed=0)
