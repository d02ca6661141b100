"""A compact one-stage detector and its training step, for ``bench/fit.py``.

Anchor-free, FCOS style: every cell of three maps (strides 8, 16, 32) tells the class of the object
at whose middle it lies and how far that object's sides are. Convolution, batch norm and SiLU alone,
0.7 million parameters, so that the input and not the model is what binds. Shapes are static and all
operators deterministic on CUDA: a whole step is one CUDA graph, and equal batches train to equal
bytes.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim.swa_utils import get_ema_multi_avg_fn


STRIDES = (8, 16, 32)
LONGEST = (0.0, 96.0, 192.0, float("inf"))
"""Bounds of an object's longer side, in pixels, between the three maps."""
REACH = 1.5
"""Cells whose centre is this many strides from an object's middle belong to it, if inside."""
MOST = 160
"""Boxes an image may have; more are refused. A mosaic of four has at most 152 of these photos."""
PRIOR = -7.0
"""The bias of classes before training: a probability of 0.001, about what cells have objects."""
RATE, LAST, DECAY, AVERAGE = 2e-3, 0.01, 0.05, 0.98
"""AdamW: highest learning rate, its last value as a part of that, weight decay; and EMA's decay."""

Boxes = Float32[Tensor, "b m 4"]
Maps = tuple[Float[Tensor, "b c h w"], ...]


@dataclass(frozen=True)
class Truth:
    """Boxes in pixels (x0, y0, x1, y1), ``MOST`` rows an image, of which ``valid`` ones count.

    Rows ascend in area, so that the smallest box that claims a cell is the first that does.
    """

    boxes: Boxes
    labels: Int64[Tensor, "b m"]
    valid: Bool[Tensor, "b m"]

    @staticmethod
    def empty(batch: int, device: torch.device) -> "Truth":
        """No box in any of ``batch`` images."""
        return Truth(
            torch.zeros(batch, MOST, 4, device=device),
            torch.zeros(batch, MOST, dtype=torch.int64, device=device),
            torch.zeros(batch, MOST, dtype=torch.bool, device=device),
        )

    def copy_(self, other: "Truth") -> None:
        """Take over the values of another."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(other, field.name))


def pad(
    boxes: Float32[Tensor, "n 4"],
    labels: Int64[Tensor, " n"],
    owner: Int64[Tensor, " n"],
    keep: Bool[Tensor, " n"] | None,
    batch: int,
) -> tuple[Truth, Int64[Tensor, ""]]:
    """Ragged targets in ``MOST`` rows an image, and how many the fullest image has.

    ``owner`` ascends. Nothing waits for the device; whoever trains looks at the count now and then
    and refuses what is above ``MOST`` (:meth:`Step.check`).
    """
    device = boxes.device
    bounds = torch.searchsorted(owner, torch.arange(batch + 1, device=device))
    rows = bounds[:-1, None] + torch.arange(MOST, device=device)
    valid, rows = rows < bounds[1:, None], rows.clamp(max=max(len(boxes) - 1, 0))
    if not len(boxes):
        return Truth.empty(batch, device), bounds.diff().amax()
    if keep is not None:
        valid = valid & keep[rows]
    areas = torch.where(valid, area(boxes)[rows], torch.inf)
    rows = rows.gather(1, order := areas.argsort(dim=1, stable=True))
    return Truth(boxes[rows], labels[rows], valid.gather(1, order)), bounds.diff().amax()


def area(boxes: Float32[Tensor, "*n 4"]) -> Float32[Tensor, "*n"]:
    """Width times height. Not ``prod``, whose gradient waits for the device: no graph can."""
    width, height = (boxes[..., 2:] - boxes[..., :2]).unbind(-1)
    return width * height


def unit(inside: int, outside: int, *, side: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, SiLU."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, side, stride, side // 2, bias=False),
        nn.BatchNorm2d(outside),
        nn.SiLU(inplace=True),
    )


class Residual(nn.Module):
    """Two 3 x 3 units through half the channels, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(unit(channels, channels // 2), unit(channels // 2, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Detector(nn.Module):
    """Images [b, 3, h, w] in [0, 1] to three maps [b, 4 + classes, h / stride, w / stride].

    The first four channels are the distances to left, top, right, bottom before softplus, in
    strides; the others are logits. Height and width are multiples of 32.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        wide = (32, 64, 96, 128)
        self.stem = unit(48, wide[0], side=1)
        pairs = pairwise(wide)
        self.down = nn.ModuleList(
            nn.Sequential(unit(a, b, stride=2), Residual(b)) for a, b in pairs
        )
        self.lateral = nn.ModuleList(unit(w, 64, side=1) for w in wide[1:])
        self.head = nn.ModuleList(nn.Sequential(unit(64, 64), unit(64, 64)) for _ in STRIDES)
        self.out = nn.ModuleList(nn.Conv2d(64, 4 + classes, 1) for _ in STRIDES)
        for out in self.out:
            nn.init.constant_(out.get_parameter("bias")[4:], PRIOR)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> Maps:
        x, found = self.stem(fold(images)), []
        for down, lateral in zip(self.down, self.lateral, strict=True):
            x = down(x)
            found.append(lateral(x))
        for finer, coarser in ((1, 2), (0, 1)):
            found[finer] = found[finer] + double(found[coarser])
        ends = zip(self.head, self.out, found, strict=True)
        return tuple(out(head(x)) for head, out, x in ends)


def fold(images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 48 _ _"]:
    """Patches of 4 x 4 as channels, channels last: a copy, and the stem is one matrix product.

    Three channels never meet a convolution, which would pad them to eight for the tensor cores.
    """
    b, _, h, w = images.shape
    x = images.permute(0, 2, 3, 1).reshape(b, h // 4, 4, w // 4, 4, 3)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(b, h // 4, w // 4, 48).permute(0, 3, 1, 2)


def double(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c _ _"]:
    """Every cell four times, channels last. ``interpolate`` may not run backward where all must be
    deterministic; the gradient of ``expand`` is a sum along axes."""
    b, c, h, w = x.shape
    x = x.permute(0, 2, 3, 1)[:, :, None, :, None].expand(b, h, 2, w, 2, c)
    return x.reshape(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)


def assign(truth: Truth, height: int, width: int, stride: int) -> Int64[Tensor, "b h w"]:
    """Which row of ``truth`` each cell of a map belongs to: the smallest that claims it, or MOST.

    An object claims, on the map for its size, the cells with centres inside its box and less than
    ``REACH`` strides from its middle. Both are an interval of columns and one of rows, so a box
    costs height + width comparisons and one AND a cell.
    """
    boxes, level = truth.boxes, STRIDES.index(stride)
    low, high = boxes[..., :2], boxes[..., 2:]
    middle, longer = (low + high) * 0.5, (high - low).amax(-1)
    low = torch.maximum(low, middle - REACH * stride)
    high = torch.minimum(high, middle + REACH * stride)
    here = truth.valid & (longer > LONGEST[level]) & (longer <= LONGEST[level + 1])
    x, y = (centres(n, stride, boxes.device) for n in (width, height))
    columns = (low[..., :1] < x) & (x < high[..., :1])
    rows = (low[..., 1:] < y) & (y < high[..., 1:]) & here[..., None]
    claimed = rows[..., :, None] & columns[..., None, :]
    # int16, since there are b x MOST x cells of them: 0.13 GB of 64 images' finest map at 640.
    rank = torch.arange(MOST, dtype=torch.int16, device=boxes.device)[:, None, None]
    return torch.where(claimed, rank, MOST).amin(1).long()


def centres(count: int, stride: int, device: torch.device) -> Float32[Tensor, " n"]:
    """Where the centres of a map's rows or columns lie, in pixels."""
    return (torch.arange(count, device=device) + 0.5) * stride


@dataclass(frozen=True)
class Goals:
    """What every cell ``a`` of all maps should say; ``row`` is MOST where it should say nothing."""

    row: Int64[Tensor, "b a"]
    label: Int64[Tensor, "b a"]
    box: Float32[Tensor, "b a 4"]
    centre: Float32[Tensor, "a 2"]
    stride: Float32[Tensor, " a"]

    @property
    def taken(self) -> Bool[Tensor, "b a"]:
        """Which cells have an object."""
        return self.row < MOST


@torch.no_grad()
def goals(truth: Truth, shapes: Sequence[tuple[int, int]]) -> Goals:
    """Goals of maps of ``shapes`` (height, width). A cell of nothing has label 0 and a unit box."""
    device, rows, places, strides = truth.boxes.device, [], [], []
    for (height, width), stride in zip(shapes, STRIDES, strict=True):
        rows.append(assign(truth, height, width, stride).flatten(1))
        x, y = centres(width, stride, device), centres(height, stride, device)
        grid = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], -1)
        places.append(grid.reshape(-1, 2))
        strides.append(torch.full((height * width,), float(stride), device=device))
    row, centre, stride = torch.cat(rows, 1), torch.cat(places), torch.cat(strides)
    some = row.clamp(max=MOST - 1)
    around = torch.cat([centre - stride[:, None], centre + stride[:, None]], 1)
    box = truth.boxes.gather(1, some[..., None].expand(-1, -1, 4))
    taken = row < MOST
    label = torch.where(taken, truth.labels.gather(1, some), 0)
    return Goals(row, label, torch.where(taken[..., None], box, around), centre, stride)


def flat(maps: Maps) -> Float32[Tensor, "b a c"]:
    """All maps as one row of cells."""
    return torch.cat([m.permute(0, 2, 3, 1).flatten(1, 2) for m in maps], 1).float()


def decode(distances: Float32[Tensor, "b a 4"], goal: Goals) -> Float32[Tensor, "b a 4"]:
    """Boxes in pixels of what maps say of distances."""
    far = softplus(distances) * goal.stride[:, None]
    return torch.cat([goal.centre - far[..., :2], goal.centre + far[..., 2:]], -1)


def giou(a: Float32[Tensor, "*n 4"], b: Float32[Tensor, "*n 4"]) -> Float32[Tensor, "*n"]:
    """Generalised intersection over union (Rezatofighi et al. 2019), in (-1, 1]."""
    more, less = torch.maximum(a, b), torch.minimum(a, b)
    width, height = (less[..., 2:] - more[..., :2]).clamp(min=0).unbind(-1)
    hull = area(torch.cat([less[..., :2], more[..., 2:]], -1)).clamp(min=1e-6)
    both = width * height
    union = (area(a) + area(b) - both).clamp(min=1e-6)
    return both / union - (hull - union) / hull


def loss_of(maps: Maps, truth: Truth) -> Float32[Tensor, ""]:
    """Cross entropy of classes and 1 - GIoU of boxes, over the number of cells with an object.

    The entropy of a logit x is softplus(x), less x where it is wanted.
    """
    goal = goals(truth, shapes_of(maps))
    said, taken = flat(maps), goal.taken
    distances, logits = said[..., :4], said[..., 4:]
    classes = torch.arange(logits.shape[2], device=said.device)
    wanted = (goal.label[..., None] == classes) & taken[..., None]
    boxes = torch.where(taken, 1.0 - giou(decode(distances, goal), goal.box), 0.0)
    entropy = softplus(logits) - torch.where(wanted, logits, 0.0)
    return (entropy.sum() + boxes.sum()) / taken.sum().clamp(min=1)


def shapes_of(maps: Maps) -> list[tuple[int, int]]:
    """Height and width of each map."""
    return [(m.shape[2], m.shape[3]) for m in maps]


def hits(maps: Maps, truth: Truth) -> Bool[Tensor, "b m"]:
    """Of which objects the cell at their middle, on the map for their size, names the class."""
    low, high = truth.boxes[..., :2], truth.boxes[..., 2:]
    longer, middle = (high - low).amax(-1), (low + high) * 0.5
    shapes, cell = shapes_of(maps), torch.zeros_like(truth.labels)
    starts = accumulate((h * w for h, w in shapes), initial=0)
    for level, ((h, w), start) in enumerate(zip(shapes, starts, strict=False)):
        column, row = (middle / STRIDES[level]).long().unbind(-1)
        here = start + row.clamp(0, h - 1) * w + column.clamp(0, w - 1)
        cell = torch.where(longer > LONGEST[level], here, cell)
    named = flat(maps)[..., 4:].argmax(-1).gather(1, cell)
    return truth.valid & (named == truth.labels)


class Step:
    """A model and all that a step of its training changes; calling it trains on one batch.

    On a GPU the step is one CUDA graph over the buffers ``images`` and ``truth``, on a CPU the same
    calls. The learning rate is a table, of which the step takes the row that it counts, so nothing
    but pixels and boxes comes from outside.
    """

    def __init__(
        self, classes: int, batch: int, size: int, steps: int, device: torch.device, *, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.device, self.cuda = device, device.type == "cuda"
        self.model = Detector(classes).to(device).to(memory_format=torch.channels_last)
        self.ema = deepcopy(self.model).requires_grad_(False).eval()
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.images = torch.zeros(batch, size, size, 3, dtype=dtype, device=device)
        self.images = self.images.permute(0, 3, 1, 2)
        self.truth = Truth.empty(batch, device)
        self.rates = rates(steps).to(device)
        self.rate = torch.zeros((), device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.losses = torch.zeros(steps, device=device)
        self.fullest = torch.zeros((), dtype=torch.int64, device=device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), self.rate, weight_decay=DECAY, fused=True, capturable=self.cuda
        )
        self._average = get_ema_multi_avg_fn(AVERAGE)
        self._graph = self._warm_up()

    def __call__(self, images: Float[Tensor, "b 3 h w"], truth: Truth, fullest: Tensor) -> None:
        """Train on a batch, which is copied first: it may be changed as soon as this returns."""
        self.images.copy_(images)
        self.truth.copy_(truth)
        self.fullest = torch.maximum(self.fullest, fullest)
        self.again()

    def again(self) -> None:
        """Train on the batch that is there."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def forward(self, model: nn.Module, images: Float[Tensor, "b 3 h w"]) -> Maps:
        """A model's maps. Without a cache of casts: a graph would keep what was cast before it."""
        with torch.autocast(self.device.type, torch.bfloat16, self.cuda, cache_enabled=False):
            return model(images)

    def _run(self) -> None:
        now = torch.arange(len(self.rates), device=self.device) == self.position
        self.rate.copy_(torch.where(now, self.rates, 0.0).sum())
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.forward(self.model, self.images), self.truth)
        loss.backward()
        self.optimizer.step()
        self._average(floats(self.ema), floats(self.model), None)
        # Not ``losses[position] = loss``: writing to a place that the device knows is sorted first.
        self.losses.copy_(torch.where(now, loss.detach(), self.losses))
        self.position.add_(1)

    def _warm_up(self) -> torch.cuda.CUDAGraph | None:
        """Compile, allocate and capture; then all is as if nothing had been run."""
        start = deepcopy(self.model.state_dict())
        graph = capture(self._run) if self.cuda else None
        if graph is None:
            self._run()
        self.model.load_state_dict(start)
        self.ema.load_state_dict(start)
        for state in chain.from_iterable(s.values() for s in self.optimizer.state.values()):
            state.zero_()
        for tensor in (self.rate, self.position, self.losses):
            tensor.zero_()
        return graph

    @torch.no_grad()
    def validate(self, images: Float[Tensor, "n 3 h w"], truth: Truth) -> tuple[float, float]:
        """The averaged model's loss a batch, and the share of objects that it hits, in order."""
        losses, found, batch = [], [], len(self.images)
        for start in range(0, len(images), batch):
            some = slice(start, start + batch)
            part = Truth(truth.boxes[some], truth.labels[some], truth.valid[some])
            maps = self.forward(self.ema, images[some])
            losses.append(loss_of(maps, part))
            found.append(hits(maps, part).sum())
        objects = truth.valid.sum().clamp(min=1)
        return torch.stack(losses).mean().item(), (torch.stack(found).sum() / objects).item()

    def check(self) -> None:
        """Waits for the device. Errors: ValueError where an image had more than ``MOST`` boxes."""
        if (fullest := int(self.fullest)) > MOST:
            raise ValueError(f"an image wanted at most {MOST} boxes, came {fullest}: raise MOST")

    def state(self) -> dict[str, Any]:
        """All that training changes, by kind."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict(),
            "scheduler": {"rates": self.rates, "rate": self.rate, "position": self.position},
            "losses": self.losses,
        }


def rates(steps: int) -> Float32[Tensor, " steps"]:
    """Learning rates: a tenth of the steps up in a line, then down as a cosine."""
    at, up = torch.arange(steps, dtype=torch.float64), max(steps // 10, 1)
    down = ((at - up) / max(steps - up, 1)).clamp(min=0)
    wave = LAST + (1 - LAST) * 0.5 * (1 + torch.cos(math.pi * down))
    return (RATE * torch.minimum((at + 1) / up, wave)).float()


def floats(model: nn.Module) -> list[Tensor]:
    """Parameters and running statistics; what counts batches is not averaged."""
    tensors = chain(model.parameters(), model.buffers())
    return [t.detach() for t in tensors if t.is_floating_point()]


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of ``run``, which is run three times first, on a stream of its own, as graphs ask."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    # The same stream, since autograd adds gradients up on the stream that it first did so on.
    with torch.cuda.graph(graph, stream=side):
        run()
    torch.cuda.synchronize()
    return graph
