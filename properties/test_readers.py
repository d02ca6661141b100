"""Law: what is written is read back, to the same bits, in every format that has words for it."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from fnpipe.data.build import collect
from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import TASKS
from fnpipe.data.rle import decode_rle, encode_rle
from fnpipe.data.tidy import tidy
from fnpipe.data.writers import write_coco, write_yolo
from fnpipe.data.yolo import read_yolo
from fnpipe.ops.points import rboxes_to_quads
from fnpipe.ops.raster import masks
from fnpipe.ops.trace import trace_mask
from fnpipe.testing import rings_of
from fnpipe.types import Targets


files = settings(max_examples=30, deadline=None)  # each example writes and reads a few files

SIZES = torch.tensor([[37, 23], [64, 48], [5, 91]])
FILES = ["0.png", "1.png", "2.png"]
NAMES = ["cat", "dog", "bird"]
CATEGORIES = [2, 3, 90]
FIELDS = ("boxes", "labels", "owner", "ids", "ignore", "visible", "keypoints", "quads")
LEAST = 2.0**-10
"""Pixels. Nearer to the border a sum of two float64 fractions may round to another float32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with blank photos of ``SIZES`` in its folder ``images``."""
    root = tmp_path_factory.mktemp("set")
    (root / "images").mkdir()
    for name, size in zip(FILES, SIZES.tolist(), strict=True):
        Image.new("L", tuple(size)).save(root / "images" / name)
    return root


@st.composite
def points(draw: st.DrawFn, width: int, height: int) -> list[float]:
    """x, y inside a photo, float32."""
    return [draw(st.floats(LEAST, side, width=32)) for side in (width, height)]


@st.composite
def boxes(draw: st.DrawFn, width: int, height: int) -> list[float]:
    """Sides of a box that touches 0 or keeps away from it."""
    (x0, y0), (x1, y1) = draw(points(width, height)), draw(points(width, height))
    assume(x0 != x1 and y0 != y1)
    low = [draw(st.sampled_from([0.0, min(pair)])) for pair in ((x0, x1), (y0, y1))]
    return [*low, max(x0, x1), max(y0, y1)]


@st.composite
def quads(draw: st.DrawFn, width: int, height: int) -> list[float]:
    """Corners of a rectangle that may reach over the border."""
    sides = [draw(st.floats(1, 40, width=32)) for _ in "wh"]
    rbox = [*draw(points(width, height)), *sides, draw(st.floats(-4, 4, width=32))]
    return rboxes_to_quads(torch.tensor([rbox])).flatten().tolist()


@st.composite
def poses(draw: st.DrawFn, width: int, height: int) -> list[float]:
    """Three keypoints, some of them missing."""
    flags = [draw(st.integers(0, 2)) for _ in range(3)]
    return [n for v in flags for n in ([*draw(points(width, height)), v] if v else (0.0, 0.0, 0))]


@st.composite
def rows(draw: st.DrawFn, task: str, *, rings: int = 3) -> dict[str, Any]:
    """What a reader of ``task`` collects of the three photos."""
    owner = sorted(draw(st.lists(st.integers(0, 2), max_size=6)))
    sizes = [SIZES[photo].tolist() for photo in owner]
    ring = [st.lists(points(*size), min_size=3, max_size=6) for size in sizes]
    outlines = [draw(st.lists(r, min_size=1, max_size=rings)) for r in ring]
    return {
        "owner": owner,
        "labels": [draw(st.integers(0, 2)) for _ in owner],
        "boxes": [draw(boxes(*size)) for size in sizes],
        "ignore": [draw(st.booleans()) for _ in owner],
        "outlines": [[[*chain(*r)] for r in o] for o in outlines] if task == "segment" else None,
        "poses": [draw(poses(*size)) for size in sizes] if task == "pose" else None,
        "keypoints": 3 if task == "pose" else 0,
        "quads": [draw(quads(*size)) for size in sizes] if task == "obb" else None,
    }


def make(owner: list[int], labels: list[int], **shapes: Any) -> Targets:
    """Tidy targets of rows in pixels."""
    scale = torch.ones(len(owner), 2, dtype=torch.float64)
    return tidy(collect(owner, labels, scale=scale, **shapes), SIZES, lambda kind, row: None)


def assert_same(read: Targets, written: Targets) -> None:
    for field in FIELDS:
        assert torch.equal(getattr(read, field), getattr(written, field)), field
    for field in ("points", "ring_offsets", "instance_offsets"):
        assert torch.equal(getattr(read.rings, field), getattr(written.rings, field)), field


@pytest.mark.parametrize("task", TASKS)
@files
@given(data=st.data())
def test_coco(folder: Path, task: str, data: st.DataObject):
    targets = make(**data.draw(rows(task)))
    path = folder / "coco.json"
    write_coco(path, targets, SIZES, file_names=FILES, names=NAMES, categories=CATEGORIES)
    read = read_coco(path, folder / "images", task=task)
    assert_same(read.targets, targets)
    assert read.categories == tuple(CATEGORIES)
    assert torch.equal(read.sizes, SIZES)


@pytest.mark.parametrize("task", TASKS)
@files
@given(data=st.data())
def test_yolo(folder: Path, task: str, data: st.DataObject):
    """But for what has no words there: ignored rows, several rings, equal rows."""
    targets = make(**data.draw(rows(task, rings=1)))
    targets = targets.replace(ignore=torch.zeros_like(targets.ignore))
    assume(len(targets))
    assume(len(targets.boxes.unique(dim=0)) == len(targets))
    assume(task != "segment" or targets.rings.instance_offsets.diff().all())
    options = {"file_names": FILES, "names": NAMES, "categories": CATEGORIES, "task": task}
    write_yolo(folder, targets, SIZES, **options)
    read = read_yolo(folder / "data.yaml", task=task)
    assert_same(read.targets, targets)
    assert read.categories == tuple(CATEGORIES)


@files
@given(data=st.data())
def test_yolo_joins_the_rings_of_an_instance(folder: Path, data: st.DataObject):
    """To one that keeps every vertex and fills what an odd number of them hold."""
    targets = make(**data.draw(rows("segment")))
    targets = targets.replace(ignore=torch.zeros_like(targets.ignore))
    counts = targets.rings.instance_offsets.diff()
    assume(len(targets))
    assume(counts.all())
    assume(len(targets.boxes.unique(dim=0)) == len(targets))
    write_yolo(folder, targets, SIZES, file_names=FILES, names=NAMES, task="segment")
    read = read_yolo(folder / "data.yaml", task="segment").targets
    for field in FIELDS:
        assert torch.equal(getattr(read, field), getattr(targets, field)), field
    size, each = (91, 64), torch.arange(len(targets.rings.ring_offsets))
    single = masks(targets.rings.replace(instance_offsets=each), size, stride=1)
    parts = single.split(counts.tolist())
    wanted = torch.stack([part.sum(0) % 2 == 1 for part in parts])
    assert torch.equal(masks(read.rings, size, stride=1), wanted)
    points = read.rings.ring_offsets.diff() - 2 * (counts - 1)
    assert torch.equal(points, targets.rings.ring_offsets[targets.rings.instance_offsets].diff())


@settings(deadline=None)
@given(data=st.data())
def test_tidy_targets_are_left_alone(data: st.DataObject):
    """The rule at the border has nothing to do a second time."""
    task = data.draw(st.sampled_from(("detect", "pose", "segment")))
    targets = make(**data.draw(rows(task)))
    noticed: list[str] = []
    assert_same(tidy(targets, SIZES, lambda kind, row: noticed.append(kind)), targets)
    assert noticed == []


@st.composite
def pictures(draw: st.DrawFn) -> Tensor:
    """Boolean masks of up to 9 x 9."""
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    bits = draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    return torch.tensor(bits).view(height, width)


@given(mask=pictures())
def test_runs_spell_the_mask(mask: Tensor):
    assert torch.equal(decode_rle(encode_rle(mask), *mask.shape), mask)


@given(mask=pictures())
def test_rings_fill_the_mask(mask: Tensor):
    traced = rings_of(trace_mask(mask))
    assert torch.equal(masks(traced, (mask.shape[0], mask.shape[1]), stride=1)[0], mask)


def test_the_law_sees_a_reader_that_forgets_half_a_pixel(folder: Path):
    """The proof that these laws can fail: keypoints moved by what a careless reader leaves out."""
    pose = torch.tensor([[[3.0, 4.0, 2.0]]])
    table = make([0], [0], boxes=[[1, 1, 5, 5]], poses=[[3, 4, 2]], keypoints=1)
    write_coco(folder / "coco.json", table, SIZES, file_names=FILES, names=NAMES)
    read = read_coco(folder / "coco.json", folder / "images", task="pose").targets
    assert_same(read, table)
    with pytest.raises(AssertionError, match="keypoints"):
        assert_same(read.replace(keypoints=pose - torch.tensor([0.5, 0.5, 0.0])), table)
