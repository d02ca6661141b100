"""Scripts of users who start processes in another way than these tests are started."""

import subprocess
import sys
from pathlib import Path

import pytest

from fnpipe.data.dataset import Dataset


READ = """
import multiprocessing, sys
import fnpipe as fp
data = fp.read_coco(sys.argv[1] + "/boxes.json", sys.argv[1])
"""
UNGUARDED = {
    "pool": "fp.pool(data, 'disk', folder=sys.argv[2], workers=2, progress=False)",
    "loader": """
loader = fp.Loader(
    data, fp.pipe(fp.resize(8)), batch_size=5, seed=0, workers=1, worker_backend="eager"
)
next(iter(loader))
""",
}


def run(text: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    script = arguments[-1] / "script.py"
    script.write_text(text)
    command = [sys.executable, script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_reading_leaves_open_how_processes_are_started(data: Dataset, tmp_path: Path):
    done = run(READ + "multiprocessing.set_start_method('spawn')", data.root, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", UNGUARDED)
def test_what_starts_processes_is_not_imported_by_them(data: Dataset, tmp_path: Path, what: str):
    """A pool hung: its processes waited for the pool that their parent was building."""
    method = "multiprocessing.set_start_method('spawn', force=True)\n"
    few = "import fnpipe.data.pool_build as build; build.WORTH_A_PROCESS = 1\n"
    done = run(READ + method + few + UNGUARDED[what], data.root, tmp_path)
    assert (
        "ArgumentError: a new process is importing the script that started it: begin what makes "
        "pools, or loops over a loader with workers, with if __name__ == '__main__':"
    ) in done.stderr
    assert done.returncode == (what == "loader")  # a pool is made without them


def test_a_function_of_a_notebook_that_a_worker_cannot_find_is_told_of(
    data: Dataset, tmp_path: Path
):
    notebook = """
sys.modules["__main__"] = type(sys)("__main__")  # a module without a file
exec('''
import fnpipe as fp
@fp.pointwise
def mine(r, g, b): return r, g, b
''', vars(sys.modules["__main__"]))
mine = sys.modules["__main__"].mine.drawn()
next(iter(fp.Loader(
    data, fp.pipe(fp.resize(8), mine), batch_size=5, seed=0, workers=1, worker_backend="eager",
    start_method="spawn",
)))
"""
    done = run(READ + notebook, data.root, tmp_path)
    assert "Can't get attribute 'mine' on <module '__main__'" in done.stderr
    assert (
        " died (exit code 1) before its first batch: its own error is on stderr; functions typed "
        "into a notebook reach workers by start_method='fork' alone, those of a module always"
    ) in done.stderr
