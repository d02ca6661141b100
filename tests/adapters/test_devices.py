"""Bridges stay where their batch is: a tensor on a GPU has no NumPy side."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.adapters.huggingface import to_detr
from fnpipe.adapters.ultralytics import TASKS, to_ultralytics


@pytest.fixture
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every tensor were on a GPU."""

    def refuse(tensor: Tensor, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    monkeypatch.setattr(Tensor, "numpy", refuse)
    monkeypatch.setattr(Tensor, "__array__", refuse)


@pytest.mark.parametrize("task", TASKS)
def test_ultralytics(batch: fp.Batch, task: str, no_host: None):
    assert len(batch.rings.ring_offsets) > 1
    assert to_ultralytics(batch, task=task)["bboxes"].shape[0] == 3


def test_huggingface(floats: fp.Batch, no_host: None):
    assert [len(label["boxes"]) for label in to_detr(floats)["labels"]] == [2, 0, 1]


def test_torchvision_waits_once_however_many_images(
    floats: fp.Batch, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("torchvision")
    from fnpipe.adapters.torchvision import to_tv_tensors

    asked, ask = [], Tensor.tolist

    def counted(tensor: Tensor) -> Any:
        asked.append(tensor.shape)
        return ask(tensor)

    monkeypatch.setattr(Tensor, "tolist", counted)
    assert len(to_tv_tensors(floats)) == 3
    assert asked == [(4,)]


def test_torchvision(floats: fp.Batch, no_host: None):
    pytest.importorskip("torchvision")
    from fnpipe.adapters.torchvision import to_detection, to_tv_tensors

    _, rows = to_detection(floats, masks=True)
    assert [len(row["masks"]) for row in rows] == [2, 0, 1]
    assert [len(own["boxes"]) for _, own in to_tv_tensors(floats)] == [2, 0, 2]


@pytest.mark.parametrize(("there", "made"), [("cpu", "cpu"), ("cuda:1", "cuda:1"), ("mps", "cpu")])
def test_lightning_moves_batches_to_what_no_loader_makes_them_on(there: str, made: str):
    from fnpipe.adapters.lightning import Feeds

    strategy = SimpleNamespace(root_device=torch.device(there))
    feeds = Feeds()
    feeds.trainer = SimpleNamespace(strategy=strategy, overfit_batches=0)
    assert feeds._options() == {"device": torch.device(made)}
