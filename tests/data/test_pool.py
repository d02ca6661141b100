"""Pools: the same bytes as decoding anew, whatever the kind, and never of another photo."""

import contextlib
import json
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import fnpipe as fp
from fnpipe.data.bill import bill
from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import Dataset
from fnpipe.data.prepare import prepare
from fnpipe.types import ArgumentError, DataError


@pytest.mark.parametrize("kind", ["ram", "disk", "device"])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_holds_what_is_decoded(
    write_photos, make_pool, tmp_path: Path, kind, workers, assert_holds
):
    data = write_photos(40)
    made = make_pool(data, kind, workers=workers, folder=tmp_path / "pools")
    assert_holds(made, data)
    assert made.kind == kind
    assert made.data is data
    assert made.bytes == sum(4 * (2 + (w + 2) * (h + 2)) for w, h in data.sizes.tolist())
    made.verify()


def test_real_photos(shared_data: Path, make_pool, assert_holds):
    coco = shared_data / "coco"
    train = read_coco(coco / "annotations" / "instances_train2017.json", coco / "train2017")
    tiles = fp.read_yolo(
        shared_data / "dota8" / "dota8.yaml", root=shared_data / "dota8", task="obb"
    )
    for data in (train.subset(range(0, 128, 4)), tiles):
        assert_holds(make_pool(data, workers=2), data)


def test_a_pool_shows_itself_in_one_line(write_photos, make_pool):
    made = make_pool(write_photos())
    assert repr(made) == f"<Pool, {made.kind!r}: {made.bytes / 1e6:.1f} MB of {made.data!r}>"
    assert "\n" not in repr(made)


def test_gathering_copies_nothing(write_photos, make_pool):
    data = write_photos()
    made = make_pool(data)
    plan = fp.pipe(fp.mosaic(32)).draw(fp.key(seed=0, epoch=0, sample=torch.arange(6)), data)
    sources, same = made.gather(plan)
    assert same is plan
    assert sources is made.sources


def test_a_file_listed_twice_is_one_entry(write_photos, make_pool, decoded, assert_holds):
    data = write_photos(3).subset([2, 0, 2, 1, 0])
    made = make_pool(data)
    assert decoded == ["2.png", "0.png", "1.png"]
    assert_holds(made, data)
    assert made.sources.offsets[0] == made.sources.offsets[2]
    assert bill(data).files == 3
    assert bill(data).bytes == made.bytes == make_pool(write_photos(3)).bytes


def test_a_prefix_is_held_and_the_rest_decoded_when_needed(write_photos, make_pool, decoded):
    data = write_photos(8)
    whole = make_pool(data).bytes
    made = make_pool(data, limit=whole // 2, overflow="prefix")
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("share", "alone"), [(0.9, {False}), (0.2, {False, True})])
def test_a_device_that_holds_a_part_is_sent_the_rest(
    write_photos, make_pool, share: float, alone: set[bool], workers: int
):
    """Windows of what it lacks, into the room it keeps; where they do not fit, of all."""
    data = write_photos(24)
    whole = make_pool(data, "device")
    made = make_pool(data, "device", limit=int(share * whole.bytes), overflow="prefix")
    assert made.bytes <= share * whole.bytes
    assert made.rest is not None
    assert made.held is not None
    assert 0 < int(made.held.sum()) < 24
    train = fp.pipe(fp.mosaic(24), fp.affine(degrees=9.0, scale=0.5), fp.flip(horizontal=0.5))
    options = {"batch_size": 2, "seed": 3, "backend": "eager", "worker_backend": "eager"}
    options |= {"cut": "plan", "workers": workers, "start_method": "fork"}
    part, all_of_it = (fp.Loader(data, train, pool=p, **options) for p in (made, whole))  # type: ignore
    for _ in range(2):
        for ours, theirs in zip(part, all_of_it, strict=True):
            assert torch.equal(ours.images, theirs.images)
            assert torch.equal(ours.boxes, theirs.boxes)
    plans = [train.draw(fp.key(seed=3, epoch=0, sample=torch.tensor([i])), data) for i in range(24)]
    assert {made.rest.measure(plan)[2] for plan in plans} == alone
    made.verify()
    with pytest.raises(ArgumentError, match="a pool on a device cannot be sent"):
        pickle.dumps(made)


def test_prepared_photos_are_those_that_are_prepared_on_the_fly(
    write_photos, make_pool, assert_holds
):
    data = write_photos(5)
    made = make_pool(data, longest=13)
    assert made.data.sizes.amax(1).tolist() == [13] * 5
    assert_holds(made, prepare(data, longest=13))
    assert made.data.targets.boxes[0].tolist() != data.targets.boxes[0].tolist()
    assert make_pool(data).bytes > made.bytes  # and is a file of its own
    train = fp.pipe(fp.mosaic(24), fp.affine(scale=0.5), fp.flip(horizontal=0.5))
    cached = fp.make_batch(made.data, train, range(5), seed=1, pool=made)
    plain = fp.make_batch(prepare(data, longest=13), train, range(5), seed=1)
    assert torch.equal(cached.images, plain.images)
    assert torch.equal(cached.boxes, plain.boxes)


def test_unreadable_photos_are_named_once_or_dropped_as_readers_do(
    write_photos, make_pool, assert_holds
):
    data = write_photos(6)
    for name in ("1.png", "4.png"):
        path = data.root / name
        path.write_bytes(path.read_bytes()[:300])
    for _ in range(2):
        with pytest.raises(DataError) as error:
            make_pool(data)
        first, *rest = str(error.value).splitlines()
        assert first == "2 photos cannot be read:"
        assert [line.split(":")[0] for line in rest] == [
            str(data.root / f"{i}.png") for i in (1, 4)
        ]
    made = make_pool(data, unreadable="drop")
    scanned = read_coco(data.root / "coco.json", data.root, scan="decode")
    assert made.data.fingerprint() == scanned.fingerprint()
    assert made.data.report.counts["photo dropped"] == 2
    assert made.data.report.lines[-1].startswith(f"photo dropped: {data.root / '4.png'}: ")
    assert_holds(made, scanned)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_case_7_and_10_one_policy_from_scan_to_training(
    tmp_path: Path, save_photo, load_coco, make_pool, capfd, suffix: str
):
    """A photo cut short and an empty one: found at scan, else when a pool is built, else read."""
    names = [f"{i}.{suffix}" for i in range(4)]
    for name in names:
        save_photo(tmp_path / name, 64, 48)
    images = [
        {"id": i, "file_name": name, "width": 64, "height": 48} for i, name in enumerate(names)
    ]
    before = load_coco(images=images)
    whole = (tmp_path / names[1]).read_bytes()
    (tmp_path / names[1]).write_bytes(whole[: len(whole) * 6 // 10])
    (tmp_path / names[2]).write_bytes(b"")
    scanned = load_coco(images=images)
    assert scanned.report.counts == {"photo dropped": 2}
    made = make_pool(before, unreadable="drop")
    assert made.data.fingerprint() == scanned.fingerprint()
    assert made.data.report == scanned.report
    train = fp.pipe(fp.letterbox(16))
    for pool in (made, None):
        batches = fp.Loader(scanned, train, batch_size=1, seed=0, worker_backend="eager", pool=pool)
        for _ in range(2):
            assert sorted(i for batch in batches for i in batch.ids.tolist()) == [0, 1]
    message = rf"1\.{suffix}: .*[tT]runcated"
    for fail in (
        lambda: load_coco(images=images, unreadable="raise"),
        lambda: make_pool(before, longest=32),
        lambda: fp.make_batch(before, train, [1], seed=0),
    ):
        with pytest.raises(DataError, match=message):
            fail()
    assert capfd.readouterr().err == ""


def test_every_odd_file_goes_through_a_pool(shared_data: Path, load_coco, make_pool, assert_holds):
    """What cannot be read is left out by the scan, or by the build; all else is as it is read."""
    odd = shared_data / "odd"
    names = sorted(str(path.relative_to(odd)) for path in odd.rglob("*") if path.suffix != ".tsv")
    text = {"images": [{"id": i, "file_name": name} for i, name in enumerate(names)]}
    annotations = load_coco().root / "odd.json"
    annotations.write_text(json.dumps({**text, "annotations": [], "categories": []}))
    data = read_coco(annotations, odd)
    made = make_pool(data, unreadable="drop", workers=2)
    assert 240 < len(made.data) < len(data) < len(names)
    assert_holds(made, made.data)


def test_a_photo_that_is_repaired_is_taken_up(write_photos, make_pool, decoded, assert_holds):
    data = write_photos(4)
    whole = (data.root / "2.png").read_bytes()
    (data.root / "2.png").unlink()
    with pytest.raises(DataError, match=r"2\.png: No such file"):
        make_pool(data)
    (data.root / "2.png").write_bytes(whole)
    decoded.clear()
    assert_holds(make_pool(data), data)
    assert decoded[0] == "2.png"
    assert len(decoded) == 1 + 4  # the comparison reads all


@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_a_photo_that_could_not_be_read_once_is_taken_up(
    write_photos, make_pool, monkeypatch, decoded, assert_holds, policy: str
):
    """As where a network was down for a moment: its file stays what it was."""
    data = write_photos(4)
    with monkeypatch.context() as patch:

        def fail(self, index, **known):
            if index == 2:
                raise DataError("Input/output error")
            return read(self, index, **known)

        read = Dataset.read_packed
        patch.setattr(Dataset, "read_packed", fail)
        with contextlib.suppress(DataError):
            assert len(make_pool(data, unreadable=policy).data) == 3
    decoded.clear()
    made = make_pool(data, unreadable=policy)
    assert set(decoded) == {"2.png"}
    assert_holds(made, data)


def test_a_photo_of_another_size_than_the_data_set_says_is_refused(write_photos, make_pool):
    data = write_photos(3)
    Image.new("RGB", (7, 9)).save(data.root / "1.png")
    with pytest.raises(DataError) as error:
        make_pool(data)
    assert str(error.value) == (
        f"{data.root / '1.png'}: 7 x 9 pixels, the data set says 29 x 21; read the data set anew"
    )


def test_a_photo_beyond_a_prefix_that_has_another_size_is_refused(write_photos, make_pool):
    data = write_photos(3)
    made = make_pool(data, limit=8000, overflow="prefix")
    assert made.held.tolist() == [True, True, False]
    Image.new("RGB", (7, 9)).save(data.root / "2.png")
    with pytest.raises(DataError, match="7 x 9 pixels, the data set says 28 x 22; read the data"):
        fp.make_batch(data, fp.pipe(fp.crop(8)), [1, 2], seed=0, pool=made)


def test_case_98_a_photo_of_equal_size_and_mtime_is_served_anew(
    write_photos, make_pool, assert_holds, words_of
):
    data = write_photos(4)
    path = data.root / "2.png"
    codes = np.zeros((*data.sizes[2].tolist()[::-1], 3), np.uint8)
    Image.fromarray(codes).save(path, format="bmp")
    before, old = path.stat(), make_pool(data)
    Image.fromarray(codes + 200).save(path, format="bmp")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(DataError) as error:
        old.verify()
    assert str(error.value) == f"1 faults in a pool:\n{path}: its contents changed"
    new = make_pool(data)
    new.verify()
    assert_holds(new, data)
    assert not torch.equal(words_of(new, 2), words_of(old, 2))


def test_case_98_labels_names_shapes_and_task_are_those_of_the_data_set(write_photos, make_pool):
    """A pool holds no label, so it cannot serve an old one."""
    data = write_photos(3)
    path = data.root / "coco.json"
    text, before = path.read_text(), path.stat()
    make_pool(data)
    for edit, task in [
        (text.replace('"bbox": [2', '"bbox": [4'), "detect"),
        (text.replace('"thing"', '"other"'), "detect"),
        (text.replace('"name": "thing"', '"name": "thing", "keypoints": ["a"]'), "pose"),
        (text, "obb"),
    ]:
        path.write_text(edit)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        edited = read_coco(path, data.root, task=task)
        assert edited.fingerprint() != data.fingerprint()
        assert make_pool(edited).data.fingerprint() == edited.fingerprint()
        small = prepare(edited, longest=10)
        assert make_pool(edited, longest=10).data.fingerprint() == small.fingerprint()


def test_rebuilding_decodes_all_and_leaves_the_old_one_as_it_is(
    write_photos, make_pool, decoded, assert_holds, words_of
):
    made = make_pool(write_photos(3))
    old = words_of(made, 1).clone()
    Image.new("RGB", tuple(made.data.sizes[1].tolist())).save(made.data.root / "1.png")
    decoded.clear()
    new = made.rebuild()
    assert decoded == ["0.png", "1.png", "2.png"]
    assert_holds(new, made.data)
    assert torch.equal(words_of(made, 1), old)


@dataclass(frozen=True, eq=False)
class Shifted(Dataset):
    """Codes plus a number."""

    by: int = 1

    def read(self, index: int) -> Tensor:
        return super().read(index) + self.by


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_what_a_subclass_reads_has_a_file_of_its_own(write_photos, make_pool, assert_holds, kind):
    data = write_photos()
    every = data, Shifted(**vars(data)), Shifted(**vars(data), by=2)
    pools = [make_pool(each, kind) for each in every]
    for made, each in zip(pools, every, strict=True):
        assert_holds(made, each)


def test_a_pool_of_other_photos_is_refused(write_photos, make_pool, tmp_path: Path):
    """Also where theirs are as many, in the same sizes: frames of a film, or another order."""
    data = write_photos(16)
    other = write_photos(16, folder="others", seed=1)
    moved = data.subset([15, *range(1, 15), 0])  # the fifteenth after it is as large
    assert torch.equal(moved.sizes, data.sizes)
    message = r"pool holds 16 photos that are not data's 16, .*: pass pool\.data as data"
    made, train = make_pool(data), fp.pipe(fp.crop(8))
    for wrong in (other, moved, Shifted(**vars(data))):
        with pytest.raises(ArgumentError, match=message):
            fp.Loader(wrong, train, batch_size=2, seed=0, pool=made)
        with pytest.raises(ArgumentError, match=message):
            fp.make_batch(wrong, train, [0], seed=0, pool=made)
    (tmp_path / "link").symlink_to(data.root)
    linked = read_coco(tmp_path / "link" / "coco.json", tmp_path / "link")
    above = read_coco_from_above(data, tmp_path)
    for same in (read_coco(data.root / "coco.json", data.root), linked, above):
        batch = fp.make_batch(same, train, range(16), seed=0, pool=made)
        assert torch.equal(batch.images, fp.make_batch(data, train, range(16), seed=0).images)


def read_coco_from_above(data: Dataset, root: Path) -> Dataset:
    """The same photos, their folder in their names."""
    content = json.loads((data.root / "coco.json").read_text())
    for image in content["images"]:
        image["file_name"] = f"{data.root.name}/{image['file_name']}"
    (root / "above.json").write_text(json.dumps(content))
    return read_coco(root / "above.json", root)


def test_an_empty_data_set_makes_an_empty_pool(write_photos, make_pool):
    data = write_photos(2).subset([])
    for kind in ("ram", "device"):
        assert len(make_pool(data, kind).sources) == 0


def test_case_9_and_13_photos_stay_as_they_are_whatever_their_names(
    tmp_path: Path, make_pool, write_photos, assert_holds
):
    root = tmp_path / "données" / "집 1"
    shutil.copytree(write_photos(2).root, root)
    (root / "0.png").rename(root / "写真 é.png")
    (root / "1.png").rename(root / "e\u0301.png")
    text = (root / "coco.json").read_text()
    text = text.replace("0.png", "写真 é.png").replace("1.png", "e\\u0301.png")
    (root / "coco.json").write_text(text)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.iterdir()}
    root.chmod(0o500)
    data = read_coco(root / "coco.json", root)
    made = make_pool(data)
    for _ in range(2):
        fp.make_batch(data, fp.pipe(fp.mosaic(16)), [0, 1], seed=0, pool=made)
    assert_holds(made, data)
    root.chmod(0o700)
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.iterdir()}


def test_case_3_grey_and_colour_meet_in_a_mosaic(tmp_path: Path, load_coco, make_pool):
    """Three channels are a constant, whichever tile comes first."""
    kinds = {"grey.png": "L", "colour.jpg": "RGB", "two.png": "LA", "alpha.png": "RGBA"}
    for i, (name, mode) in enumerate(kinds.items()):
        Image.new("RGB", (20, 20), (60 * i, 60 * i, 60 * i)).convert(mode).save(tmp_path / name)
    for order in (list(kinds), list(kinds)[::-1]):
        images = [{"id": i + 1, "file_name": name} for i, name in enumerate(order)]
        data = load_coco(images=images)
        assert all(data.read(i).shape == (3, 20, 20) for i in range(4))
        train = fp.pipe(fp.mosaic(32))
        cached = fp.make_batch(data, train, range(4), seed=0, pool=make_pool(data))
        plain = fp.make_batch(data, train, range(4), seed=0)
        assert cached.images.shape == (4, 3, 32, 32)
        assert torch.equal(cached.images, plain.images)
        assert torch.equal(cached.images[:, 0], cached.images[:, 1])


@pytest.mark.parametrize("size", [(9000, 6), (6, 9000), (1, 1), (1, 500)])
def test_case_12_a_long_photo_goes_through_every_stage(tmp_path: Path, load_coco, make_pool, size):
    Image.new("RGB", size, (250, 10, 90)).save(tmp_path / "long.png")
    data = load_coco(images=[{"id": 1, "file_name": "long.png"}])
    hsv, flip = fp.hsv(hue=0.1, saturation=0.5, value=0.5), fp.flip(horizontal=0.5, vertical=0.5)
    for first in (fp.letterbox(640), fp.mosaic(640), fp.resize(640)):
        train = fp.pipe(
            first, fp.affine(degrees=10.0, scale=0.5), hsv, flip, fp.finish(torch.float32)
        )
        plain = fp.make_batch(data, train, [0], seed=0)
        assert plain.images.shape == (1, 3, 640, 640)
        assert bool(plain.images.isfinite().all())
        assert torch.equal(
            fp.make_batch(data, train, [0], seed=0, pool=make_pool(data)).images, plain.images
        )
    assert min(prepare(data, longest=640).sizes[0].tolist()) == 1
