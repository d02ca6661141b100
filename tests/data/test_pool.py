"""Pools: the same bytes as decoding anew, fresh or refused, one copy a host, whatever is killed."""

import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fnpipe as fp
from fnpipe.data import pool_build, pool_file, pool_order
from fnpipe.data.bill import bill
from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import Dataset, pack_names
from fnpipe.data.pool import Pool, pool
from fnpipe.data.prepare import prepare
from fnpipe.ops.warp import pack
from fnpipe.types import ArgumentError, DataError, Sources, Targets


Make = Callable[..., Dataset]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A data set of noise in PNG files of several sizes, a box in each."""

    def write(count: int = 6, *, folder: str = "photos", seed: int = 0) -> Dataset:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        generator = np.random.default_rng(seed)
        images, boxes = [], []
        for i in range(count):
            codes = generator.integers(0, 256, (20 + i % 3, 30 - i % 5, 3), dtype=np.uint8)
            Image.fromarray(codes).save(root / f"{i}.png")
            images.append({"id": i, "file_name": f"{i}.png"})
            boxes.append({"id": i, "image_id": i, "category_id": 1, "bbox": [2, 3, 10, 12]})
        categories = [{"id": 1, "name": "thing"}]
        content = {"images": images, "annotations": boxes, "categories": categories}
        (root / "coco.json").write_text(json.dumps(content))
        return read_coco(root / "coco.json", root)

    return write


@pytest.fixture
def keep(tmp_path: Path) -> Callable[..., Pool]:
    """A pool below the test's own folder, without processes and progress unless asked for."""

    def make(data: Dataset, kind: str = "disk", **options: object) -> Pool:
        options = {"device": "cpu", "folder": tmp_path / "pools", **options}
        return pool(data, kind, **{"workers": 0, "progress": False, **options})  # type: ignore

    return make


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the photos that are decoded from now on, in this process."""
    names: list[str] = []
    read = Dataset.read

    def counting(self: Dataset, index: int) -> torch.Tensor:
        names.append(self.path(index).name)
        return read(self, index)

    monkeypatch.setattr(Dataset, "read", counting)
    return names


def words(made: Pool, photo: int) -> torch.Tensor:
    """All that a pool has of a photo, fill and border and all."""
    start = int(made.sources.offsets[photo]) - 2
    width, height = made.sources.sizes[photo].tolist()
    return made.sources.words[start : start + 2 + (width + 2) * (height + 2)]


def assert_holds(made: Pool, data: Dataset) -> None:
    """Every photo of ``data`` is in the pool as it is in its file."""
    assert len(made.sources) == len(data)
    for photo in range(len(data)):
        assert torch.equal(words(made, photo), pack(data.read(photo))), photo


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "pools").rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["ram", "disk", "device"])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_holds_what_is_decoded(make: Make, keep, tmp_path: Path, kind, workers):
    data = make(40)
    made = keep(data, kind, workers=workers, folder=tmp_path / "pools")
    assert_holds(made, data)
    assert made.kind == kind
    assert made.data is data
    assert made.bytes == sum(4 * (2 + (w + 2) * (h + 2)) for w, h in data.sizes.tolist())
    made.verify()


def test_real_photos(shared_data: Path, keep):
    coco = shared_data / "coco"
    train = read_coco(coco / "annotations" / "instances_train2017.json", coco / "train2017")
    tiles = fp.read_yolo(shared_data / "dota8" / "dota8.yaml", task="obb")
    for data in (train.subset(range(0, 128, 4)), tiles):
        assert_holds(keep(data, workers=2), data)


def test_gathering_copies_nothing(make: Make, keep):
    data = make()
    made = keep(data)
    plan = fp.pipe(fp.mosaic(32)).draw(fp.key(seed=0, epoch=0, sample=torch.arange(6)), data)
    sources, same = made.gather(plan)
    assert same is plan
    assert sources is made.sources


def test_a_file_listed_twice_is_one_entry(make: Make, keep, decoded: list[str]):
    data = make(3).subset([2, 0, 2, 1, 0])
    made = keep(data)
    assert decoded == ["2.png", "0.png", "1.png"]
    assert_holds(made, data)
    assert made.sources.offsets[0] == made.sources.offsets[2]
    assert bill(data).files == 3
    assert bill(data).bytes == made.bytes == keep(make(3)).bytes


def test_a_prefix_is_held_and_the_rest_decoded_when_needed(make: Make, keep, decoded: list[str]):
    data = make(8)
    whole = keep(data).bytes
    made = keep(data, limit=whole // 2, overflow="prefix")
    assert made.held is not None
    assert made.held.tolist() == [True] * 4 + [False] * 4
    assert made.bytes <= whole // 2
    decoded.clear()
    train = fp.pipe(fp.letterbox(32))
    for ids, needed in [([0, 3, 1], []), ([0, 5, 3, 5, 7], ["5.png", "7.png"])]:
        batch = fp.make_batch(data, train, ids, seed=0, pool=made)
        assert decoded == needed
        assert torch.equal(batch.images, fp.make_batch(data, train, ids, seed=0).images)
        decoded.clear()


def test_what_does_not_fit_is_refused_with_the_numbers(make: Make, keep, monkeypatch):
    data = make(8)
    whole = keep(data).bytes
    with pytest.raises(ArgumentError) as error:
        keep(data, "ram", limit=whole - 1)
    assert str(error.value) == (
        f"a pool of 8 photos takes {whole:,} bytes, limit is {whole - 1:,}; shrink them by "
        "longest=, or hold the first 7 by overflow='prefix'"
    )
    with pytest.raises(ArgumentError, match="hold the first 0"):
        keep(data, limit=10, overflow="prefix")
    monkeypatch.setattr(pool_order, "free_bytes", lambda *_, **__: 1000)
    with pytest.raises(ArgumentError) as error:
        keep(data, "ram")
    assert f"takes {whole:,} bytes ({whole:,} bytes), " in str(error.value)
    assert "fnpipe-" in str(error.value)
    assert "has 1,000 free; shrink them by longest=" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ramdisk"}, "kind: wanted one of ram, disk, device; got 'ramdisk'"),
        ({"overflow": "prefix"}, "overflow='prefix' needs a limit"),
        ({"overflow": "prefix", "limit": 9, "kind": "device"}, "and a kind that workers can see"),
        ({"overflow": "drop"}, "overflow: wanted one of raise, prefix; got 'drop'"),
        ({"unreadable": "skip"}, "unreadable: wanted one of raise, drop; got 'skip'"),
        ({"longest": 0}, "longest wanted at least 1 pixel, came 0"),
    ],
)
def test_options_are_checked(make: Make, keep, options: dict, message: str):
    with pytest.raises(ArgumentError) as error:
        keep(make(1), **options)
    assert message in str(error.value)


def test_prepared_photos_are_those_that_are_prepared_on_the_fly(make: Make, keep):
    data = make(5)
    made = keep(data, longest=13)
    assert made.data.sizes.amax(1).tolist() == [13] * 5
    assert_holds(made, prepare(data, longest=13))
    assert made.data.targets.boxes[0].tolist() != data.targets.boxes[0].tolist()
    assert keep(data).bytes > made.bytes  # and is a file of its own
    train = fp.pipe(fp.mosaic(24), fp.affine(scale=0.5), fp.flip(horizontal=0.5))
    cached = fp.make_batch(made.data, train, range(5), seed=1, pool=made)
    plain = fp.make_batch(prepare(data, longest=13), train, range(5), seed=1)
    assert torch.equal(cached.images, plain.images)
    assert torch.equal(cached.boxes, plain.boxes)


def test_unreadable_photos_are_named_once_or_dropped_as_readers_do(make: Make, keep, tmp_path):
    data = make(6)
    for name in ("1.png", "4.png"):
        path = data.root / name
        path.write_bytes(path.read_bytes()[:300])
    for _ in range(2):
        with pytest.raises(DataError) as error:
            keep(data)
        first, *rest = str(error.value).splitlines()
        assert first == "2 photos cannot be read:"
        assert [line.split(":")[0] for line in rest] == [str(data.root / f"{i}.png") for i in (1, 4)]
    made = keep(data, unreadable="drop")
    scanned = read_coco(data.root / "coco.json", data.root, scan="decode")
    assert made.data.fingerprint() == scanned.fingerprint()
    assert made.data.report.counts["photo dropped"] == 2
    assert made.data.report.lines[-1].startswith(f"photo dropped: {data.root / '4.png'}: ")
    assert_holds(made, scanned)


def test_a_photo_that_is_repaired_is_taken_up(make: Make, keep, decoded: list[str]):
    data = make(4)
    whole = (data.root / "2.png").read_bytes()
    (data.root / "2.png").unlink()
    with pytest.raises(DataError, match=r"2\.png: No such file"):
        keep(data)
    (data.root / "2.png").write_bytes(whole)
    decoded.clear()
    assert_holds(keep(data), data)
    assert decoded[0] == "2.png"
    assert len(decoded) == 1 + 4  # the comparison reads all


def test_a_photo_of_another_size_than_the_data_set_says_is_refused(make: Make, keep):
    data = make(3)
    Image.new("RGB", (7, 9)).save(data.root / "1.png")
    with pytest.raises(DataError) as error:
        keep(data)
    assert str(error.value) == (
        f"{data.root / '1.png'}: 7 x 9 pixels, the data set says 29 x 21; read the data set anew"
    )


def test_a_ready_pool_decodes_nothing(make: Make, keep, decoded: list[str], tmp_path: Path):
    data = make()
    first = keep(data)
    assert len(decoded) == 6
    again = keep(data)
    assert len(decoded) == 6
    assert torch.equal(first.sources.words, again.sources.words)
    assert len(files(tmp_path)) == 1


def test_only_what_changed_is_decoded_anew(make: Make, keep, decoded: list[str], tmp_path: Path):
    data = make()
    keep(data)
    decoded.clear()
    for i in range(6):
        os.utime(data.root / f"{i}.png")
    keep(data)
    assert decoded == []  # their contents are the same
    Image.new("RGB", tuple(data.sizes[3].tolist())).save(data.root / "3.png")
    made = keep(data)
    assert decoded == ["3.png"]
    assert_holds(made, data)
    assert len(files(tmp_path)) == 1


def test_case_98_an_edit_is_served_even_if_size_and_mtime_are_the_same(make: Make, keep):
    data = make(4)
    old = keep(data)
    path = data.root / "2.png"
    before = path.stat()
    codes = bytearray(path.read_bytes())
    place = codes.index(b"IDAT") - 4
    length = int.from_bytes(codes[place : place + 4], "big")
    other = bytearray(codes)
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    swapped = path.read_bytes()
    padding = len(other) - len(swapped)
    assert length and padding >= -200
    if padding < 0:  # make room by writing the first again, padded
        other += bytes(-padding)
    path.write_bytes(bytes(other))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    old = keep(data)
    assert_holds(old, data)
    path.write_bytes(swapped + bytes(len(other) - len(swapped)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == len(other)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    new = keep(data)
    assert_holds(new, data)
    assert not torch.equal(words(new, 2), words(old, 2))
    with pytest.raises(DataError, match=r"1 faults in a pool:\n.*2\.png: its contents changed"):
        old.verify()
