"""Loaders under a Lightning Trainer: a data module whose batches arrive as they were made.

::

    module = data_module(
        partial(fp.Loader, data, train, batch_size=64, seed=0, workers=8),
        val=partial(fp.Loader, val_data, val, batch_size=64, seed=0, shuffle=False),
    )
    Trainer(max_epochs=100, limit_train_batches=500).fit(model, datamodule=module)

A Trainer that is resumed goes on at the very batch. Lightning is imported when it is asked for.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fnpipe.loader import Loader
from fnpipe.types import ArgumentError, Batch


Makes = Any
"""A function that makes a loader of keyword options, or a tree (dict, list) of such functions."""


class Handed:
    """A batch that Lightning cannot look into.

    Precision plugins cast every tensor of a batch before the transfer hook: bfloat16 would round
    coordinates to 8 bits, and a frozen value would be refused. They pass over what they do not
    know.
    """

    __slots__ = ("batch",)
    batch: Batch

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


class Feed:
    """A loader as a Trainer wants it: sized, with a state, and wrapped batches.

    ``length`` is that of a whole epoch, where the loader's are cut to the share that the Trainer
    takes; ``epoch`` says which one the Trainer is in, as it loads no state at an epoch's end.
    """

    loader: Loader

    def __init__(
        self, loader: Loader, *, length: int | None = None, epoch: Callable[[], int] = int
    ) -> None:
        self.loader, self._length, self._epoch = loader, length, epoch

    def __len__(self) -> int:
        return len(self.loader) if self._length is None else self._length

    def __iter__(self) -> Iterator[Handed]:
        # A loader may be ahead: the shorter ones of a tree begin again before an epoch is over.
        if self._epoch() > self.loader.epoch:
            self.loader.set_epoch(self._epoch())
        yield from map(Handed, self.loader)

    def state_dict(self) -> dict[str, Any]:
        """The loader's; Lightning puts it into its checkpoints."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.loader.load_state_dict(state)


def unwrap(tree: Any, device: torch.device) -> Any:
    """A step's batches as they were made, on ``device``: for a transfer hook of one's own."""

    def move(leaf: Any) -> Any:
        return leaf.batch.to(device, non_blocking=True) if isinstance(leaf, Handed) else leaf

    return pytree.tree_map(move, tree)


class Feeds:
    """What :func:`data_module` adds to Lightning's data module."""

    trainer: Any
    _makes: dict[str, Makes]
    _feeds: dict[str, list[Feed]]

    def train_dataloader(self) -> Any:
        """The training loader, or a tree of them; made anew, it goes on where the last one was."""
        epochs = [feed.loader.epoch for feed in self._feeds.get("train", [])]
        tree = self._make("train")
        for feed, epoch in zip(self._feeds["train"], epochs, strict=False):
            feed.loader.set_epoch(epoch)
        return tree

    def val_dataloader(self) -> Any:
        """The validation loader, or a tree of them."""
        return self._make("val")

    def test_dataloader(self) -> Any:
        """The test loader, or a tree of them."""
        return self._make("test")

    def predict_dataloader(self) -> Any:
        """The loader for predictions, or a tree of them."""
        return self._make("predict")

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """The batch as the loader made it, on the device."""
        moved = super().transfer_batch_to_device(batch, device, dataloader_idx)  # type: ignore[misc]
        return unwrap(moved, device)

    def teardown(self, stage: str) -> None:
        """End the workers of a finished Trainer, and free what they made ahead."""
        for part in self._feeds:
            self._close(part)

    def _make(self, part: str) -> Any:
        self._close(part)
        self._feeds[part] = []

        def feed(make: Callable[..., Loader]) -> Feed:
            limit = getattr(self.trainer, f"limit_{part}_batches")
            made = _limited(make, self._options(), limit, self._epoch if part == "train" else int)
            self._feeds[part].append(made)
            return made

        return pytree.tree_map(feed, self._makes.get(part, []))

    def _close(self, part: str) -> None:
        for feed in self._feeds.get(part, []):
            feed.loader.close()

    def _epoch(self) -> int:
        return self.trainer.current_epoch

    def _options(self) -> dict[str, Any]:
        root = self.trainer.strategy.root_device
        # To what is neither a host nor a CUDA device, the transfer hook moves batches.
        options = {"device": root if root.type == "cuda" else torch.device("cpu")}
        # Overfitting means the same samples in every epoch.
        return options | ({"shuffle": False} if self.trainer.overfit_batches else {})


def _limited(
    make: Callable[..., Loader],
    options: dict[str, Any],
    limit: int | float,
    epoch: Callable[[], int],
) -> Feed:
    """A loader whose epochs are as long as the Trainer's: its workers make no batch in vain."""
    loader = make(**options)
    length = len(loader)
    steps = limit if isinstance(limit, int) else int(length * limit)
    # A Trainer that asks for none asks for no loader's batches either.
    shorter = make(**options, limit=steps) if 0 < steps < length else loader
    return Feed(shorter, length=length, epoch=epoch)


def data_module(
    train: Makes = (), *, val: Makes = (), test: Makes = (), predict: Makes = ()
) -> Any:
    """A LightningDataModule of functions that make loaders, or of trees of them.

    They are called with ``device``, and where the Trainer limits epochs with ``limit`` (and
    ``shuffle=False`` to overfit): ``functools.partial(fnpipe.Loader, data, pipeline, ...)`` takes
    them. Errors: ArgumentError for what is no function, ModuleNotFoundError without Lightning.
    """
    makes = {"train": train, "val": val, "test": test, "predict": predict}
    makes = {part: tree for part, tree in makes.items() if pytree.tree_leaves(tree)}
    for part, tree in makes.items():
        for make in pytree.tree_leaves(tree):
            if not callable(make):
                raise ArgumentError(
                    f"{part} wanted functions that make loaders, as "
                    f"functools.partial(fnpipe.Loader, ...), came {make!r}"
                )
    try:
        base = import_module("lightning.pytorch").LightningDataModule
    except ModuleNotFoundError:
        base = import_module("pytorch_lightning").LightningDataModule
    # Lightning takes an overridden hook for a loader, so the hooks of absent ones stay its own.
    hooks = [f"{part}_dataloader" for part in ("train", "val", "test", "predict")
             if part not in makes]  # fmt: skip
    absent = {hook: getattr(base, hook) for hook in hooks}
    made = type("DataModule", (Feeds, base), absent)()
    made._makes, made._feeds = makes, {}
    return made
