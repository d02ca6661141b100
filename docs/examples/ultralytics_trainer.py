"""Train an Ultralytics model on batches of fnpipe: python ultralytics_trainer.py data.yaml"""

import sys

import torch
from ultralytics.models.yolo.detect import DetectionTrainer

import fnpipe as fp
from fnpipe import recipes
from fnpipe.adapters.ultralytics import TrainLoader


class Trainer(DetectionTrainer):
    """Ultralytics' trainer; training batches come from fnpipe, validation stays as it is."""

    def get_dataloader(self, dataset_path, batch_size=16, rank=0, mode="train"):
        if mode != "train":
            return super().get_dataloader(dataset_path, batch_size, rank, mode)
        names = recipes.Hyper.__annotations__.keys() & vars(self.args).keys()
        names -= {"epochs", "close_mosaic", "channels_last"}  # the last is ours by the same name
        hyper = {name: getattr(self.args, name) for name in names}
        train = recipes.yolo(self.args.imgsz, **hyper, dtype=torch.uint8)
        loader = fp.Loader(
            fp.read_yolo(self.args.data),
            train,
            batch_size=batch_size * max(self.world_size, 1),  # theirs is a rank's, ours of all
            seed=self.args.seed,
            device=self.device,
            workers=self.args.workers,
        )
        return TrainLoader(loader, batch_size)


if __name__ == "__main__":
    overrides = {"model": "yolo11n.yaml", "data": sys.argv[1], "close_mosaic": 0, "plots": False}
    Trainer(overrides=overrides).train()
