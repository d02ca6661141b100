"""Batches that are drawn together are what each is alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.feed import ahead
from fnpipe.feed.addresses import Address, Epochs
from fnpipe.feed.ahead import Drawing
from fnpipe.feed.job import Job
from fnpipe.feed.ranks import Share
from fnpipe.testing import assert_same_bits


TRAIN = fp.pipe(fp.mosaic(64), fp.affine(scale=0.5), fp.hsv(hue=0.1), fp.flip(horizontal=0.5))
CLOSED = fp.pipe(fp.letterbox(64), fp.flip(horizontal=0.5))


def job(data: Dataset, recipe: Any = TRAIN, *, batch: Any = 3, drop_last: bool = False) -> Job:
    return Job(data, recipe, Epochs(len(data), batch, 5, drop_last=drop_last), "plan", "eager")


def check(job: Job, *, stride: int = 1, share: Share | None = None) -> None:
    """All that the workers of two epochs draw, each by its own drawing."""
    share = share or Share()
    drawings = [Drawing(job) for _ in range(stride)]
    for epoch in (0, 1):
        for step in range(job.epochs.steps(epoch)):
            at = Address(epoch, step, share)
            found = drawings[step % stride].take(at, stride=stride)
            assert_same_bits(job.draw(at), found)


@pytest.fixture
def many(photos: Dataset) -> Dataset:
    return photos.subset(torch.arange(400) % 10)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each drawing had."""
    seen: list[int] = []
    draw = Job.draw

    def counting(self: Job, address: Address, ids: Tensor | None = None) -> Any:
        seen.append(len(self.ids(address) if ids is None else ids))
        return draw(self, address, ids)

    monkeypatch.setattr(Job, "draw", counting)
    return seen


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("share", [Share(), Share(1, 2)])
def test_every_batch_is_what_it_is_alone(many: Dataset, stride: int, share: Share):
    check(job(many, batch=7), stride=stride, share=share)


@pytest.mark.parametrize(
    ("file", "task"),
    [
        ("coco/annotations/instances_train2017.json", "segment"),
        ("pose/coco/test_coco.json", "pose"),
        ("dota8/dota8.yaml", "obb"),
    ],
)
def test_real_targets_of_every_kind(shared_data: Path, file: str, task: str):
    """Rings, poses and oriented boxes are shared out like boxes."""
    path = shared_data / file
    if path.suffix == ".json":
        photos = shared_data / "coco" / "train2017" if task == "segment" else path.parent
        data = fp.read_coco(path, photos, task=task)
    else:
        data = fp.read_yolo(path, root=path.parent, task=task)
    check(job(data.subset(torch.arange(60) % len(data))))


def test_close_mosaic_and_buckets_are_not_drawn_with_others(many: Dataset, counted: list[int]):
    check(job(many, fp.schedule({0: TRAIN, 1: CLOSED}), batch=50))
    assert [count for count in counted if count > 50] == [100, 200, 400]
    counted.clear()
    check(job(many, fp.buckets(TRAIN, CLOSED), batch=50))
    assert 50 < max(counted) < 250


def test_so_many_samples_are_drawn_together(many: Dataset, counted: list[int]):
    drawing = Drawing(job(many.subset(torch.arange(900) % 400), batch=30))
    for epoch in (0, 1):
        for step in range(30):
            drawing.take(Address(epoch, step), stride=1)
    assert counted == [30, 60, 120, 240, 450, 510, 390]
    counted.clear()
    Drawing(job(many, batch=300)).take(Address(0, 0), stride=1)
    assert counted == [300]


def test_layers_are_drawn_batch_by_batch(many: Dataset, counted: list[int]):
    check(job(many.subset(range(20)), fp.pipe(fp.mosaic(64), fp.mixup(p=0.5))))
    assert set(counted) == {3, 2}


def test_a_batch_that_is_asked_for_out_of_turn_is_drawn_then(many: Dataset, counted: list[int]):
    drawing = Drawing(job(many, batch=50))
    for at in (Address(0, 1), Address(0, 0), Address(3, 2), Address(3, 3, stream=1)):
        found = drawing.take(at, stride=1)
        assert_same_bits(job(many, batch=50).draw(at), found)
    assert counted[::2] == [50, 100, 200, 250]


def test_what_fails_in_a_later_batch_is_told_when_that_is_due(
    many: Dataset, monkeypatch: pytest.MonkeyPatch
):
    draw = ahead.Job.draw

    def failing(self: Job, address: Address, ids: Tensor | None = None) -> Any:
        rows = self.ids(address) if ids is None else ids
        if 13 in rows:
            raise ValueError("sample 13")
        return draw(self, address, ids)

    monkeypatch.setattr(Job, "draw", failing)
    plain = Job(many, TRAIN, Epochs(len(many), 5, 0, shuffle=False), "plan", "eager")
    drawing = Drawing(plain)
    assert [drawing.take(Address(0, s), stride=1).plan.ids[0].item() for s in (0, 1)] == [0, 5]
    with pytest.raises(ValueError, match="sample 13"):
        drawing.take(Address(0, 2), stride=1)
    assert drawing.take(Address(0, 3), stride=1).plan.ids.tolist() == [15, 16, 17, 18, 19]
