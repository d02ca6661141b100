"""A data set as a value: indexing, subsets, pickling, and a fingerprint that misses nothing."""

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from PIL import Image

from fnpipe import Loader, crop, make_batch, pipe
from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import Dataset, Report, reading
from fnpipe.data.prepare import prepare
from fnpipe.ops.warp import unpack
from fnpipe.types import ArgumentError, DataError, Rings


@pytest.fixture
def pair(tmp_path: Path, save_photo: Callable[..., Path], load_coco) -> Dataset:
    """Two photos of two and of one instance, and one of none."""
    for i, width in enumerate((20, 30, 40)):
        save_photo(tmp_path / f"{i}.png", width, 10)
    outline = [[1, 1, 5, 1, 5, 5]]
    return load_coco(
        {"image_id": 8, "bbox": [1, 1, 2, 2], "segmentation": []},
        {"image_id": 7, "bbox": [0, 0, 3, 3], "segmentation": outline},
        {"image_id": 8, "bbox": [0, 0, 4, 4], "segmentation": outline, "iscrowd": 1},
        images=[{"id": id, "file_name": f"{i}.png"} for i, id in enumerate((8, 9, 7))],
        task="segment",
    )


def test_a_sample_is_a_photo_with_its_rows(pair: Dataset):
    assert len(pair) == 3
    assert pair.offsets.tolist() == [0, 2, 2, 3]
    assert pair.targets.owner.tolist() == [0, 0, 2]
    assert pair.image_ids.tolist() == [8, 9, 7]
    sample = pair[2]
    assert (sample.id, sample.data) == (2, pair)
    assert sample.image.shape == (3, 10, 40)
    assert sample.image[0, 0].tolist() == [*range(40)]
    assert sample.targets.owner.tolist() == [0]
    assert sample.targets.ids.tolist() == [2]
    assert sample.targets.rings.points.tolist() == [[1, 1], [5, 1], [5, 5]]
    assert len(pair[1].targets) == 0


class Inverted(Dataset):
    """Code of a user's own, which knows of no packed photos."""

    def read(self, index: int) -> torch.Tensor:
        return 255 - super().read(index)


def test_what_a_subclass_reads_is_what_batches_are_made_of(pair: Dataset):
    data = Inverted(**vars(pair))
    words, size = data.read_packed(2)
    assert size == (40, 10)
    assert torch.equal(unpack(words, *size), 255 - pair.read(2))
    batches = [make_batch(each, pipe(crop(10)), [0, 1, 2], seed=0) for each in (data, pair)]
    assert torch.equal(batches[0].images, 255 - batches[1].images)


def test_a_photo_that_has_another_size_than_it_had_is_refused(pair: Dataset):
    """Its targets would lie elsewhere: a pool refuses it with the same words."""
    small = prepare(pair, longest=20)
    Image.new("RGB", (7, 9)).save(pair.root / "2.png")
    message = f"{pair.root / '2.png'}: 7 x 9 pixels, the data set says 40 x 10; read the data set"
    for read in (pair.read, pair.read_packed, small.read, pair.__getitem__):
        with pytest.raises(DataError, match="7 x 9 pixels, the data set says"):
            read(2)
    with pytest.raises(DataError, match=re.escape(message)):
        make_batch(pair, pipe(crop(10)), [0, 2], seed=0)
    loader = Loader(pair, pipe(crop(10)), batch_size=3, seed=0, worker_backend="eager")
    with pytest.raises(DataError, match=re.escape(message)):
        next(iter(loader))


def test_indices_count_from_either_end_and_stop(pair: Dataset):
    assert pair.path(-1) == pair.path(2) == pair.root / "2.png"
    assert pair[-3].id == 0
    assert [sample.id for sample in pair] == [0, 1, 2]  # type: ignore[attr-defined]
    with pytest.raises(IndexError):
        pair[3]


def test_a_sample_may_be_changed_without_changing_the_data_set(pair: Dataset):
    before = pair.fingerprint()
    sample = pair[0]
    sample.targets.boxes.zero_()
    sample.targets.rings.points.zero_()
    assert pair.fingerprint() == before


def test_a_subset_is_a_data_set(pair: Dataset):
    part = pair.subset([2, -3, 0])
    assert [part.path(i).name for i in range(3)] == ["2.png", "0.png", "0.png"]
    assert part.image_ids.tolist() == [7, 8, 8]
    assert part.sizes.tolist() == [[40, 10], [20, 10], [20, 10]]
    assert part.offsets.tolist() == [0, 1, 3, 5]
    assert part.targets.owner.tolist() == [0, 1, 1, 2, 2]
    assert part.targets.ids.tolist() == [0, 1, 2, 3, 4]
    assert part.targets.ignore.tolist() == [False, False, True, False, True]
    assert part.targets.rings.instance_offsets.tolist() == [0, 1, 1, 2, 2, 3]
    assert torch.equal(part[1].image, pair[0].image)
    assert len(pair.subset([])) == 0
    for mask in (torch.tensor([True, False, True]), [True, False, True]):
        with pytest.raises(
            ArgumentError, match=r"indices wanted integers, came torch\.bool; of a m"
        ):
            pair.subset(mask)
    assert len(pair.subset(torch.tensor([True, False, True]).nonzero().squeeze(1))) == 2


def test_it_pickles(pair: Dataset):
    copy = pickle.loads(pickle.dumps(pair))
    assert copy.fingerprint() == pair.fingerprint()
    assert (copy.root, copy.report) == (pair.root, pair.report)
    assert torch.equal(copy[0].image, pair[0].image)


def describe(data: Dataset, queue) -> None:
    queue.put((data.fingerprint(), str(data.path(2)), data[0].image.sum().item()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_goes_to_other_processes(pair: Dataset, method: str):
    context: Any = torch.multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=describe, args=(pair, queue))
    process.start()
    assert queue.get() == (pair.fingerprint(), str(pair.path(2)), pair[0].image.sum().item())
    process.join(30)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    "change",
    [
        {"names": ("other",)},
        {"categories": (2,)},
        {"task": "detect"},
        {"keypoint_flip": (0,)},
        {"sizes": torch.tensor([[20, 10], [30, 10], [40, 11]])},
        {"path_bytes": torch.zeros(15, dtype=torch.uint8)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_fingerprint_changes_with_what_it_covers(pair: Dataset, change: dict):
    assert replace(pair, **change).fingerprint() != pair.fingerprint()


@pytest.mark.parametrize("field", ["boxes", "labels", "ignore", "keypoints", "quads", "points"])
def test_a_fingerprint_changes_with_every_target(pair: Dataset, field: str):
    targets = pair.targets.replace(keypoints=torch.zeros(3, 2, 3), quads=torch.zeros(3, 4, 2))
    rings, old = targets.rings, getattr(targets, field, None)
    changed = (
        targets.replace(rings=rings.replace(points=rings.points + 1))
        if old is None
        else targets.replace(**{field: ~old if old.dtype == torch.bool else old + 1})
    )
    assert (
        replace(pair, targets=targets).fingerprint() != replace(pair, targets=changed).fingerprint()
    )


def test_a_fingerprint_is_the_same_elsewhere(pair: Dataset, tmp_path: Path):
    other = replace(pair, root=tmp_path / "elsewhere", report=Report({"odd": 1}, ("odd",)))
    assert other.fingerprint() == pair.fingerprint()


def test_a_report_prints_counts_then_lines():
    assert str(Report({"clipped": 2}, ("clipped: a", "clipped: b"))) == (
        "2 clipped\nclipped: a\nclipped: b"
    )


def test_lines_of_a_report_end_at_a_hundred_of_a_kind(load_coco):
    report = load_coco(*[{"bbox": [0, 0, 0, 1]}] * 130).report
    assert report.counts == {"degenerate": 130}
    assert len(report.lines) == 100


def test_the_index_of_a_large_set_is_a_handful_of_tensors(shared_data: Path):
    """What a worker shares is tensors: no list of dicts whose counts of references are written."""
    data = read_coco(
        shared_data / "coco/annotations/instances_train2017.json",
        shared_data / "coco/train2017",
        task="segment",
    )
    assert len(pickle.dumps(data)) < 450_000  # 36,433 points are 291,464 bytes


def test_a_data_set_shows_itself_in_one_line(shared_data: Path):
    data = read_coco(
        shared_data / "coco/annotations/instances_val2017.json", shared_data / "coco/val2017"
    )
    assert repr(data) == (
        "<Dataset, task 'detect': 64 photos, 578 instances of 80 classes, in "
        f"{shared_data / 'coco/val2017'}>"
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Lined(Dataset):
    """Photos with outlines drawn into them."""

    lines: Rings

    def read(self, index: int) -> torch.Tensor:
        raise NotImplementedError


def test_how_photos_are_read_is_told_by_the_content_of_what_a_subclass_adds(pair: Dataset):
    def lined(x: float) -> Dataset:
        """More points than are written by a tensor's ``repr``, and x in the middle of them."""
        parts = {f.name: getattr(pair, f.name) for f in fields(pair)}
        points = torch.zeros(2000, 2)
        points[1000] = x
        lines = Rings(points, torch.tensor([0, 2000]), torch.tensor([0, 1]))
        return Lined(**parts, lines=lines)

    assert reading(pair) == ""
    assert reading(lined(1.0)) == reading(lined(1.0)) != reading(lined(2.0))
