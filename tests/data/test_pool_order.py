"""Orders: options, limits, room and folders are looked at before anything is allocated."""

import pwd

import pytest
import torch

from fnpipe.data import pool as pool_module
from fnpipe.data import pool_order
from fnpipe.types import ArgumentError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ramdisk"}, "kind wanted one of ram, disk, device, came 'ramdisk'"),
        ({"overflow": "prefix"}, "overflow='prefix' needs a limit"),
        ({"overflow": "drop"}, "overflow wanted one of raise, prefix, came 'drop'"),
        ({"unreadable": "skip"}, "unreadable wanted one of raise, drop, came 'skip'"),
        ({"longest": 0}, "longest wanted at least 1 pixel, came 0"),
    ],
)
def test_options_are_checked(write_photos, make_pool, options: dict, message: str):
    with pytest.raises(ArgumentError) as error:
        make_pool(write_photos(1), **options)
    assert message in str(error.value)


def test_what_does_not_fit_is_refused_with_the_numbers(write_photos, make_pool, monkeypatch):
    data = write_photos(8)
    whole = make_pool(data).bytes
    with pytest.raises(ArgumentError) as error:
        make_pool(data, "ram", limit=whole - 1)
    assert str(error.value) == (
        f"a pool of 8 photos takes {whole:,} bytes, limit is {whole - 1:,}; shrink them by "
        "longest=, or hold the first 7 by overflow='prefix'"
    )
    with pytest.raises(ArgumentError, match="hold the first 0"):
        make_pool(data, limit=10, overflow="prefix")
    monkeypatch.setattr(pool_order, "free_bytes", lambda *_, **__: 1000)
    with pytest.raises(ArgumentError) as error:
        make_pool(data, "ram")
    assert f"takes {whole:,} bytes ({whole:,} bytes), " in str(error.value)
    assert "fnpipe-" in str(error.value)
    assert "has 1,000 free; shrink them by longest=" in str(error.value)


@pytest.mark.parametrize(
    ("rank", "local", "shown"),
    [
        (None, None, True),
        (0, None, True),
        (1, None, False),
        (None, "1", False),
        (9, "1", False),
        (8, "0", True),
    ],
)
def test_one_rank_of_a_host_shows_a_bar(
    write_photos, make_pool, capfd, monkeypatch, rank: int | None, local: str | None, shown: bool
):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: rank is not None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    make_pool(write_photos(2), progress=None)
    assert ("photos" in capfd.readouterr().err) == shown
    make_pool(write_photos(2, folder="b"), progress=True)
    assert "photos" in capfd.readouterr().err


def test_nothing_is_printed_and_no_other_user_is_believed(
    write_photos, make_pool, tmp_path, capfd, monkeypatch
):
    make_pool(write_photos(2), "ram")
    assert capfd.readouterr() == ("", "")
    make_pool(write_photos(2, folder="b"), progress=True)
    assert "photos" in capfd.readouterr().err
    monkeypatch.setattr(pool_order, "user", lambda: 12345)
    (tmp_path / "pools" / "fnpipe-12345").mkdir()
    monkeypatch.setattr(pool_module, "place", lambda *_, **__: tmp_path / "pools" / "fnpipe-12345")
    with pytest.raises(ArgumentError, match="belongs to another user; pass a folder of your own"):
        make_pool(write_photos(2), "ram")


def test_a_folder_that_cannot_be_made_is_told_of(write_photos, tmp_path):
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "pools"
    with pytest.raises(ArgumentError) as caught:
        pool_module.pool(write_photos(2), "disk", folder=where)
    assert str(caught.value) == (
        f"no folder for pools at {where} ([Errno 20] Not a directory: '{where}'); pass folder="
    )


def test_a_folder_may_be_named_from_home_on(write_photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    data = write_photos(2)
    made = pool_module.pool(data, "disk", folder="~/pools", workers=0)
    assert made.file.path.parent == tmp_path / "home" / "pools"
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(
        ArgumentError, match=r"no folder for pools at ~/\.cache/fnpipe/pools \(.*ho"
    ):
        pool_module.pool(data, "disk", workers=0)
    assert not (tmp_path / "~").exists()
