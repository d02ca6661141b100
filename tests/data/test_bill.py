"""The bill: bytes, time and what is free, before anything is made."""

from pathlib import Path

import pytest

from fnpipe.__main__ import main
from fnpipe.data.bill import bill
from fnpipe.data.dataset import Dataset


def test_the_bill_is_shown_before_anything_is_made(write_photos, tmp_path: Path):
    data = write_photos(5)
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


@pytest.mark.parametrize(("count", "every"), [(1, 1), (16, 1), (31, 2)])
def test_sixteen_photos_at_most_are_decoded_as_a_pool_does(
    write_photos, count: int, every: int, monkeypatch: pytest.MonkeyPatch
):
    data, decode, tried = write_photos(count), Dataset.read_packed, []
    monkeypatch.setattr(Dataset, "read_packed", lambda self, i: tried.append(i) or decode(self, i))
    bill(data)
    assert tried == [*range(0, count, every)]


def test_a_bill_says_what_is_short(write_photos):
    due = bill(write_photos(1))
    short = type(due)(1, 1, 5 * 10**9, 4 * 10**9, 61.0, 2, {"ram": 2 * 10**9, "device": None})
    assert str(short).splitlines()[1:] == [
        "5.0 GB as a pool (4.0 GB as plain RGB)",
        "about 61 s to build on 2 cores",
        "  ram     2.0 GB free, 3.0 GB short",
        "  device  not here",
    ]


def test_the_bill_is_a_command(write_photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = write_photos(3).root
    source = ["bill", "--coco", str(root / "coco.json"), "--images", str(root)]
    assert main([*source, "--longest", "10", "--folder", str(tmp_path)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "3 photos in 3 files"
    due = bill(write_photos(3), longest=10)
    assert second == f"{due.bytes:,} bytes as a pool ({due.rgb_bytes:,} bytes as plain RGB)"
