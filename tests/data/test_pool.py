"""Pools: the same bytes as decoding anew, fresh or refused, one copy a host, whatever is killed."""

import faulthandler
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
from fnpipe.__main__ import main
from fnpipe.data import pool as pool_module
from fnpipe.data import pool_build, pool_file, pool_order
from fnpipe.data.bill import bill
from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import Dataset, pack_names
from fnpipe.data.pool import Pool, pool
from fnpipe.data.prepare import prepare
from fnpipe.ops.warp import pack
from fnpipe.types import ArgumentError, DataError, Targets


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
    tiles = fp.read_yolo(
        shared_data / "dota8" / "dota8.yaml", root=shared_data / "dota8", task="obb"
    )
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
        assert [line.split(":")[0] for line in rest] == [
            str(data.root / f"{i}.png") for i in (1, 4)
        ]
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


def test_case_98_a_photo_of_equal_size_and_mtime_is_served_anew(make: Make, keep):
    data = make(4)
    path = data.root / "2.png"
    codes = np.zeros((*data.sizes[2].tolist()[::-1], 3), np.uint8)
    Image.fromarray(codes).save(path, format="bmp")
    before, old = path.stat(), keep(data)
    Image.fromarray(codes + 200).save(path, format="bmp")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(DataError) as error:
        old.verify()
    assert str(error.value) == f"1 faults in a pool:\n{path}: its contents changed"
    new = keep(data)
    new.verify()
    assert_holds(new, data)
    assert not torch.equal(words(new, 2), words(old, 2))


def test_case_98_labels_names_shapes_and_task_are_those_of_the_data_set(make: Make, keep):
    """A pool holds no label, so it cannot serve an old one."""
    data = make(3)
    path = data.root / "coco.json"
    text, before = path.read_text(), path.stat()
    keep(data)
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
        assert keep(edited).data.fingerprint() == edited.fingerprint()
        small = prepare(edited, longest=10)
        assert keep(edited, longest=10).data.fingerprint() == small.fingerprint()


def test_rebuilding_decodes_all_and_leaves_the_old_one_as_it_is(make: Make, keep, decoded):
    made = keep(make(3))
    old = words(made, 1).clone()
    Image.new("RGB", tuple(made.data.sizes[1].tolist())).save(made.data.root / "1.png")
    decoded.clear()
    new = made.rebuild()
    assert decoded == ["0.png", "1.png", "2.png"]
    assert_holds(new, made.data)
    assert torch.equal(words(made, 1), old)


@pytest.mark.parametrize(
    ("place", "replacement", "message"),
    [
        (0, b"P", "not a pool file"),
        (8, b"\x09", "version 9, this is fnpipe of version 1"),
        (12, b"\xff\xff", "cut short"),
        (70, b"\x63", "its seal is not that of its rows; it was not finished"),
        (24, bytes(8), "its photos were decoded by another version of Pillow"),
        (32, bytes(32), "its seal is not that of its rows; it was not finished"),
        (-4, None, "bytes, its rows say otherwise"),
        (100, None, "not a pool file"),
    ],
)
def test_a_broken_file_is_named_and_replaced(make, keep, tmp_path, place, replacement, message):
    data = make(3)
    path = keep(data).file.path
    content = bytearray(path.read_bytes())
    if replacement is None:
        del content[place:]
    else:
        content[place : place + len(replacement)] = replacement
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        pool_file.load(path)
    assert_holds(keep(data), data)
    assert files(tmp_path) == [path.name]


def test_verifying_finds_a_pixel_that_changed(make: Make, keep):
    made = keep(make(3))
    with open(made.file.path, "r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"!")
    with pytest.raises(DataError) as error:
        made.verify()
    assert str(error.value) == (
        f"1 faults in a pool:\n{made.data.root / '2.png'}: its pixels in {made.file.path} changed"
    )
    made.rebuild().verify()


def test_an_interrupted_build_is_taken_up(make: Make, keep, decoded, tmp_path, monkeypatch):
    data = make(6)
    fill = pool_build._fill

    def stumble(part, descriptor, index, *rest):
        if index == 4:
            raise KeyboardInterrupt
        fill(part, descriptor, index, *rest)

    monkeypatch.setattr(pool_build, "_fill", stumble)
    for kind, left in [("ram", 0), ("disk", 1)]:
        with pytest.raises(KeyboardInterrupt):
            keep(data, kind)
        assert [name.endswith(".part") for name in files(tmp_path)] == [True] * left
    monkeypatch.setattr(pool_build, "_fill", fill)
    Image.new("RGB", tuple(data.sizes[0].tolist())).save(data.root / "0.png")  # changed meanwhile
    decoded.clear()
    made = keep(data)
    assert decoded == ["0.png", "4.png", "5.png"]
    assert_holds(made, data)
    assert len(files(tmp_path)) == 1


def test_entries_whose_words_did_not_reach_the_disk_are_done_again(make, keep, decoded):
    data = make(4)
    path = keep(data).file.path
    with open(path, "r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(bytes(40))
    path.rename(path.with_name(f".{path.name}.1-0.part"))
    decoded.clear()
    assert_holds(keep(data), data)
    assert decoded[0] == "3.png"
    assert len(decoded) == 1 + 4


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_writing_to_a_pool_ends_the_process(make: Make, keep, kind: str):
    """Not by an exception: the memory is mapped for reading, and torch knows no such tensors."""
    made = keep(make(2), kind)
    before = digest(made)

    def write() -> None:
        faulthandler.disable()  # pytest's, which would tell of it at length
        made.sources.words.zero_()

    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGSEGV
    assert digest(made) == before


def digest(made: Pool) -> str:
    return sha256(made.sources.words.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_it_goes_to_workers_by_its_name(make: Make, keep, kind: str, method: str):
    data = make(12)
    made = keep(data, kind)
    assert len(pickle.dumps(made)) < 20_000 < made.bytes
    train = fp.pipe(fp.mosaic(24), fp.affine(scale=0.5), fp.hsv(hue=0.1), fp.flip(horizontal=0.5))
    options = {"batch_size": 5, "seed": 3, "worker_backend": "eager"}
    workers = {"workers": 2 if method == "fork" else 1, "start_method": method}
    cached = fp.Loader(data, train, **options, **workers, pool=made)  # type: ignore
    plain = fp.Loader(data, train, **options)  # type: ignore
    before = digest(made)
    for _ in range(2):
        for ours, theirs in zip(cached, plain, strict=True):
            assert torch.equal(ours.images, theirs.images)
            assert torch.equal(ours.boxes, theirs.boxes)
    assert digest(made) == before


def test_a_pool_that_is_gone_or_another_cannot_be_opened(make: Make, keep):
    made = keep(make(2), "ram")
    sent = pickle.dumps(made)
    Image.new("RGB", tuple(made.data.sizes[1].tolist())).save(made.data.root / "1.png")
    other = made.rebuild()
    with pytest.raises(DataError, match="built anew before this process could open it"):
        pickle.loads(sent)
    made.close()
    other.close()
    with pytest.raises(DataError, match="closed before this process could open it"):
        pickle.loads(sent)
    with pytest.raises(ArgumentError, match="a pool on a device cannot be sent"):
        pickle.dumps(keep(make(2), "device"))


def test_memory_is_given_back_with_the_last_that_holds_it(make: Make, keep, tmp_path: Path):
    data = make(3)
    first, second = keep(data, "ram"), keep(data, "ram")
    assert first.file.path == second.file.path
    first.close()
    assert len(files(tmp_path)) == 1
    second.close()
    assert files(tmp_path) == []
    assert_holds(second, data)  # tensors that look into it keep it
    on_device = keep(data, "device", folder=tmp_path / "pools")
    assert_holds(on_device, data)
    assert len(files(tmp_path)) == 1  # on the disk, where the next run finds it


def test_what_a_killed_process_leaves_in_memory_is_swept(make: Make, keep, tmp_path: Path):
    killed = multiprocessing.get_context("fork").Process(
        target=lambda: (keep(make(3), "ram"), os.kill(os.getpid(), signal.SIGKILL))
    )
    killed.start()
    killed.join()
    left = files(tmp_path)
    assert len(left) == 1
    made = keep(make(3, folder="others"), "ram")
    assert files(tmp_path) == [made.file.path.name] != left


def private(pid: int | str) -> int:
    """Bytes of memory that process ``pid`` alone has."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


RANK = """
import sys, torch
from fnpipe.data.coco import read_coco
from fnpipe.data.pool import pool
def private():
    with open("/proc/self/smaps_rollup") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
annotations, images, folder = sys.argv[1:]
data = read_coco(annotations, images)
torch.zeros(2**20, dtype=torch.int32).max()
before = private()
made = pool(data, "ram", folder=folder, progress=False)
made.sources.words.max()
print(made.file.path.name, made.bytes, private() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_case_96_a_second_rank_takes_no_memory_of_its_own(shared_data: Path, tmp_path: Path):
    images, folder = shared_data / "coco" / "train2017", tmp_path / "pools"
    annotations = shared_data / "coco" / "annotations" / "instances_train2017.json"
    first = pool(read_coco(annotations, images), "ram", folder=folder, progress=False)
    first.sources.words.max()
    command = [sys.executable, "-c", RANK, str(annotations), str(images), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, count, grown = done.stdout.split()
    assert name == first.file.path.name
    assert int(count) == first.bytes > 100_000_000
    assert int(grown) < 0.05 * first.bytes
    assert len(files(tmp_path)) == 1


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
@pytest.mark.filterwarnings("ignore:This DataLoader will create 8 worker processes")
def test_case_94_workers_of_a_large_index_keep_their_memory(make: Make, keep):
    """200,000 photos, a box each, of four files: an epoch of plans by eight workers."""
    few, count = make(4), 200_000
    data = few.subset(torch.arange(count) % 4)
    made = keep(data, "device")
    loader = fp.Loader(
        data, fp.pipe(fp.letterbox(8)), batch_size=2000, seed=0, cut="plan", pool=made, workers=8,
        start_method="fork", backend="eager", prefetch=1,
    )  # fmt: skip
    batches = iter(loader)
    for _ in range(8):
        next(batches)
    workers = [child.pid for child in multiprocessing.active_children()]
    before = {pid: private(pid) for pid in workers if pid}
    seen = sum(len(batch) for batch in batches)
    assert seen == count - 8 * 2000
    assert len(before) == 8
    assert max(private(pid) - held for pid, held in before.items()) < 16 * 2**20


BUILDERS, DEATHS = 4, 50


@pytest.mark.parametrize("workers", [0, 2])
def test_four_builders_of_which_one_is_killed(make: Make, keep, tmp_path: Path, workers: int):
    """At a random moment, time and again: one whole file, and everybody else is served."""
    data, context = make(40), multiprocessing.get_context("fork")
    expected = torch.cat([pack(data.read(i)) for i in range(40)])
    dice, deaths = random.Random(0), 0
    start = time.perf_counter()
    keep(data, workers=workers)
    span = time.perf_counter() - start

    def serve() -> None:
        made = keep(data, workers=workers)
        os._exit(0 if torch.equal(made.sources.words, expected) else 1)

    while deaths < DEATHS // 2:
        for path in (tmp_path / "pools").glob("*.pool"):
            path.unlink()
        builders = [context.Process(target=serve) for _ in range(BUILDERS)]
        for builder in builders:
            builder.start()
        time.sleep(dice.uniform(0, span))
        victim = dice.choice(builders)
        victim.kill()
        for builder in builders:
            builder.join()
        deaths += victim.exitcode == -signal.SIGKILL  # else it had ended before
        assert {builder.exitcode for builder in builders if builder != victim} == {0}
        assert torch.equal(keep(data).sources.words, expected)
        assert [name.endswith(".pool") for name in files(tmp_path)] == [True]


def test_ten_thousand_entries_open_in_an_instant(make: Make, keep, monkeypatch):
    one, count = make(1), 10_000
    image = one.read(0)
    monkeypatch.setattr(Dataset, "read", lambda self, index: image)
    names = [f"{i}.png" for i in range(count)]
    for name in names[1:]:
        os.link(one.root / "0.png", one.root / name)
    letters, offsets = pack_names(names)
    data = Dataset(
        root=one.root,
        path_bytes=letters,
        path_offsets=offsets,
        sizes=one.sizes.repeat(count, 1),
        image_ids=torch.arange(count),
        targets=Targets.empty(),
        offsets=torch.zeros(count + 1, dtype=torch.int64),
        names=(),
        categories=(),
    )
    keep(data)
    seconds = []
    for _ in range(3):
        start = time.process_time()  # neighbours on a shared machine do not count
        made = keep(data)
        seconds.append(time.process_time() - start)
    assert len(made.file.rows) == count
    assert min(seconds) < 0.2


def test_case_9_and_13_photos_stay_as_they_are_whatever_their_names(tmp_path: Path, keep, make):
    root = tmp_path / "données" / "집 1"
    shutil.copytree(make(2).root, root)
    (root / "0.png").rename(root / "写真 é.png")
    (root / "1.png").rename(root / "e\u0301.png")
    text = (root / "coco.json").read_text()
    text = text.replace("0.png", "写真 é.png").replace("1.png", "e\\u0301.png")
    (root / "coco.json").write_text(text)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.iterdir()}
    root.chmod(0o500)
    data = read_coco(root / "coco.json", root)
    made = keep(data)
    for _ in range(2):
        fp.make_batch(data, fp.pipe(fp.mosaic(16)), [0, 1], seed=0, pool=made)
    assert_holds(made, data)
    root.chmod(0o700)
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.iterdir()}


def test_case_3_grey_and_colour_meet_in_a_mosaic(tmp_path: Path, load_coco, keep):
    """Three channels are a constant, whichever tile comes first."""
    kinds = {"grey.png": "L", "colour.jpg": "RGB", "two.png": "LA", "alpha.png": "RGBA"}
    for i, (name, mode) in enumerate(kinds.items()):
        Image.new("RGB", (20, 20), (60 * i, 60 * i, 60 * i)).convert(mode).save(tmp_path / name)
    for order in (list(kinds), list(kinds)[::-1]):
        images = [{"id": i + 1, "file_name": name} for i, name in enumerate(order)]
        data = load_coco(images=images)
        assert all(data.read(i).shape == (3, 20, 20) for i in range(4))
        train = fp.pipe(fp.mosaic(32))
        cached = fp.make_batch(data, train, range(4), seed=0, pool=keep(data))
        plain = fp.make_batch(data, train, range(4), seed=0)
        assert cached.images.shape == (4, 3, 32, 32)
        assert torch.equal(cached.images, plain.images)
        assert torch.equal(cached.images[:, 0], cached.images[:, 1])


@pytest.mark.parametrize("size", [(9000, 6), (6, 9000), (1, 1), (1, 500)])
def test_case_12_a_long_photo_goes_through_every_stage(tmp_path: Path, load_coco, keep, size):
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
            fp.make_batch(data, train, [0], seed=0, pool=keep(data)).images, plain.images
        )
    assert min(prepare(data, longest=640).sizes[0].tolist()) == 1


def test_the_bill_is_shown_before_anything_is_made(make: Make, tmp_path: Path):
    data = make(5)
    due = bill(data, folder=tmp_path / "nowhere" / "yet")
    assert not (tmp_path / "nowhere").exists()
    assert due.photos == due.files == 5
    assert due.bytes == sum(4 * (2 + (w + 2) * (h + 2)) for w, h in data.sizes.tolist())
    assert due.rgb_bytes == sum(3 * w * h for w, h in data.sizes.tolist())
    assert 0 < due.seconds < 5
    assert bill(data, longest=10).bytes < due.bytes
    lines = str(due).splitlines()
    assert lines[0] == "5 photos in 5 files"
    assert lines[1] == f"{due.bytes:,} bytes as a pool ({due.rgb_bytes:,} bytes as plain RGB)"
    assert lines[2] == f"about 0 s to build on {due.cores} cores"
    assert [line.split()[0] for line in lines[3:]] == ["ram", "disk", "device"]
    assert all(isinstance(due.free[kind], int) for kind in ("ram", "disk"))


def test_a_bill_says_what_is_short(make: Make):
    due = bill(make(1))
    short = type(due)(1, 1, 5 * 10**9, 4 * 10**9, 61.0, 2, {"ram": 2 * 10**9, "device": None})
    assert str(short).splitlines()[1:] == [
        "5.0 GB as a pool (4.0 GB as plain RGB)",
        "about 61 s to build on 2 cores",
        "  ram     2.0 GB free, 3.0 GB short",
        "  device  not here",
    ]


def test_the_bill_is_a_command(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = make(3).root
    source = ["bill", "--coco", str(root / "coco.json"), "--images", str(root)]
    assert main([*source, "--longest", "10", "--folder", str(tmp_path)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "3 photos in 3 files"
    due = bill(make(3), longest=10)
    assert second == f"{due.bytes:,} bytes as a pool ({due.rgb_bytes:,} bytes as plain RGB)"


def test_an_empty_data_set_makes_an_empty_pool(make: Make, keep):
    data = make(2).subset([])
    for kind in ("ram", "device"):
        assert len(keep(data, kind).sources) == 0


def test_nothing_is_printed_and_no_other_user_is_believed(make, keep, tmp_path, capfd, monkeypatch):
    keep(make(2), "ram")
    assert capfd.readouterr() == ("", "")
    keep(make(2, folder="b"), progress=True)
    assert "photos" in capfd.readouterr().err
    monkeypatch.setattr(pool_order, "user", lambda: 12345)
    (tmp_path / "pools" / "fnpipe-12345").mkdir()
    monkeypatch.setattr(pool_module, "place", lambda *_, **__: tmp_path / "pools" / "fnpipe-12345")
    with pytest.raises(ArgumentError, match="belongs to another user; pass a folder of your own"):
        keep(make(2), "ram")
