"""Every operation on pixels gives the same words by every backend: bits, before quantising."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from laws import (
    NAMES,
    assert_same_words,
    columns,
    everything,
)
from torch import Tensor

from fnpipe import numerics
from fnpipe.digests import sources_digest
from fnpipe.ops import pixel, render, warp


Run = Callable[[dict[str, Tensor]], dict[str, tuple[Tensor, ...]]]
example = {
    name: torch.zeros(1036, dtype=torch.int32)
    if name in "steps bias limit near far near_below far_below wx wy sum".split()
    else torch.ones(1036)
    for name in NAMES
}


def eager(column: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
    return everything(*(column[name] for name in NAMES))


def packaged() -> Run:
    """The package is built for this processor, wherever else there is a GPU."""
    key = sources_digest(everything, pixel.shift_hsv, warp.mix, render.finish)
    run = numerics.package(everything, [example[name] for name in NAMES], key=key)
    return lambda column: run(*(column[name].cpu() for name in NAMES))


@pytest.fixture(scope="session", params=["eager", "compiled", "package", "triton"])
def backend(request: pytest.FixtureRequest, device: torch.device) -> tuple[str, Run]:
    name = request.param
    if name == "eager" and device.type == "cpu":
        pytest.skip("eager is what the others are compared with; there is no other device")
    if name == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
        from kernels import run_triton

        return name, lambda column: run_triton({n: t.to(device) for n, t in column.items()})
    if name == "package":
        request.getfixturevalue("package_cache")
        return name, packaged()
    run = everything if name == "eager" else numerics.compiled(everything)
    return name, lambda column: run(*(column[n].to(device) for n in NAMES))


@settings(max_examples=40, deadline=None)
@given(columns())
def test_every_backend_gives_the_words_of_eager(backend: tuple[str, Run], column):
    who, run = backend
    with warnings.catch_warnings():
        # Lanes that a selection throws away divide by zero, and NumPy speaks up for them.
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        got = run(column)
    assert_same_words(who, eager(column), got, column)


@pytest.fixture(scope="session")
def ptx() -> dict[str, str]:
    """In a process of its own, since here Triton may be interpreting."""
    pytest.importorskip("triton", reason="Triton is not installed")
    root = Path(numerics.__file__).parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("kernels.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


BY_HAND = re.compile(r"// begin inline asm.*?// end inline asm", re.DOTALL)
"""Twins (:mod:`fnpipe.ops.twins`): a reciprocal is an estimate and a fused step, and exact."""
BANNED = re.compile(r"fma\.rn\S*f32|div\.full|div\.approx|rcp\.|mad\.f32|(?:add|sub|mul|div)\S*ftz")


def test_kernels_neither_contract_nor_approximate(ptx: dict[str, str]):
    for name, text in ptx.items():
        if name != "planted":
            assert BANNED.findall(BY_HAND.sub("", text)) == [], name
            # Without .rn the assembler may contract where the compiler did not.
            assert re.findall(r"(?:mul|add|sub)\.f32", text) == [], name
            assert "mul.rn.f32" in text, name
            assert "div.rn.f32" in text, name


def test_a_contracted_kernel_would_be_seen(ptx: dict[str, str]):
    assert "fma.rn.f32" in BANNED.findall(ptx["planted"])
