"""The file: a broken one is named, a changed one found, a large one opened in an instant."""

import os
import time

import pytest
import torch

from fnpipe.data import pool_file
from fnpipe.data.dataset import Dataset, pack_names
from fnpipe.types import DataError, Targets


@pytest.mark.parametrize(
    ("place", "replacement", "message"),
    [
        (0, b"P", "not a pool file"),
        (8, b"\x09", "version 9, this is fnpipe of version 2"),
        (12, b"\xff\xff", "cut short"),
        (70, b"\x63", "its seal is not that of its rows; it was not finished"),
        (24, bytes(8), "its photos were decoded by another version of Pillow"),
        (32, bytes(32), "its seal is not that of its rows; it was not finished"),
        (-4, None, "bytes, its rows say otherwise"),
        (100, None, "not a pool file"),
        (0, None, "not a pool file"),
    ],
)
def test_a_broken_file_is_named_and_replaced(
    write_photos, make_pool, place, replacement, message, pool_files, assert_holds
):
    data = write_photos(3)
    path = make_pool(data).file.path
    content = bytearray(path.read_bytes())
    if replacement is None:
        del content[place:]
    else:
        content[place : place + len(replacement)] = replacement
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        pool_file.load(path)
    assert_holds(make_pool(data), data)
    assert pool_files() == [path.name]


def test_verifying_finds_a_pixel_that_changed(write_photos, make_pool):
    made = make_pool(write_photos(3))
    with open(made.file.path, "r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"!")
    with pytest.raises(DataError) as error:
        made.verify()
    assert str(error.value) == (
        f"1 faults in a pool:\n{made.data.root / '2.png'}: its pixels in {made.file.path} changed"
    )
    made.rebuild().verify()


def test_a_full_disk_is_told_of_with_its_file(write_photos, make_pool):
    """Pools lie in more than one place: in /dev/shm, and in folders."""
    file = make_pool(write_photos(1)).file
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=rf"No space left on device: '{file.path}'"):
        pool_file.write(full, file, file.rows[0], file.entry(0))
    os.close(full)


def test_ten_thousand_entries_open_in_an_instant(write_photos, make_pool, monkeypatch):
    one, count = write_photos(1), 10_000
    packed = one.read_packed(0)
    monkeypatch.setattr(Dataset, "read_packed", lambda self, index, **known: packed)
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
    make_pool(data)
    seconds = []
    for _ in range(3):
        start = time.process_time()  # neighbours on a shared machine do not count
        made = make_pool(data)
        seconds.append(time.process_time() - start)
    assert len(made.file.rows) == count
    assert min(seconds) < 0.2
