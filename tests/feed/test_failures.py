"""A sample that fails: who it is, at what, how to see it again, and who takes its place."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as pillow
from torch import Tensor

import fnpipe as fp
from fnpipe import numerics
from fnpipe.data.dataset import Dataset
from fnpipe.feed.addresses import Address, Epochs
from fnpipe.feed.failures import Failure, blame, replace_failing
from fnpipe.feed.job import Job
from fnpipe.types import ArgumentError, DataError, LoaderError, Rings


PLAIN = fp.pipe(fp.resize(8), fp.flip(horizontal=0.5))


@pytest.fixture
def broken(data: Dataset, tmp_path: Path) -> Dataset:
    """The ten photos, of which 3 and 6 can no longer be read."""
    shutil.copytree(data.root, tmp_path / "photos")
    for i in (3, 6):
        (tmp_path / "photos" / f"{i}.png").write_bytes(b"")
    copy = object.__new__(Dataset)
    vars(copy).update(vars(data), root=tmp_path / "photos")
    return copy


def load(data: Dataset, **options: Any) -> fp.Loader:
    given = {"batch_size": 5, "seed": 0, "worker_backend": "eager", "backend": "eager"}
    given |= {"start_method": "fork"}
    return fp.Loader(data, options.pop("pipeline", PLAIN), **(given | options))


def angry(r: Tensor, g: Tensor, b: Tensor, mood: Tensor) -> Any:
    if float(mood.max()) > 0.5:
        raise ZeroDivisionError("too angry")
    return r, g, b


def test_a_photo_that_fails_in_the_first_batch_is_told_of_when_it_is_due(broken: Dataset):
    """Not when the loader is made, which makes a parcel to see how large they are."""
    options: dict[str, Any] = {"memory": 10**9, "shuffle": False}
    replacing = load(broken, **options, on_error="replace")
    assert [len(batch) for batch in replacing] == [5, 5]
    assert [each.sample for each in replacing.replaced] == [3, 6]
    raising = iter(load(broken, **options))
    with pytest.raises(DataError, match=r"^no worker, epoch 0, step 0, sample 3 "):
        next(raising)


def test_to_find_who_failed_builds_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Photos of many sizes in a pipeline that gives them none are told of at once."""
    images = [{"id": i, "file_name": f"{i}.png"} for i in range(2)]
    for i in range(2):
        pillow.new("RGB", (8 + i, 8)).save(tmp_path / f"{i}.png")
    document = {"images": images, "annotations": [], "categories": []}
    (tmp_path / "none.json").write_text(json.dumps(document))
    data = fp.read_coco(tmp_path / "none.json", tmp_path)
    monkeypatch.setattr(numerics, "package", lambda *given, **how: pytest.fail("built"))
    made = load(data, pipeline=fp.pipe(fp.flip()), batch_size=2, worker_backend="package")
    with pytest.raises(
        ArgumentError, match=r"^no worker, .*, samples .*: draw: images would differ"
    ):
        next(iter(made))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_raised_in_its_batch_with_all_that_is_needed(broken: Dataset, workers: int):
    with load(broken, shuffle=False, batch_size=2, workers=workers) as loader:
        batches = iter(loader)
        assert next(batches).ids.tolist() == [0, 1]
        with pytest.raises(DataError) as caught:
            next(batches)
    who = "worker 1 (pid " if workers else "no worker, "
    path = broken.root / "3.png"
    message = str(caught.value)
    assert message.startswith(who)
    assert f", epoch 0, step 1, sample 3 ({path}), reading {path}: " in message
    assert message.endswith(
        "to see it again: fnpipe.make_batch(data, "
        "pipe(resize(8), flip(horizontal=0.5)), [3], seed=0, epoch=0)"
    )
    assert "In the worker:" in caught.value.__notes__[0]
    assert "read_packed" in caught.value.__notes__[0]


def test_after_an_error_the_run_goes_on_there(broken: Dataset):
    loader = load(broken, shuffle=False, batch_size=2)
    with pytest.raises(DataError):
        list(loader)
    assert loader.state_dict()["step"] == 1
    shutil.copy(broken.root / "1.png", broken.root / "3.png")
    assert next(iter(loader)).ids.tolist() == [2, 3]


def test_an_error_of_the_next_epoch_waits_for_it(data: Dataset, tmp_path: Path):
    """The recipe breaks from epoch 1 on, and workers are there long before epoch 0 is over."""
    recipe = fp.schedule({0: PLAIN, 1: fp.pipe(fp.resize(8), fp.pointwise(never).drawn())})
    with load(data, pipeline=recipe, workers=1, prefetch=9) as loader:
        first = [batch.ids.tolist() for batch in loader]
        assert len(first) == 2
        with pytest.raises(LoaderError, match=r"epoch 1, step 0, sample \d+ .*never\.drawn\(\)"):
            next(iter(loader))


def never(r: Tensor, g: Tensor, b: Tensor) -> Any:
    if r.numel() > 16:  # not where it becomes a stage, which tries it on so many pixels
        raise ZeroDivisionError("never")
    return r, g, b


def test_the_stage_is_named(data: Dataset):
    wild = fp.pointwise(angry).drawn(mood=fp.uniform(0.0, 1.0))
    job = Job(data, fp.pipe(fp.resize(8), wild, fp.finish(torch.uint8)), Epochs(10, 5, 0),
              "finished", "eager")  # fmt: skip
    found = {sample: blame(job, Address(0, 0), sample) for sample in range(10)}
    failing = {sample: part for sample, part in found.items() if part}
    assert 0 < len(failing) < 10
    for part, cause in failing.values():
        assert part == repr(wild)
        assert isinstance(cause, ZeroDivisionError)


def test_a_stage_that_cannot_draw_is_named(data: Dataset):
    job = Job(data, fp.pipe(fp.resize(8), Broken(), fp.flip(horizontal=0.5)), Epochs(10, 5, 0),
              "finished", "eager")  # fmt: skip
    found = blame(job, Address(0, 0), 4)
    assert found is not None
    assert found[0] == "Broken()"
    assert str(found[1]) == "no draw today"


class Broken:
    """A flip that fails."""

    name = "broken"

    def __repr__(self) -> str:
        return "Broken()"

    def mirror(self, key: Any) -> Tensor:
        raise OSError("no draw today")


def test_what_fails_together_only_is_told_of_all(data: Dataset, tmp_path: Path):
    """Two photos of unlike size make no batch, though each is one alone."""
    root, sizes = shutil.copytree(data.root, tmp_path / "unlike"), data.sizes.clone()
    pillow.new("RGB", (9, 9)).save(root / "4.png")
    sizes[4] = 9
    unlike = replace(data, root=root, sizes=sizes)
    with pytest.raises(ArgumentError) as caught:
        list(load(unlike, pipeline=fp.pipe(), shuffle=False))
    assert str(caught.value).startswith("no worker, epoch 0, step 0, samples [0, 1, 2, 3, 4]: ")


def test_an_error_crosses_as_a_value():
    error = Failure(DataError, "a.png: empty", "Traceback").error()
    assert isinstance(error, DataError)
    assert str(error) == "a.png: empty"
    assert error.__notes__ == ["In the worker:\nTraceback"]


def test_case_10_replacements_are_the_same_whatever_the_batch(broken: Dataset):
    """Drawn from the sample's own key: batch size, workers and ranks do not come into it."""
    runs = [
        load(broken, on_error="replace", batch_size=size, workers=workers, shuffle=shuffle)
        for size, workers, shuffle in [(5, 0, True), (3, 2, True), (10, 0, False)]
    ]
    told = []
    for loader in runs:
        with loader:
            seen = sorted(i for batch in loader for i in batch.ids.tolist())
        assert len(seen) == 10
        assert not {3, 6} & set(seen)
        told.append(sorted(loader.replaced))
        assert loader.stats().replaced == 2
    assert told[0] == told[1] == told[2]
    assert [r.sample for r in told[0]] == [3, 6]
    assert all(str(broken.root / f"{r.sample}.png") in r.why for r in told[0])
    assert sorted({*range(10)} - {3, 6} | {r.by for r in told[0]}) == [0, 1, 2, 4, 5, 7, 8, 9]


def corners(boxes: Tensor) -> Rings:
    """A ring a box."""
    ends = torch.arange(len(boxes) + 1)
    return Rings(boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].view(-1, 2), 4 * ends, ends)


@pytest.mark.parametrize(
    "layer", [fp.mixup(p=1.0), fp.cutmix(p=1.0), fp.copy_paste(p=1.0, source="other")]
)
def test_the_photo_of_a_layer_is_blamed_and_its_sample_replaced(broken: Dataset, layer: Any):
    """Every sample whose partner is one of the two broken ones, and these themselves."""
    pipeline = fp.pipe(fp.letterbox(16), layer)
    outlined = broken.targets.replace(rings=corners(broken.targets.boxes))
    broken = replace(broken, targets=outlined)  # without outlines there would be nothing to paste
    with pytest.raises(
        DataError, match=r"sample \d \(.*\), reading .*/[36]\.png: .*\nto see it ag"
    ):
        list(load(broken, pipeline=pipeline))
    loader = load(broken, pipeline=pipeline, on_error="replace", seed=1)
    assert sum(len(batch) for batch in loader) == 10
    assert {3, 6} <= {failed.sample for failed in loader.replaced}


def test_a_stage_that_could_not_stand_last_is_not_blamed(data: Dataset, tmp_path: Path):
    """Photos of any size are mixed before they are letterboxed together; one cannot be read."""
    root, sizes = shutil.copytree(data.root, tmp_path / "unlike"), data.sizes.clone()
    (root / "4.png").write_bytes(b"")
    sizes[4] = 9
    unlike = replace(data, root=root, sizes=sizes)
    pipeline = fp.pipe(fp.mixup(p=1.0), fp.letterbox(8))
    with pytest.raises(DataError, match=r"reading .*/4\.png: .*the file is empty\nto see it again"):
        list(load(unlike, pipeline=pipeline))


@pytest.mark.parametrize("wrong", [None, torch.zeros(3, 12, 16), torch.zeros(1, 12, 16).byte()])
def test_what_a_subclass_reads_wrongly_is_told_with_its_sample(data: Dataset, wrong: Any):
    class Odd(Dataset):
        def read(self, index: int) -> Any:
            return wrong if index == 7 else super().read(index)

    odd = Odd(**vars(data))
    with pytest.raises((ArgumentError, LoaderError), match=r"sample 7 \(.*\), reading .*/7\.png: "):
        list(load(odd))
    loader = load(odd, on_error="replace")
    assert sum(len(batch) for batch in loader) == 10
    assert [failed.sample for failed in loader.replaced] == [7]


def test_ten_replacements_that_fail_are_enough(broken: Dataset):
    for i in range(10):
        (broken.root / f"{i}.png").write_bytes(b"")
    job = Job(broken, PLAIN, Epochs(10, 5, 0), "finished", "eager")
    with pytest.raises(DataError, match=r"reading .*2\.png: .*; samples \[.*\] in its place fail"):
        replace_failing(job, Address(0, 0), torch.tensor([2]))


def test_an_unknown_policy_is_refused(data: Dataset):
    with pytest.raises(ArgumentError, match=r"^on_error wanted one of raise, replace, came 'skip'"):
        load(data, on_error="skip")
