"""What every public name promises to its caller, checked on all of them at once."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fnpipe
from fnpipe.stages.stage import Color, Geometry, Layer, Layout, Mirror


PUBLIC = {
    name: value
    for name, value in vars(fnpipe).items()
    if not name.startswith("_") and not inspect.ismodule(value)
}


# What every stage has is documented once, where it is said what a stage is.
CONTRACT = {name for part in (Color, Geometry, Layer, Layout, Mirror) for name in vars(part)}


def is_ours(value: Any) -> bool:
    return getattr(value, "__module__", "").startswith("fnpipe")


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, and the methods that public classes define, by the name a user writes."""
    for name, value in PUBLIC.items():
        if inspect.isfunction(value) and is_ours(value):
            yield name, value
        if inspect.isclass(value) and is_ours(value):
            for method, wrapped in vars(value).items():
                function = getattr(wrapped, "__func__", wrapped)
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{name}.{method}", function


every_function = pytest.mark.parametrize(
    "function", [pytest.param(function, id=name) for name, function in public_functions()]
)
every_definition = pytest.mark.parametrize(
    "value",
    [
        pytest.param(value, id=name)
        for name, value in PUBLIC.items()
        if is_ours(value) and (inspect.isfunction(value) or inspect.isclass(value))
    ],
)


@every_function
def test_defaults_are_keyword_only(function: Callable[..., Any]):
    """``f(image, *, fill=114)``: a call says what it changes, and an option can be added later."""
    parameters = inspect.signature(function).parameters.values()
    positional = [
        p.name for p in parameters if p.default is not p.empty and p.kind is not p.KEYWORD_ONLY
    ]
    assert positional == []


@every_function
def test_randomness_comes_first_and_is_called_key(function: Callable[..., Any]):
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    assert not {"rng", "generator", "random_state"} & set(names)
    assert "key" not in names or names[0] == "key"


@every_function
def test_signatures_are_typed(function: Callable[..., Any]):
    signature = inspect.signature(function)
    bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert [name for name in bare if name != "self"] == []
    assert signature.return_annotation is not signature.empty


@every_definition
def test_every_public_name_is_documented(value: Any):
    """``inspect.getdoc`` also finds what a dataclass writes for itself: a signature, no words."""
    documented = inspect.getdoc(value) or ""
    assert documented.endswith((".", "```")) or len(documented.splitlines()) > 1
    assert not documented.startswith(f"{value.__name__}(")


@every_function
def test_every_public_function_is_documented(function: Callable[..., Any]):
    assert inspect.getdoc(function) or function.__name__ in CONTRACT


INSIDE = ("fnpipe.ops.", "fnpipe.explore.", "fnpipe.data.pool_build.", "fnpipe.data.processes.")
"""Kernels, marimo's page and tqdm's bar, whose types their libraries leave open."""


def test_a_type_checker_sees_the_type_of_every_public_name():
    pytest.importorskip("pyright")
    # It looks for packages where the first python of PATH does; an editable installation is a hook
    # that only Python itself follows.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    root = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-m", "pyright", "--verifytypes", "fnpipe", "--ignoreexternal"]
    done = subprocess.run(
        [*command, "--outputjson"], capture_output=True, text=True,
        env=os.environ | {"PATH": path, "PYTHONPATH": root},
    )  # fmt: skip
    found = json.loads(done.stdout)["typeCompleteness"]
    assert len(found["symbols"]) > 1000
    guessed = {s["name"] for s in found["symbols"] if s["isExported"] and not s["isTypeKnown"]}
    assert {name for name in guessed if not name.startswith(INSIDE)} == set()
