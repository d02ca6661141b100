"""A batch is a function of its address: workers, starts, cuts, ranks and resumes change nothing.

Three epochs of a recipe that changes with the epoch and draws a size for every batch, against the
batches made by hand, one at a time. Of every batch all bytes count: images, targets, ids.
"""

import hashlib
import itertools
import json
import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor
from torch.utils import _pytree as pytree

import fnpipe as fp
from fnpipe.backends import CUTS
from fnpipe.data.dataset import Dataset
from fnpipe.feed.addresses import Epochs, _shuffled
from fnpipe.feed.ranks import Share
from fnpipe.schedules import value_at


COUNT, BATCH, EPOCHS, SEED = 41, 4, 3, 11
STEPS = 11


def recipe(layout: Any) -> fp.Pipeline:
    return fp.pipe(
        layout,
        fp.affine(degrees=5.0, scale=0.3),
        fp.hsv(hue=0.1, saturation=0.5, value=0.4),
        fp.flip(horizontal=0.5),
    )


RECIPE = fp.schedule(
    {0: fp.buckets(32, 48).map(lambda size: recipe(fp.mosaic(size))), 2: recipe(fp.letterbox(32))}
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """41 photos of noise with a box and a polygon each."""
    root, images, boxes = tmp_path_factory.mktemp("photos"), [], []
    noise = torch.Generator().manual_seed(0)
    for i in range(COUNT):
        width, height = 24 + i, 64 - i
        pixels = torch.randint(0, 256, (height, width, 3), generator=noise, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(root / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": width, "height": height})
        ring = [2, 2, 14, 3, 12, 13, 4, 12]
        boxes.append({"id": i, "image_id": i, "category_id": 1, "bbox": [2, 2, 12, 11],
                      "segmentation": [ring]})  # fmt: skip
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "box"}]}
    (root / "boxes.json").write_text(json.dumps(content))
    return fp.read_coco(root / "boxes.json", root, task="segment")


def digest(batch: fp.Batch) -> str:
    made = hashlib.sha256()
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor):
            made.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            made.update(leaf.contiguous().numpy().tobytes())
    return made.hexdigest()


def load(data: Dataset, **options: Any) -> fp.Loader:
    given = {"batch_size": BATCH, "seed": SEED, "worker_backend": "eager", "backend": "eager"}
    return fp.Loader(data, options.pop("recipe", RECIPE), **(given | options))


def run(loader: fp.Loader, epochs: int = EPOCHS) -> list[str]:
    with loader:
        return [digest(batch) for _ in range(epochs) for batch in loader]


@pytest.fixture(scope="module")
def truth(data: Dataset) -> list[str]:
    """Every batch, made by hand from its address alone."""
    made = []
    for epoch in range(EPOCHS):
        order = fp.keys.permute(torch.arange(COUNT), COUNT, seed=SEED, epoch=epoch)
        for step, ids in enumerate(order.split(BATCH)):
            pipeline = value_at(RECIPE, seed=SEED, epoch=epoch, step=step)
            made.append(digest(fp.make_batch(data, pipeline, ids, seed=SEED, epoch=epoch)))
    assert len(set(made)) == EPOCHS * STEPS
    return made


@pytest.mark.parametrize(
    ("workers", "start_method"),
    [(0, None), (1, "fork"), (2, "fork"), (8, "fork"), (2, "spawn"), (2, "forkserver")],
)
def test_cases_89_91_workers_change_no_byte(
    data: Dataset, truth: list[str], workers: int, start_method: str | None
):
    assert run(load(data, workers=workers, start_method=start_method)) == truth


@pytest.mark.parametrize("cut", CUTS)
def test_the_cut_changes_no_byte(data: Dataset, truth: list[str], cut: str):
    pool = fp.pool(data, "device", device="cpu", progress=False) if cut == "plan" else None
    assert run(load(data, workers=2, start_method="fork", cut=cut, pool=pool)) == truth


@pytest.mark.parametrize("options", [{"prefetch": 1}, {"prefetch": 5}, {"ahead": False}])
def test_being_ahead_changes_no_byte(data: Dataset, truth: list[str], options: dict[str, Any]):
    assert run(load(data, workers=2, start_method="fork", **options)) == truth


def test_case_104_a_run_resumed_anywhere_is_the_run(data: Dataset, truth: list[str]):
    """Twenty random points; saved while more batches are prefetched, with other workers each time.

    Position 33 is the end, and its rest empty: the fourth epoch is not asked for.
    """
    dice = random.Random(0)
    points = [4, *(dice.randrange(len(truth)) for _ in range(19))]
    for turn, point in enumerate(points):
        with load(data, workers=turn % 3, start_method="fork" if turn % 3 else None) as loader:
            batches = itertools.chain.from_iterable(itertools.repeat(loader))
            seen = [digest(batch) for batch in itertools.islice(batches, point)]
            state = loader.state_dict()
        assert seen == truth[:point]
        assert (state["epoch"], state["step"]) == divmod(point, STEPS)
        after = load(data, workers=(turn + 1) % 2 * 2, cut=CUTS[turn % 3])
        after.load_state_dict(state)
        after.load_state_dict(state)
        assert run(after, EPOCHS - point // STEPS) == truth[point:]


def test_case_104_the_last_batch_is_the_short_one(data: Dataset):
    loader = load(data, workers=2, start_method="fork", prefetch=2)
    with loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
    after = load(data)
    after.load_state_dict(state)
    assert [len(batch) for batch in after] == [4] * 6 + [1]


def rank_digests(data: Dataset, rank: int, world_size: int, file: str, results: Any) -> None:
    """One process of a group: its share of three epochs, no call between them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size)
    loader = load(data, recipe=RECIPE.at(2))
    shares = [(batch.images, batch.boxes, batch.owner, batch.ids) for _ in range(EPOCHS)
              for batch in loader]  # fmt: skip
    order = load(data, recipe=RECIPE.at(2), shuffle=False)
    seen = [i for batch in order for i in batch.ids.tolist()]
    dist.barrier()
    results.put((rank, [tuple(t.numpy() for t in share) for share in shares], seen))
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [2, 4])
def test_cases_93_102_ranks_share_the_batches_of_one(
    data: Dataset, tmp_path: Path, world_size: int
):
    """41 samples, 4 a batch: with four ranks the last batch leaves three of them empty."""
    came = spawn(rank_digests, data, world_size, tmp_path / "group")
    whole = [batch for loader in [load(data, recipe=RECIPE.at(2))] for _ in range(EPOCHS)
             for batch in loader]  # fmt: skip
    for at, batch in enumerate(whole):
        shares = [came[rank][0][at] for rank in range(world_size)]
        first = 0
        for images, boxes, owner, ids in shares:
            rows = slice(first, first + len(ids))
            mine = (batch.owner >= first) & (batch.owner < rows.stop)
            assert ids.tolist() == batch.ids[rows].tolist()
            assert torch.equal(torch.from_numpy(images), batch.images[rows])
            assert torch.equal(torch.from_numpy(boxes), batch.boxes[mine])
            assert owner.tolist() == (batch.owner[mine] - first).tolist()
            first = rows.stop
        assert first == len(batch)
    seen = sorted(i for _, own in came.values() for i in own)
    assert seen == list(range(COUNT))
    orders = {tuple(i for batch in whole[e * STEPS : (e + 1) * STEPS] for i in batch.ids.tolist())
              for e in range(EPOCHS)}  # fmt: skip
    assert len(orders) == EPOCHS


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_case_93_shards_are_disjoint_and_cover_all(data: Dataset, world_size: int):
    """103 samples over any number of ranks, asked in any order."""
    many = data.subset(torch.arange(103) % COUNT)
    found = {}
    for rank in reversed(range(world_size)):
        loader = fp.Loader(
            many, fp.pipe(fp.letterbox(8)), batch_size=20, seed=0, rank=rank,
            world_size=world_size, worker_backend="eager", backend="eager",
        )  # fmt: skip
        found[rank] = [[b.ids.tolist() for b in loader] for _ in range(3)]
    for epoch in range(3):
        seen = sorted(i for own in found.values() for ids in own[epoch] for i in ids)
        assert seen == list(range(103))
    assert len({str(found[0][epoch]) for epoch in range(3)}) == 3


def test_case_92_ranks_and_seeds_draw_apart(data: Dataset):
    options = {"recipe": recipe(fp.mosaic(32))}
    one = {i: batch.images[row].sum() for batch in load(data, **options)
           for row, i in enumerate(batch.ids.tolist())}  # fmt: skip
    two = {i: batch.images[row].sum() for rank in (0, 1)
           for batch in load(data, rank=rank, world_size=2, **options)
           for row, i in enumerate(batch.ids.tolist())}  # fmt: skip
    assert one == two
    other = {i: batch.images[row].sum() for batch in load(data, seed=SEED + 1, **options)
             for row, i in enumerate(batch.ids.tolist())}  # fmt: skip
    assert all(one[i] != other[i] for i in one)


def train_rank(data: Dataset, rank: int, world_size: int, file: str, results: Any) -> None:
    """Two epochs of a linear model on its rank's share; whole numbers, so that sums are exact."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size)
    weight, losses = torch.ones(3, 32, 32, dtype=torch.float64), []
    for _ in range(2):
        for batch in load(data, recipe=RECIPE.at(2)):
            images = batch.images.to(torch.float64)
            gradient, loss = images.sum(0), (weight * images).sum()
            dist.all_reduce(gradient)
            dist.all_reduce(loss)
            weight = (weight - gradient * 2.0**-7).round()
            losses.append(loss.item())
    results.put((rank, losses, weight.numpy().tobytes()))
    dist.destroy_process_group()


def spawn(target: Any, data: Dataset, world_size: int, file: Path) -> dict[int, tuple[Any, ...]]:
    """What each rank of a group of processes puts out."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    ranks = [
        context.Process(target=target, args=(data, rank, world_size, str(file), results))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    came = {rank: rest for rank, *rest in (results.get() for _ in ranks)}
    for process in ranks:
        process.join(30)
        assert process.exitcode == 0
    return came


def test_two_ranks_train_the_model_of_one(data: Dataset, tmp_path: Path):
    one = spawn(train_rank, data, 1, tmp_path / "one")
    two = spawn(train_rank, data, 2, tmp_path / "two")
    assert len(set(one[0][0])) == 2 * STEPS
    assert one[0] == two[0] == two[1]


def drop_epoch(patch: pytest.MonkeyPatch) -> None:
    draw = fp.cuts.draw
    patch.setattr(fp.cuts, "draw", lambda d, p, at: draw(d, p, at.replace(epoch=at.epoch * 0)))


def skip_batch(patch: pytest.MonkeyPatch) -> None:
    following = Epochs.following
    patch.setattr(Epochs, "following", lambda self, e, s: following(self, e, s + (s == 3)))


def shift_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Share, "of", lambda self, places: places[1:] or places)


def count_made(patch: pytest.MonkeyPatch) -> None:
    state = fp.Loader.state_dict
    patch.setattr(fp.Loader, "state_dict", lambda self: state(self) | {"step": 2})


@pytest.mark.parametrize("plant", [drop_epoch, skip_batch, shift_share, count_made])
def test_a_planted_bug_is_found(
    data: Dataset, truth: list[str], monkeypatch: pytest.MonkeyPatch, plant: Any
):
    """Epochs that draw alike, a batch left out, a wrong share, a state of more than was seen."""

    def check() -> None:
        loader = load(data)
        for _ in zip(range(1), loader, strict=False):
            state = loader.state_dict()
        after = load(data)
        after.load_state_dict(state)
        assert run(after) == truth[1:]

    check()
    plant(monkeypatch)
    _shuffled.cache_clear()
    with pytest.raises(AssertionError):
        check()
    _shuffled.cache_clear()
