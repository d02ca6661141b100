"""Loading: which batches, what is refused, and what may not disturb the order."""

import json
import pickle
import re
from typing import Any

import pytest
import torch
from PIL import Image as pillow
from torch import Tensor

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.feed.addresses import Address, Epochs
from fnpipe.feed.job import Job
from fnpipe.types import ArgumentError


PLAIN = fp.pipe(fp.resize(8), fp.flip(horizontal=0.5))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Ten photos, each of one colour, with one box."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(10):
        pillow.new("RGB", (16, 12), (i * 20, 0, 255)).save(root / f"{i}.png")
    document = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(10)],
        "categories": [{"id": 1, "name": "box"}],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 8, 6]} for i in range(10)
        ],
    }
    (root / "boxes.json").write_text(json.dumps(document))
    return fp.read_coco(root / "boxes.json", root)


def load(data: Dataset, **options: Any) -> fp.Loader:
    given: dict[str, Any] = {"batch_size": 4, "seed": 0, "worker_backend": "eager"}
    given |= {"backend": "eager", **options}
    return fp.Loader(data, given.pop("pipeline", PLAIN), **given)


def ids(loader: fp.Loader) -> list[list[int]]:
    return [batch.ids.tolist() for batch in loader]


def test_an_epoch_is_every_sample_once_in_an_order_of_its_own(data: Dataset):
    loader = load(data)
    first, second = ids(loader), ids(loader)
    assert [len(b) for b in first] == [4, 4, 2]
    assert len(loader) == 3
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == [*range(10)]  # noqa: RUF017
    assert first != second
    assert ids(load(data)) == first
    assert ids(load(data, seed=1)) != first


def test_without_shuffling_samples_come_in_order(data: Dataset):
    assert ids(load(data, shuffle=False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert ids(load(data, shuffle=False, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_epoch_follows_the_last_or_is_the_one_asked_for(data: Dataset):
    loader = load(data)
    epochs = [next(iter(load_epoch(loader, None))) for _ in range(2)]
    assert epochs == [0, 1]
    assert next(iter(load_epoch(loader, 7))) == 7
    assert next(iter(load_epoch(loader, None))) == 8
    assert next(iter(load_epoch(loader, 0))) == 0


def load_epoch(loader: fp.Loader, epoch: int | None) -> list[int]:
    """The epochs of an epoch's batches."""
    if epoch is not None:
        loader.set_epoch(epoch)
    found = [int(e) for batch in loader for e in batch.epochs]
    assert len(set(found)) == 1
    return found[:1]


def test_leaving_an_epoch_early_disturbs_no_other(data: Dataset):
    whole = load(data)
    wanted = [ids(whole), ids(whole)]
    loader = load(data)
    for batch in loader:
        assert batch.ids.tolist() == wanted[0][0]
        break
    assert ids(loader) == wanted[1]


def test_a_batch_is_images_and_targets(data: Dataset):
    (batch,) = load(data, batch_size=10, shuffle=False)
    assert batch.images.shape == (10, 3, 8, 8)
    assert batch.images[:, 0, 0, 0].tolist() == [20 * i for i in range(10)]
    assert batch.owner.tolist() == [*range(10)]
    assert isinstance(batch, fp.Batch)


def test_a_batch_by_hand_is_the_loaders(data: Dataset):
    for batch in load(data, seed=3):
        made = fp.make_batch(data, PLAIN, batch.ids, seed=3)
        assert torch.equal(made.images, batch.images)
        assert torch.equal(made.boxes, batch.boxes)


@pytest.mark.parametrize("given", [[10], [-1, 2], [], torch.tensor([3, 99])])
def test_ids_of_no_photo_are_refused(data: Dataset, given: Any):
    shown = given.tolist() if isinstance(given, Tensor) else given
    with pytest.raises(ArgumentError) as caught:
        fp.make_batch(data, PLAIN, given, seed=0)
    assert str(caught.value) == f"ids wanted samples in [0, 10), came {shown}"


def double(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return r * 2.0, g * 2.0, b * 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cut": "half"},
            "cut wanted one of finished, warped, source, plan, came 'half'",
        ),
        (
            {"backend": "gpu"},
            "backend (to render) wanted one of eager, compiled, package, triton, came 'gpu'",
        ),
        (
            {"cut": "warped", "backend": "package"},
            "backend (to paint) wanted one of eager, compiled, triton, came 'package'",
        ),
        (
            {"cut": "warped", "worker_backend": "triton"},
            "backend (to warp) wanted one of eager, compiled, package, came 'triton'",
        ),
        ({"batch_size": 0}, "batch_size wanted an integer >= 1, came 0"),
        (
            {"batch_size": 11, "drop_last": True},
            "drop_last leaves no batch: 10 photos, batch_size 11",
        ),
    ],
    ids=["cut", "backend", "device backend", "worker backend", "batch size", "drop last"],
)
def test_an_option_that_cannot_be_is_refused(data: Dataset, options: Any, message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
        load(data, **options)


def test_an_empty_set_is_refused(data: Dataset):
    empty = data.subset([])
    with pytest.raises(ArgumentError) as caught:
        load(empty)
    assert str(caught.value) == (f"data wanted at least one photo, came an empty set ({data.root})")


def test_case_106_a_function_that_cannot_travel_is_refused_before_a_worker_starts(data: Dataset):
    own = fp.pointwise(lambda r, g, b: (b, g, r)).drawn(name="swapped")
    pipeline = fp.pipe(fp.resize(8), own)
    assert len(ids(load(data, pipeline=pipeline))) == 3
    with pytest.raises(ArgumentError) as caught:
        load(data, pipeline=pipeline, workers=2)
    message = str(caught.value)
    assert message.startswith(f"stage {own!r} cannot be sent to workers: ")
    assert message.endswith("; define its function with def at the top level of a module")


STAGES = [
    lambda: fp.mosaic(8),
    lambda: fp.affine(degrees=1.0),
    lambda: fp.letterbox(8),
    lambda: fp.resize(8),
    lambda: fp.crop(8),
    lambda: fp.flip(horizontal=0.5),
    lambda: fp.hsv(hue=0.1),
    lambda: fp.brightness(0.5, p=0.5),
    lambda: fp.contrast(0.5),
    lambda: fp.grayscale(p=0.5),
    lambda: fp.solarize(99.0),
    lambda: fp.posterize(3),
    lambda: fp.pointwise(double).drawn(),
    lambda: fp.keep(side=1.0),
    lambda: fp.finish(torch.float16),
]


def test_case_106_every_stage_travels_and_gives_equal_output(data: Dataset):
    first, *others = [make() for make in STAGES]
    pipeline = fp.pipe(first, *others)
    job = Job(data, pipeline, Epochs(10, 4, 0), "finished", "eager")
    sent: Job = pickle.loads(pickle.dumps(job))
    assert sent.recipe == pipeline
    here, there = job.prepare(Address(1, 2)), sent.prepare(Address(1, 2))
    assert here.images is not None
    assert there.images is not None
    assert torch.equal(here.images, there.images)
    assert torch.equal(here.targets.boxes, there.targets.boxes)


def test_steps_and_samples_follow_from_the_address(data: Dataset):
    job = Job(data, PLAIN, Epochs(10, 4, 0), "finished", "eager")
    assert job.epochs.steps(0) == 3
    found = torch.cat([job.ids(Address(5, step)) for step in range(3)])
    assert sorted(found.tolist()) == [*range(10)]
    assert job.ids(Address(5, 1)).tolist() == found[4:8].tolist()
    assert job.prepare(Address(5, 1)).plan.epochs.tolist() == [5] * 4


def test_what_runs_where_is_told(data: Dataset):
    text = load(data, cut="warped").explain()
    assert "resize(8)" in text
    assert "warped" in text
    assert "backends: worker eager, device eager" in text


def test_a_plan_alone_wants_a_pool(data: Dataset):
    with pytest.raises(ArgumentError) as caught:
        load(data, cut="plan")
    assert str(caught.value) == (
        "cut 'plan' wanted a pool on cpu, came none: pool=fnpipe.pool(data, 'device')"
    )
