"""Digests of functions: another key wherever something else would be computed, else the same."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.digests import sources_digest


LIMIT = 2.0
TABLE = {"a": [1, torch.ones(2)], "b": print}


def half(x: Tensor) -> Tensor:
    return x * 0.5


def dim(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return half(r), g * LIMIT, b + len(TABLE)


def make(number: Any) -> Callable[..., Any]:
    def scale(r: Tensor, g: Tensor, b: Tensor) -> Any:
        return r * number, g, b

    return scale


@fp.pointwise
def nested(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return dim(r, g, b)


def test_a_digest_changes_with_the_function_and_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of a file that was edited since, the digest is that of what was loaded."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "digested.py"
    file.write_text("def f():\n    return 1\ndef g():\n    return 1\n")
    import digested as module  # type: ignore[import-not-found]

    old = module.f
    before = sources_digest(old)
    assert before != sources_digest(module.g)
    assert before != sources_digest(old, module.g)
    file.write_text("# a remark\ndef f():\n    return 2\n")
    assert before == sources_digest(old)
    names: dict[str, Any] = {"__name__": "digested"}
    exec(compile(file.read_text(), file, "exec"), names)
    assert before != sources_digest(names["f"])


def test_functions_are_digested_in_their_order_and_as_often_as_they_are_there():
    """Of a chain of colours: bright, contrasty, bright is not bright, bright, contrasty."""
    chains = [(half, dim), (dim, half), (half, dim, half), (half, half, dim), (half,)]
    assert len({sources_digest(*chain) for chain in chains}) == len(chains)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2.0, 3.0),
        ((1, 2), (1, 3)),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (torch.arange(2000), torch.arange(2000) + (torch.arange(2000) == 1000)),
        (Path("a.cube"), Path("b.cube")),
        (fp.Rings.empty(1), fp.Rings.empty(2)),
        (half, torch.neg),
        (torch.minimum, torch.maximum),
    ],
)
def test_what_a_function_closes_over_is_in_its_digest(one: Any, other: Any):
    assert sources_digest(make(one)) == sources_digest(make(one))
    assert sources_digest(make(one)) != sources_digest(make(other))


@pytest.mark.parametrize("name", ["LIMIT", "half", "TABLE"])
@pytest.mark.parametrize("fn", [dim, nested])
def test_what_a_function_reads_and_calls_is_in_its_digest(
    monkeypatch: pytest.MonkeyPatch, name: str, fn: Callable[..., Any]
):
    before = sources_digest(fn)
    changed = {"LIMIT": 2.5, "half": make(0.5), "TABLE": {"a": [1, torch.zeros(2)], "b": print}}
    monkeypatch.setattr(sys.modules[__name__], name, changed[name])
    assert sources_digest(fn) != before


def test_a_function_of_a_notebook_has_one():
    names: dict[str, Any] = {"__name__": "__main__"}
    text = "def sepia(r, g, b):\n    return r * {}, g, b\n"
    made = []
    for number in (0.5, 0.25):
        exec(compile(text.format(number), "/tmp/ipykernel_7/1.py", "exec"), names)
        made.append(sources_digest(names["sepia"]))
    assert made[0] != made[1]


def test_another_process_has_the_same():
    """Whatever the order of its sets, wherever its objects lie, and whatever it has done before."""
    code = (
        "from fnpipe import backends, digests\n"
        "from fnpipe.ops import pixel, raster_package\n"
        "if work:\n"
        "    import torch, fnpipe as fp\n"
        "    from fnpipe.testing.strategies import Album\n"
        "    album = Album([torch.zeros(3, 9, 9, dtype=torch.uint8)])\n"
        "    fp.make_batch(album, fp.pipe(fp.crop(8)), [0], seed=0)\n"
        "functions = backends._fill, pixel.shift_hsv, *raster_package.FUNCTIONS\n"
        "print(digests.sources_digest(*functions))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", f"work = {work}\n{code}"],
            env={"PYTHONHASHSEED": str(work + 1), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for work in (False, True)
    }
    assert len(found) == 1
