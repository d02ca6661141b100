"""A second model for ``bench/fit.py``: torchvision's SSDlite, trained as its users do.

Eager and in float32: its loss looks at the device in between, so no graph can hold it.
"""

from copy import deepcopy
from typing import Any

import torch
from detector import AVERAGE, DECAY, MOST, Truth, floats, rates
from jaxtyping import Float
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.ops import box_iou


class Step:
    """What :class:`detector.Step` does, with ``ssdlite320_mobilenet_v3_large``, untrained."""

    def __init__(
        self, classes: int, batch: int, size: int, steps: int, device: torch.device, *, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.device, self.cuda, self.batch = device, device.type == "cuda", batch
        self.model = ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=1 + classes
        ).to(device)
        self.ema = deepcopy(self.model).requires_grad_(False).eval()
        self.rates, self.position = rates(steps).tolist(), 0
        self.losses = torch.zeros(steps, device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=DECAY, fused=True)
        self._average = get_ema_multi_avg_fn(AVERAGE)

    def __call__(self, images: Float[Tensor, "b 3 h w"], truth: Truth, fullest: Tensor) -> None:
        """Train on a batch."""
        if int(fullest) > MOST:
            raise ValueError(f"an image wanted at most {MOST} boxes, came {int(fullest)}")
        self.optimizer.param_groups[0]["lr"] = self.rates[self.position]
        self.optimizer.zero_grad()
        loss = torch.stack([*self.model(list(images.float()), listed(truth)).values()]).sum()
        loss.backward()
        self.optimizer.step()
        self._average(floats(self.ema), floats(self.model), None)
        self.losses[self.position] = loss.detach()
        self.position += 1

    @torch.no_grad()
    def validate(self, images: Float[Tensor, "n 3 h w"], truth: Truth) -> tuple[float, float]:
        """Each object's best overlap with a box of its class: the mean, and the share above 0.5."""
        best, wanted = [], listed(truth)
        for start in range(0, len(images), self.batch):
            found = self.ema(list(images[start : start + self.batch].float()))
            for one, own in zip(found, wanted[start : start + self.batch], strict=True):
                same = own["labels"][:, None] == one["labels"]
                overlap = torch.where(same, box_iou(own["boxes"], one["boxes"]), 0.0)
                best.append(torch.cat([overlap, overlap.new_zeros(len(overlap), 1)], 1).amax(1))
        every = torch.cat(best)
        return every.mean().item(), (every > 0.5).float().mean().item()

    def check(self) -> None:
        """Nothing is left to look at."""

    def state(self) -> dict[str, Any]:
        """All that training changes, by kind."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict(),
            "scheduler": {"rates": self.rates, "position": self.position},
            "losses": self.losses,
        }


def listed(truth: Truth) -> list[dict[str, Tensor]]:
    """Targets as torchvision's models take them: a dictionary an image, 0 the background.

    They refuse boxes without an area.
    """
    low, high = truth.boxes[..., :2], truth.boxes[..., 2:]
    valid = truth.valid & (high > low).all(-1)
    return [
        {"boxes": boxes[rows], "labels": labels[rows] + 1}
        for boxes, labels, rows in zip(truth.boxes, truth.labels, valid, strict=True)
    ]
