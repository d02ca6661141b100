"""Packages: one process builds, others wait; what is half made is never seen; what is told."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

import fnpipe
from fnpipe import cache as cache_module
from fnpipe import packages
from fnpipe.types import NumericsError


EXAMPLE = (torch.zeros(3),)
BUILDS = """
import sys
open(sys.argv[2], "w").write(sys.argv[4])
"""
"""Stands in for a compiler: what it builds says in which way."""


def ours() -> str:
    """A path on which other processes find what this one tests."""
    root = str(Path(fnpipe.__file__).parents[1])
    return os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])


def twice(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the package is wanted, in a folder of its own; scratch lies elsewhere."""
    for folder in ("cache", "scratch"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(packages.tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr(packages, "BUILD", BUILDS)
    monkeypatch.setattr(packages, "compiler", lambda: "g++")
    monkeypatch.setattr(packages, "_told", set())
    monkeypatch.setattr(cache_module, "POLL", 0.01)
    yield tmp_path / "cache" / "twice.pt2"
    assert [*(tmp_path / "scratch").glob("fnpipe-*")] == []


def make(path: Path) -> None:
    packages.make(twice, EXAMPLE, path, options={})


def others(path: Path) -> list[str]:
    return [p.name for p in path.parent.iterdir() if p != path]


def test_what_is_there_is_not_built(path: Path):
    make(path)
    assert path.read_text() == "trusting"
    path.write_text("mine")
    make(path)
    assert path.read_text() == "mine"
    assert others(path) == []


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "import os, sys\nopen(sys.argv[2], 'w')\nos.abort()",
            "built cannot be loaded (exit code -6: )",
        ),
        (
            "import sys\nopen(sys.argv[2], 'w')\nsys.exit('no such symbol')",
            "built cannot be loaded (exit code 1: no such symbol)",
        ),
        ("import sys; sys.exit('no c++')", "was given built no package (exit code 1: no c++)"),
        ("import time; time.sleep(9)", "was given built no package (not done after 0.5 s)"),
    ],
    ids=["it ends who loads it", "it cannot be loaded", "nothing is built", "it hangs"],
)
def test_a_package_appears_whole_or_not_at_all(
    program: str, told: str, path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What ends the process that loads it ends none of ours."""
    monkeypatch.setattr(packages, "BUILD", program)
    if "sleep" in program:
        monkeypatch.setattr(packages, "LIMIT", 0.5)
    with pytest.raises(NumericsError) as caught:
        make(path)
    assert str(caught.value) == (
        f"what g++ {told}; use another compiler (CXX=...) or backend='eager'"
    )
    assert [*path.parent.iterdir()] == []
    monkeypatch.setattr(packages, "BUILD", BUILDS)
    make(path)
    assert path.read_text() == "trusting"


def test_a_disk_that_is_full_leaves_nothing_half_copied(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    def copyfile(source: Any, to: str) -> None:
        Path(to).write_text("half a")
        raise OSError("no space left")

    monkeypatch.setattr(packages.shutil, "copyfile", copyfile)
    with pytest.raises(OSError, match="no space left"):
        make(path)
    assert [*path.parent.iterdir()] == []


def test_where_trust_fails_torch_tries(path: Path, monkeypatch: pytest.MonkeyPatch):
    fails = "\nif sys.argv[4] == 'trusting': sys.exit('unknown instruction')"
    monkeypatch.setattr(packages, "BUILD", BUILDS + fails)
    make(path)
    assert path.read_text() == "trying"


@pytest.mark.parametrize("ends", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_builder_that_is_ended_is_not_started_again(
    ends: str, path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = path.parents[1] / "log"
    note = f"import os, signal, sys\nopen({str(log)!r}, 'a').write(sys.argv[4])\n"
    monkeypatch.setattr(packages, "BUILD", f"{note}os.kill(os.getpid(), signal.{ends})")
    with pytest.raises(NumericsError, match=rf"exit code {-signal.Signals[ends]}: "):
        make(path)
    assert log.read_text() == "trusting"


def test_a_package_wants_a_compiler(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "compiler", lambda: None)
    with pytest.raises(NumericsError) as caught:
        make(path)
    assert str(caught.value) == (
        "building a package needs a C++ compiler (Debian: apt-get install g++); "
        "without one use backend='eager'"
    )


def test_a_builder_sees_the_modules_of_its_caller_and_no_gpu(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    look = "import os, sys; open(sys.argv[2], 'w').write(repr((sys.path, dict(os.environ))))"
    monkeypatch.setattr(packages, "BUILD", look)
    monkeypatch.setattr(sys, "path", ["", "/of/the/caller", *sys.path])
    make(path)
    paths, environment = eval(path.read_text())
    assert paths[:2] == [os.getcwd(), "/of/the/caller"]
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


# What is told


@pytest.mark.parametrize("terminal", [True, False])
def test_who_waits_is_told_why(
    path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    """A terminal of every package, a log once a process; no output, no warning."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    paths = [path.with_name(name) for name in ("a.pt2", "b.pt2")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in [*paths, *paths]:
            make(each)
    told = capsys.readouterr()
    lines = [f"fnpipe: building {each}, once: a minute or so" for each in paths]
    assert told.err.splitlines() == lines[: 2 if terminal else 1]
    assert told.out == ""


# Several at once

RACE = """
import torch
from pathlib import Path
from fnpipe import packages

packages.compiler = lambda: "g++"
packages.BUILD = '''
import os, sys, time
from threading import Thread
from fnpipe.packages import _end_with
Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
with open({log!r}, "a") as log: print(os.getpid(), file=log)
while os.path.exists({hold!r}): time.sleep(0.01)
open(sys.argv[2], "w").write(str(os.getppid()))
'''
packages.make(lambda x: x * 2, (torch.zeros(3),), Path({path!r}), options={{}})
print(Path({path!r}).read_text())
"""


class Race:
    """Processes that want one package at once; who builds it is done when ``hold`` is gone."""

    def __init__(self, path: Path) -> None:
        home = path.parents[1]
        self.path, self.log, self.hold, self.script = path, home / "log", home / "hold", home / "it"
        self.script.write_text(RACE.format(log=str(self.log), hold=str(self.hold), path=str(path)))
        self.hold.touch()
        self.environment = os.environ | {"TMPDIR": str(home / "scratch"), "PYTHONPATH": ours()}
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, self.script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=self.environment, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """The next line on a process's stderr."""
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.fixture
def race(path: Path) -> Iterator[Race]:
    made = Race(path)
    yield made
    made.end()


def test_of_several_processes_one_builds_and_the_others_wait(race: Race, path: Path):
    started = [race.start() for _ in range(4)]
    lines = {process.pid: said(process) for process in started}
    (builder,) = (pid for pid, line in lines.items() if "building" in line)
    waits = rf"fnpipe: waiting for {re.escape(str(path))}, built by process {builder} on \S+\n"
    assert all(re.fullmatch(waits, lines[pid]) for pid in lines if pid != builder)
    race.hold.unlink()
    rest = [process.communicate(timeout=100) for process in started]
    assert rest == [(f"{builder}\n", "")] * 4
    assert len(race.log.read_text().split()) == 1
    assert others(path) == []


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)
    assert happened()


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_who_was_killed_keeps_nobody_waiting(race: Race, path: Path):
    """Nor does the process stay that it had started."""
    first = race.start()
    assert "building" in said(first)
    second = race.start()
    assert f"built by process {first.pid} on" in said(second)
    wait_until(race.log.exists)
    pid = int(race.log.read_text())
    assert is_running(pid)
    first.kill()
    wait_until(lambda: not is_running(pid))
    race.hold.unlink()
    out, err = second.communicate(timeout=100)
    assert (out, second.returncode) == (f"{second.pid}\n", 0), err
    assert others(path) == []
    for left in (path.parents[1] / "scratch").glob("fnpipe-build-*"):  # by the first
        packages.shutil.rmtree(left)


def test_threads_wait_for_each_other(path: Path, monkeypatch: pytest.MonkeyPatch):
    log = path.parents[1] / "log"
    slow = f"import time\nopen({str(log)!r}, 'a').write('x')\ntime.sleep(0.5)\n"
    monkeypatch.setattr(packages, "BUILD", slow + BUILDS)
    threads = [Thread(target=make, args=(path,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.read_text() == "x"


@pytest.mark.parametrize("cause", ["no locks", "no POSIX"])
def test_without_locks_each_builds_its_own(
    path: Path, cause: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(descriptor: int, how: int) -> None:
            raise OSError(37, "No locks available")

    monkeypatch.setattr(cache_module, "fcntl", NoLocks if cause == "no locks" else None)
    make(path)
    assert path.read_text() == "trusting"


def test_who_waited_long_enough_builds_its_own(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.setattr(packages, "WAIT", 0.1)
    held = cache_module._lock(path.with_name(f".{path.name}.lock"))
    assert held is not None
    make(path)
    os.close(held)
    assert path.read_text() == "trusting"
    host = re.escape(f"process {os.getpid()} on {os.uname().nodename}")
    assert re.match(rf"fnpipe: waiting for \S+, built by {host}\n", capsys.readouterr().err)


def test_what_was_left_half_made_is_removed(path: Path):
    old, new, kept = (path.with_name(n) for n in (".build-old", ".build-new", "other.pt2"))
    for folder in (old, new):
        folder.mkdir()
        (folder / "half").touch()
    kept.touch()
    part, lock = path.with_name(".build-part"), path.with_name(".other.pt2.lock")
    part.touch()
    lock.touch()
    long_ago = time.time() - 2 * cache_module.STALE
    for item in (old, part, lock, kept):
        os.utime(item, (long_ago, long_ago))
    make(path)
    assert sorted(others(path)) == [".build-new", "other.pt2"]


# The compiler


def test_instructions_are_usable_where_the_compiler_knows_their_flags():
    class Instructions:
        def __init__(self, flags: str) -> None:
            self.flags = flags

        def build_arch_flags(self) -> str:
            return self.flags

    if packages.compiler() is None:
        pytest.skip("no C++ compiler here")
    assert packages._knows(Instructions(""), "")
    assert not packages._knows(Instructions("-mno-such-instructions"), "")


@pytest.mark.slow
@pytest.mark.skipif(packages.compiler() is None, reason="no C++ compiler here")
def test_trust_and_trial_choose_the_same_instructions(tmp_path: Path):
    """Else a package would be another, and its speed."""
    choose = (
        "import sys\nfrom fnpipe import packages\nfrom torch._inductor import cpu_vec_isa\n"
        "if sys.argv[1:]: cpu_vec_isa.VecISA.check_build = packages._knows\n"
        "print([(str(i), i.build_arch_flags()) for i in cpu_vec_isa.valid_vec_isa_list()])"
    )
    fresh = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": ours()}
    said = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", choose, *way], capture_output=True, text=True,
            check=True, env=os.environ | fresh,
        ).stdout
        for way in ([], ["trusting"])
    ]  # fmt: skip
    assert said[0] == said[1] != ""


@pytest.mark.slow
@pytest.mark.skipif(packages.compiler() is None, reason="no C++ compiler here")
def test_a_package_is_built_in_a_process_of_its_own(tmp_path: Path):
    """Of a program that makes errors of warnings, too; torch says nothing in its name."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom fnpipe import numerics\n"
        "def scale(x):\n    return x * 1.25 + 0.5\n"
        "x = torch.arange(9.0)\n"
        "assert torch.equal(numerics.package(scale, [x], key='k')(x), scale(x))\n"
    )
    strict = {"PYTHONPATH": ours(), "XDG_CACHE_HOME": str(tmp_path), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, env=os.environ | strict
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (told,) = done.stderr.splitlines()
    assert re.fullmatch(r"fnpipe: building \S+, once: a minute or so", told)


def test_a_package_that_cannot_be_unpacked_is_told_of(tmp_path: Path):
    (tmp_path / "half.pt2").write_bytes(b"PK")
    with pytest.raises(NumericsError) as caught:
        packages.load(str(tmp_path / "half.pt2"))
    assert str(caught.value).startswith(f"{tmp_path / 'half.pt2'} cannot be unpacked (")
    assert str(caught.value).endswith("? Else remove the package, or use backend='eager'")


def test_the_compiler_is_the_one_that_cxx_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert packages.compiler() is None
    mine = tmp_path / "mine"
    mine.write_text("")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert packages.compiler() == str(mine)
