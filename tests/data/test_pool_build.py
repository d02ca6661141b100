"""Building: only what changed, taken up where it was left, whole whoever is killed."""

import errno
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from fnpipe.data import pool_build, pool_file
from fnpipe.data.dataset import Dataset
from fnpipe.ops.warp import pack


def test_a_ready_pool_decodes_nothing(write_photos, make_pool, decoded, pool_files):
    data = write_photos()
    first = make_pool(data)
    assert len(decoded) == 6
    again = make_pool(data)
    assert len(decoded) == 6
    assert torch.equal(first.sources.words, again.sources.words)
    assert len(pool_files()) == 1


def test_a_file_is_opened_once(write_photos, make_pool, assert_holds, monkeypatch):
    """Its hash is of the very bytes that were decoded."""
    data, opened, real = write_photos(3), [], open

    def counting(file, *options, **named):
        opened.append(str(file))
        return real(file, *options, **named)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", counting)
        made = make_pool(data)
    assert [name for name in opened if name.endswith(".png")] == [
        str(data.path(i)) for i in range(3)
    ]
    assert_holds(made, data)
    made.verify()


def test_only_what_changed_is_decoded_anew(
    write_photos, make_pool, decoded, pool_files, assert_holds
):
    data = write_photos()
    make_pool(data)
    decoded.clear()
    for i in range(6):
        os.utime(data.root / f"{i}.png")
    make_pool(data)
    assert decoded == []  # their contents are the same
    Image.new("RGB", tuple(data.sizes[3].tolist())).save(data.root / "3.png")
    made = make_pool(data)
    assert decoded == ["3.png"]
    assert_holds(made, data)
    assert len(pool_files()) == 1


def test_an_interrupted_build_is_taken_up(
    write_photos, make_pool, decoded, monkeypatch, pool_files, assert_holds
):
    data = write_photos(6)
    fill = pool_build._fill

    def stumble(part, descriptor, index, *rest):
        if index == 4:
            raise KeyboardInterrupt
        return fill(part, descriptor, index, *rest)

    monkeypatch.setattr(pool_build, "_fill", stumble)
    for kind, left in [("ram", 0), ("disk", 1)]:
        with pytest.raises(KeyboardInterrupt):
            make_pool(data, kind)
        assert [name.endswith(".part") for name in pool_files()] == [True] * left
    monkeypatch.setattr(pool_build, "_fill", fill)
    Image.new("RGB", tuple(data.sizes[0].tolist())).save(data.root / "0.png")  # changed meanwhile
    decoded.clear()
    made = make_pool(data)
    assert decoded == ["0.png", "4.png", "5.png"]
    assert_holds(made, data)
    assert len(pool_files()) == 1


def test_a_build_that_cannot_begin_leaves_nothing(
    write_photos, make_pool, monkeypatch, pool_files, assert_holds
):
    data = write_photos(3)

    def fail(descriptor, length):
        raise OSError(errno.EFBIG, "File too large")

    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", fail)
        with pytest.raises(OSError, match="File too large"):
            make_pool(data)
    assert pool_files() == []
    made = make_pool(data)
    made.file.path.with_name(f".{made.file.path.name}.0-0.part").touch()  # killed just before that
    made.file.path.unlink()
    assert_holds(make_pool(data), data)
    assert pool_files() == [made.file.path.name]


def test_a_build_of_several_processes_is_taken_up_after_control_c(
    write_photos, make_pool, decoded, tmp_path, monkeypatch, assert_holds
):
    data, context = write_photos(40), multiprocessing.get_context("fork")
    read = Dataset.read_packed

    def slowly(self: Dataset, index: int, **known):
        time.sleep(0.4)  # 8 s in all: a busy machine has time to look
        return read(self, index, **known)

    def done() -> int:
        count = 0
        for path in (tmp_path / "pools").glob(".*.part"):
            part = pool_file.load(path, sealed=False)
            count += int((part.rows["state"] == pool_file.DONE).sum())
            part.close()
        return count

    def build() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
        make_pool(data, workers=2)

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "read_packed", slowly)
        builder = context.Process(target=build)
        builder.start()
        while not done():
            time.sleep(0.01)
        assert builder.pid is not None
        os.kill(builder.pid, signal.SIGINT)
        builder.join()
    assert builder.exitcode == 1
    left = 40 - done()
    assert 0 < left < 40
    made = make_pool(data)
    assert len(decoded) == left
    assert_holds(made, data)


def test_entries_whose_words_did_not_reach_the_disk_are_done_again(
    write_photos, make_pool, decoded, assert_holds
):
    data = write_photos(4)
    path = make_pool(data).file.path
    with open(path, "r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(bytes(40))
    path.rename(path.with_name(f".{path.name}.1-0.part"))
    decoded.clear()
    assert_holds(make_pool(data), data)
    assert decoded[0] == "3.png"
    assert len(decoded) == 1 + 4


BUILDERS, DEATHS = 4, 50


@pytest.mark.parametrize("workers", [0, 2])
def test_four_builders_of_which_one_is_killed(
    write_photos, make_pool, tmp_path: Path, workers: int, pool_files
):
    """At a random moment, time and again: one whole file, and everybody else is served."""
    data, context = write_photos(40), multiprocessing.get_context("fork")
    expected = torch.cat([pack(data.read(i)) for i in range(40)])
    dice, deaths = random.Random(0), 0
    start = time.perf_counter()
    make_pool(data, workers=workers)
    span = time.perf_counter() - start

    def serve() -> None:
        made = make_pool(data, workers=workers)
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
        assert torch.equal(make_pool(data).sources.words, expected)
        # Killed at the very end, it leaves its own unfinished file; the next build sweeps it away.
        whole = [name.endswith(".pool") for name in pool_files()]
        assert (whole.count(True), whole.count(False) <= 1) == (1, True)
