"""What a sample gets depends on seed, epoch, its id and the names of stages, on nothing else."""

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scenes import (
    ALBUM,
    KNOWN,
    SIZE,
    affines,
    assert_known_draws,
    flips,
    paints,
    photo,
    pipelines,
    seeds,
)
from torch import Tensor
from torch.utils import _pytree as pytree

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.types import Plan, map_tensors


many = settings(max_examples=100, deadline=None)
ids = st.lists(st.integers(0, len(ALBUM) - 1), min_size=1, max_size=6)
epochs = st.integers(0, 2**32 - 1)


def draw(pipeline: fp.Pipeline, seed: int, epoch: int, samples: list[int]) -> Plan:
    key = fp.key(seed=seed, epoch=epoch, sample=torch.tensor(samples))
    return pipeline.draw(key, ALBUM)


def assert_same_plans(a: Plan, b: Plan) -> None:
    for (path, x), y in zip(pytree.tree_leaves_with_path(a), pytree.tree_leaves(b), strict=True):
        assert torch.equal(x, y), f"plans differ in {pytree.keystr(path)}"


@many
@given(pipelines(), seeds, epochs, ids, st.data())
def test_a_sample_is_drawn_alike_in_any_batch(pipeline, seed, epoch, samples, data):
    """Alone, in another order, with others, twice."""
    rows = data.draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=6))
    batch = draw(pipeline, seed, epoch, samples)
    picked = map_tensors(lambda t: t[torch.tensor(rows)], batch)
    assert_same_plans(draw(pipeline, seed, epoch, [samples[row] for row in rows]), picked)


middles = st.lists(st.one_of(affines, flips, paints), max_size=4, unique_by=lambda s: s.name)


def drawn(pipeline: fp.Pipeline, key: fp.Key) -> dict[str, Tensor]:
    """What every stage drew, by its name, while a plan was made."""
    log: dict[str, Tensor] = {}

    def logged(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def draw(self: Any, key: fp.Key) -> Tensor:
            log[self.name] = method(self, key)
            return log[self.name]

        return draw

    with pytest.MonkeyPatch.context() as patch:
        for kind in {type(s) for s in pipeline.stages}:
            for name in {"draw", "mirror"} & set(vars(kind)):
                patch.setattr(kind, name, logged(vars(kind)[name]))
        log["sources"] = pipeline.draw(key, ALBUM).sources
    return log


@many
@given(middles, seeds, epochs, ids, st.data())
def test_another_stage_reseeds_none(stages, seed, epoch, samples, data):
    """Whatever is put in, wherever: all others draw what they drew, partners and all."""
    more = data.draw(st.one_of(affines, flips, paints))
    more = type(more)(**{**vars(more), "name": "another"})
    at = data.draw(st.integers(0, len(stages)))
    key = fp.key(seed=seed, epoch=epoch, sample=torch.tensor(samples))
    before = drawn(fp.pipe(fp.mosaic(SIZE), *stages), key)
    after = drawn(fp.pipe(fp.mosaic(SIZE), *stages[:at], more, *stages[at:]), key)
    assert {*before, "another"} == set(after) == {"sources", "another", *(s.name for s in stages)}
    for name, parameters in before.items():
        assert torch.equal(parameters, after[name]), name


def test_a_name_is_the_only_thing_that_tells_stages_apart():
    one, other = fp.affine(degrees=45), fp.affine(degrees=45, name="other")
    assert not torch.equal(
        draw(fp.pipe(fp.resize(SIZE), one), 0, 0, [1]).maps,
        draw(fp.pipe(fp.resize(SIZE), other), 0, 0, [1]).maps,
    )


@many
@given(seeds, epochs, st.integers(0, len(ALBUM) - 1), st.data())
def test_case_92_another_seed_or_epoch_or_sample_is_another_draw(seed, epoch, sample, data):
    others = [
        (seed ^ 1, epoch, sample),
        (seed, epoch ^ 1, sample),
        (seed, epoch, (sample + 1) % len(ALBUM)),
    ]
    here = draw(KNOWN, seed, epoch, [sample])
    there = draw(KNOWN, *(lambda s, e, i: (s, e, [i]))(*data.draw(st.sampled_from(others))))
    assert not torch.equal(here.colors[0], there.colors[0])
    assert not torch.equal(here.maps, there.maps)


def test_draws_are_what_they_were():
    assert_known_draws()


# Loaders


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Ten small photos with a box each."""
    root = tmp_path_factory.mktemp("photos")
    images, boxes = [], []
    for i in range(10):
        width, height = 20 + 7 * i, 90 - 6 * i
        picture = photo(width, height, seed=i).permute(1, 2, 0).numpy()
        Image.fromarray(picture).save(root / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": width, "height": height})
        boxes.append({"id": i, "image_id": i, "category_id": 1, "bbox": [2, 3, 10 + i, 12]})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "box"}]}
    (root / "boxes.json").write_text(json.dumps(content))
    return fp.read_coco(root / "boxes.json", root)


def digest(batch: fp.Batch) -> str:
    made = hashlib.sha256()
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor):
            made.update(f"{leaf.dtype}{tuple(leaf.shape)}{leaf.stride()}".encode())
            made.update(leaf.numpy().tobytes())
    return made.hexdigest()


def digests(data: Dataset, epochs: int = 2, **options) -> list[list[str]]:
    loader = fp.Loader(data, KNOWN, batch_size=4, seed=7, worker_backend="eager", **options)
    return [[digest(batch) for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize(("workers", "start_method"), [(1, "fork"), (3, "fork"), (3, "spawn")])
def test_cases_89_91_workers_change_no_byte(data: Dataset, workers: int, start_method: str):
    here = digests(data)
    assert len(set(chain(*here))) == 6
    assert digests(data, workers=workers, start_method=start_method) == here


def samples(batches: Iterator[fp.Batch]) -> dict[int, tuple[str, list]]:
    """Every sample's picture and boxes, whatever batch it came in."""
    found = {}
    for batch in batches:
        for i, sample in enumerate(batch.ids.tolist()):
            own = batch.owner == i
            bytes_ = batch.images[i].contiguous().view(torch.uint8).numpy().tobytes()
            found[sample] = (hashlib.sha256(bytes_).hexdigest(), batch.boxes[own].tolist())
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_the_size_of_batches_changes_no_sample(data: Dataset, batch_size: int):
    one = samples(iter(fp.Loader(data, KNOWN, batch_size=4, seed=7, worker_backend="eager")))
    other = samples(
        iter(fp.Loader(data, KNOWN, batch_size=batch_size, seed=7, worker_backend="eager"))
    )
    assert one == other
    assert sorted(one) == list(range(10))


def test_the_order_of_an_epoch_changes_no_sample(data: Dataset):
    shuffled = fp.Loader(data, KNOWN, batch_size=4, seed=7, worker_backend="eager")
    in_order = fp.Loader(data, KNOWN, batch_size=4, seed=7, worker_backend="eager", shuffle=False)
    assert samples(iter(shuffled)) == samples(iter(in_order))


def test_a_sample_by_hand_is_the_loaders(data: Dataset):
    loader = fp.Loader(data, KNOWN, batch_size=4, seed=7, worker_backend="eager")
    for batch in loader:
        for i, sample in enumerate(batch.ids.tolist()):
            image, targets = KNOWN(fp.key(seed=7, epoch=0, sample=sample), data[sample])
            assert torch.equal(image, batch.images[i])
            assert torch.equal(targets.boxes, batch.boxes[batch.owner == i])


def test_no_two_epochs_and_no_two_seeds_are_alike(data: Dataset):
    runs = [
        digest(batch)
        for seed in (0, 1)
        for loader in [fp.Loader(data, KNOWN, batch_size=10, seed=seed, worker_backend="eager")]
        for _ in range(3)
        for batch in loader
    ]
    assert len(set(runs)) == 6
