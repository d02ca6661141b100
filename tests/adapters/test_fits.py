"""Models of others trained for two epochs on the CPU, on real photos through the bridges."""

import math
import os
import runpy
import warnings
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fnpipe as fp
from fnpipe import recipes
from fnpipe.adapters.torchvision import to_detection
from fnpipe.data.writers import write_yolo


pytestmark = pytest.mark.slow
PHOTOS = 16
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "ultralytics_trainer.py"


@pytest.fixture(scope="module")
def photos(shared_data: Path) -> fp.Dataset:
    folder = shared_data / "coco"
    data = fp.read_coco(folder / "annotations/instances_train2017.json", folder / "train2017")
    return data.subset(range(PHOTOS))


def test_a_torchvision_detector_learns(photos: fp.Dataset):
    """Two epochs of SSDlite at 320: all losses finite, and the second epoch's mean is lower."""
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    torch.manual_seed(0)
    model = ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=len(photos.names) + 1
    ).train()
    descent = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    train = recipes.yolo(320, mosaic=0.5)
    loader = fp.Loader(photos, train, batch_size=4, seed=0, worker_backend="eager")
    means = []
    for _ in range(2):
        losses = []
        for batch in loader:
            loss = torch.stack([*model(*to_detection(batch)).values()]).sum()
            descent.zero_grad()
            loss.backward()
            descent.step()
            losses.append(float(loss.detach()))
        means.append(sum(losses) / len(losses))
    print("torchvision", [round(mean, 3) for mean in means])
    assert all(map(math.isfinite, means))
    assert means[1] < means[0]


@pytest.fixture(scope="module")
def yolo_folder(photos: fp.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos, linked, and their boxes as YOLO's texts."""
    root = tmp_path_factory.mktemp("yolo")
    (root / "images").mkdir()
    names = [photos.path(i).name for i in range(len(photos))]
    for i, name in enumerate(names):
        os.symlink(photos.path(i), root / "images" / name)
    write_yolo(root, photos.targets, photos.sizes, file_names=names, names=photos.names)
    text = (root / "data.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("train", "val", "path"))]
    added = [f"path: {root}", "train: images", "val: images"]
    (root / "data.yaml").write_text("\n".join(chain(added, lines)) + "\n")
    return root


def test_an_ultralytics_model_learns(yolo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Two epochs of YOLO11n at 160 with the trainer of the documentation, under 40 lines long."""
    assert len(EXAMPLE.read_text().splitlines()) < 40
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("ultralytics")
        trainer = runpy.run_path(str(EXAMPLE))["Trainer"](
            overrides={
                "model": "yolo11n.yaml", "data": str(yolo_folder / "data.yaml"), "imgsz": 160,
                "epochs": 2, "batch": 4, "workers": 0, "device": "cpu", "close_mosaic": 0,
                "plots": False, "pretrained": False, "project": str(yolo_folder / "runs"),
                "warmup_epochs": 0.0, "optimizer": "SGD", "lr0": 0.01, "amp": False,
            }
        )  # fmt: skip
        # A package of the renderer is built once a machine, in a minute: more than the training.
        monkeypatch.setattr(fp, "Loader", partial(fp.Loader, worker_backend="eager"))
        losses: list[dict[str, float]] = []
        trainer.add_callback(
            "on_train_epoch_end", lambda t: losses.append({k: float(v) for k, v in t.tloss.items()})
        )
        trainer.train()
    print("ultralytics", [{k: round(x, 3) for k, x in loss.items()} for loss in losses])
    assert len(losses) == 2
    assert all(math.isfinite(x) for loss in losses for x in loss.values())
    assert sum(losses[1].values()) < sum(losses[0].values())


def test_each_rank_of_an_ultralytics_training_gets_the_batch_that_it_asks_for(
    yolo_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Their trainers ask for a rank's share; a loader's batch is that of all ranks."""
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = pytest.importorskip("ultralytics.cfg")
        trainer = runpy.run_path(str(EXAMPLE))["Trainer"]
    args = config.get_cfg(overrides={"data": str(yolo_folder / "data.yaml"), "imgsz": 32})
    args.workers = 0
    seen: list[int] = []
    for rank in range(2):
        loader = partial(fp.Loader, rank=rank, world_size=2, worker_backend="eager")
        half = SimpleNamespace(args=args, device=torch.device("cpu"), world_size=2)
        with monkeypatch.context() as patch:
            patch.setattr(fp, "Loader", loader)
            made = trainer.get_dataloader(half, "", batch_size=4, rank=rank)
        assert made.batch_size == 4
        for batch in made:
            assert len(batch["img"]) == 4
            seen += map(int, batch["im_file"])
    assert sorted(seen) == [*range(PHOTOS)]
