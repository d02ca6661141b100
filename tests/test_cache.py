"""The folder of packages belongs to its user, and can be told to lie elsewhere."""

import os
import pwd
import re
import stat
from pathlib import Path

import pytest

from fnpipe.cache import cache_folder
from fnpipe.types import NumericsError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fnpipe"


def test_the_cache_is_made_for_its_user_alone(cache: Path):
    assert cache_folder() == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_cache_that_others_may_write_to_is_refused(cache: Path, mode: int):
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(NumericsError) as caught:
        cache_folder()
    assert str(caught.value) == (
        f"{cache} holds code and must belong to you alone (owner {os.getuid()}, mode {mode:o}): "
        "run chmod 700 on it, or set XDG_CACHE_HOME"
    )


def test_a_cache_of_somebody_else_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(NumericsError, match=re.escape(f"{cache} holds code and must belong to")):
        cache_folder()


def test_who_has_no_home_is_asked_for_a_place(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a container's user without an entry: a folder named ~ was made in the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(NumericsError, match=r"no folder for packages at ~/\.cache/fnpipe \(.*home"):
        cache_folder()
    assert [*tmp_path.iterdir()] == []


def test_without_a_place_for_it_one_is_asked_for(cache: Path):
    cache.write_text("a file")
    with pytest.raises(NumericsError) as caught:
        cache_folder()
    assert str(caught.value) == (
        f"no folder for packages at {cache} ([Errno 17] File exists: '{cache}'): set "
        "XDG_CACHE_HOME to one that you may write to, or use backend='eager'"
    )
