"""Under a real Trainer: the batches of the loader, whatever the Trainer does with epochs."""

import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fnpipe as fp
from fnpipe.adapters.lightning import Feed, data_module
from fnpipe.data.dataset import Dataset
from fnpipe.testing import assert_same_bits
from fnpipe.types import ArgumentError


lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
# Lightning warns of its own dependencies, of few workers and of short runs.
pytestmark = pytest.mark.filterwarnings("ignore")
PLAIN = fp.pipe(fp.resize(8), fp.flip(horizontal=0.5))


class Model(lightning.LightningModule):
    """Notes what every step is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, list[int]]] = []
        self.checked: list[list[int]] = []
        self.batches: list[Any] = []
        self.stop_after = 10**9

    def training_step(self, batch: Any, index: int) -> Tensor:
        self.batches.append(batch)
        for each in batch.values() if isinstance(batch, dict) else [batch]:
            self.seen.append((int(each.epochs[0]), each.ids.tolist()))
        if len(self.seen) >= self.stop_after:
            self.trainer.should_stop = True
        return self.weight.sum()

    def validation_step(self, batch: fp.Batch, index: int) -> None:
        self.checked.append(batch.ids.tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def maker(data: Dataset, **options: Any) -> Any:
    given = {"batch_size": 3, "seed": 0, "worker_backend": "eager", "backend": "eager"}
    return partial(fp.Loader, data, PLAIN, **(given | options))


def fit(model: Model, module: Any, *, checkpoint: str | None = None, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": "callbacks" in options, "accelerator": "cpu"}
    trainer = lightning.Trainer(devices=1, **(quiet | options))
    trainer.fit(model, datamodule=module, ckpt_path=checkpoint)
    return trainer


def plain(photos: Dataset, epochs: int, **options: Any) -> list[tuple[int, list[int]]]:
    loader = maker(photos, **options)()
    return [(epoch, batch.ids.tolist()) for epoch in range(epochs) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_the_loaders(photos: Dataset, workers: int):
    model = Model()
    module = data_module(
        maker(photos, workers=workers), val=maker(photos, shuffle=False, batch_size=4)
    )
    fit(model, module, max_epochs=2)
    assert model.seen == plain(photos, 2)
    sanity = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert model.checked == sanity + 2 * [*sanity, [8, 9]]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true"])
def test_precision_plugins_leave_batches_alone(photos: Dataset, precision: Any):
    model = Model()
    fit(model, data_module(maker(photos)), max_epochs=1, precision=precision)
    for given, made in zip(model.batches, maker(photos)(), strict=True):
        assert isinstance(given, fp.Batch)
        assert_same_bits(made, given)


def test_a_tree_of_loaders_is_a_tree_of_batches(photos: Dataset):
    """The shorter loader begins its next epoch when the longer is still in its first."""
    model = Model()
    module = data_module({"long": maker(photos), "short": maker(photos, seed=1, limit=2)})
    fit(model, module, max_epochs=1)
    assert [{*batch} for batch in model.batches] == 4 * [{"long", "short"}]
    assert [(int(b["long"].epochs[0]), b["long"].ids.tolist()) for b in model.batches] == plain(
        photos, 1
    )
    short = [(int(b["short"].epochs[0]), b["short"].ids.tolist()) for b in model.batches]
    assert short == plain(photos, 2, seed=1, limit=2)


@pytest.mark.parametrize("limit", [2, 0.5])
def test_limited_epochs_are_limited_for_workers_too(photos: Dataset, limit: float):
    model = Model()
    module = data_module(maker(photos, workers=1))
    fit(model, module, max_epochs=3, limit_train_batches=limit)
    assert model.seen == plain(photos, 3, limit=2)
    (feed,) = module._feeds["train"]
    assert len(feed) == 4
    assert len(feed.loader) == 2


def test_overfitting_sees_the_same_samples_again(photos: Dataset):
    model = Model()
    fit(model, data_module(maker(photos)), max_epochs=2, overfit_batches=2)
    assert model.seen == [(e, ids) for e in (0, 1) for ids in ([0, 1, 2], [3, 4, 5])]


@pytest.mark.parametrize("every", [1, 2])
def test_loaders_that_are_made_anew_go_on(photos: Dataset, every: int):
    model = Model()
    module = data_module(maker(photos, workers=1))
    fit(model, module, max_epochs=4, reload_dataloaders_every_n_epochs=every)
    assert model.seen == plain(photos, 4)
    assert multiprocessing.active_children() == []


def test_a_run_that_stops_early_leaves_nothing_behind(photos: Dataset):
    model = Model()
    model.stop_after = 2
    module = data_module(maker(photos, workers=2))
    fit(model, module, max_epochs=9, min_epochs=0)
    assert model.seen == plain(photos, 1)[:2]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("stop", [1, 3, 4, 6, 8])
@pytest.mark.parametrize("limit", [None, 2])
def test_case_104_a_resumed_run_is_the_run(
    photos: Dataset, tmp_path: Path, stop: int, limit: int | None
):
    """Four batches an epoch, or two; saved after every step, stopped after ``stop`` of them."""
    whole = plain(photos, 4, limit=limit)
    options: dict[str, Any] = {} if limit is None else {"limit_train_batches": limit}
    save = lightning.callbacks.ModelCheckpoint(
        tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}"
    )
    first = Model()
    fit(first, data_module(maker(photos, workers=2)), max_steps=stop, callbacks=[save], **options)
    assert first.seen == whole[:stop]
    second = Model()
    fit(
        second, data_module(maker(photos)), max_epochs=4,
        checkpoint=str(tmp_path / f"step={stop}.ckpt"), **options,
    )  # fmt: skip
    assert second.seen == whole[stop:]


def test_a_run_resumed_from_the_end_of_an_epoch(photos: Dataset, tmp_path: Path):
    whole, val = plain(photos, 3), maker(photos, shuffle=False)
    save = lightning.callbacks.ModelCheckpoint(tmp_path, filename="end", save_last=True)
    fit(Model(), data_module(maker(photos), val=val), max_epochs=1, callbacks=[save])
    second = Model()
    fit(second, data_module(maker(photos), val=val), max_epochs=3,
        checkpoint=str(tmp_path / "last.ckpt"))  # fmt: skip
    assert second.seen == whole[4:]


def test_a_feed_goes_into_a_combined_loader_of_ones_own(photos: Dataset):
    feed = Feed(maker(photos)())
    combined = lightning.utilities.CombinedLoader([feed, feed.loader], "min_size")
    assert len(feed) == 4
    assert combined._state_dicts() == [feed.loader.state_dict()] * 2


def test_what_makes_no_loader_is_refused(photos: Dataset):
    loader = maker(photos)()
    with pytest.raises(ArgumentError, match=r"^val wanted functions that make loaders, as "):
        data_module(val=loader)
