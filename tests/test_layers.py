"""Imports run down only, optional packages stay optional, and no file grows out of sight."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


PACKAGE = Path(__file__).resolve().parents[1] / "fnpipe"

# Bottom to top. A module may import from its own line and from every line below it.
LAYERS = (
    ("values",),
    ("types",),
    ("cache", "digests", "keys", "numerics", "packages", "packing", "schedules", "step"),
    ("ops",),
    ("stages", "backends"),
    ("plans",),
    ("pipeline", "explain"),
    ("data",),
    ("cuts",),
    ("feed",),
    ("loader",),
    ("adapters", "recipes", "preview", "testing", "demo"),
    ("sheets",),
    ("cli", "explore", "__main__"),
)
TOP = len(LAYERS) - 1
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
# Narrower than its line: a reader knows values and arithmetic, never randomness or pipelines.
ONLY = {"data": {"types", "digests", "ops", "data"}}
# Imported where they are used, never at the top of a module.
OPTIONAL = {
    "albumentations",
    "cv2",
    "hypothesis",
    "kornia",
    "lightning",
    "marimo",
    "matplotlib",
    "pycocotools",
    "pytorch_lightning",
    "scipy",
    "skimage",
    "tomli_w",
    "transformers",
    "ultralytics",
}
# Nothing without their package, and imported by no other module when it is imported.
ALONE = {"testing/strategies.py", "explore/app.py"}
MAX_LINES = 350
FILES = sorted(PACKAGE.rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part(module: str) -> str:
    """The layer's member that a module of the package belongs to, "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Every import in ``tree``: its line and the full name of the module or member."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            source = ".".join(filter(None, (base if node.level else "", node.module)))
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def at_import(tree: ast.Module) -> ast.Module:
    """The part of a module that runs when it is imported."""

    class Hollow(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.If | None:
            return None if ast.unparse(node.test).endswith("TYPE_CHECKING") else node

    return Hollow().visit(tree)


def needs(path: Path) -> list[str]:
    """What importing the file imports, by its own words."""
    return [target for _, target in imported(at_import(ast.parse(path.read_text())), path)]


def upward(source: str, path: Path) -> list[str]:
    """The imports of ``source`` that its layer does not allow."""
    here = part(module_of(path))
    if here not in RANK:  # fnpipe/__init__.py gathers the public names of every layer
        return []
    wrong = []
    for line, target in imported(ast.parse(source), path):
        if target.split(".")[0] != "fnpipe":
            continue
        there = part(target)  # a public name, or the package itself, is as high as it gets
        if RANK.get(there, TOP) > RANK[here] or there not in ONLY.get(here, {there}):
            wrong.append(f"{name(path)}:{line}: {here} may not import {target}")
    return wrong


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_run_down(path: Path):
    assert upward(path.read_text(), path) == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_optional_package_at_the_top_of_a_module(path: Path):
    if name(path) not in ALONE:
        assert [i for i in needs(path) if i.split(".")[0] in OPTIONAL] == []


def test_what_stands_alone_is_imported_by_none():
    alone = {module_of(PACKAGE / path) for path in ALONE}
    assert [
        f"{name(path)}: {i}"
        for path in FILES
        for i in needs(path)
        if {i, i.rpartition(".")[0]} & alone
    ] == []


def test_a_definition_stands_without_its_kernel():
    """A kernel imports its definition, never the reverse: torch alone is enough for the latter."""
    kernels = {path for path in FILES if any(i.split(".")[0] == "triton" for i in needs(path))}
    modules = {module_of(path) for path in kernels}
    assert [
        f"{name(path)}: {i}"
        for path in FILES
        for i in needs(path)
        if path not in kernels and {i, i.rpartition(".")[0]} & modules
    ] == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_can_be_read_in_one_sitting(path: Path):
    lines = path.read_text().count("\n")
    assert lines <= MAX_LINES


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_module_has_a_layer(path: Path):
    assert part(module_of(path)) in {"", *RANK}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import fnpipe.loader", "pipeline.py:1: pipeline may not import fnpipe.loader"),
        (
            "from fnpipe import data",
            "pipeline.py:1: pipeline may not import fnpipe.data",
        ),
        (
            "def f():\n    from .loader import Loader",
            "pipeline.py:2: pipeline may not import fnpipe.loader.Loader",
        ),
        ("from fnpipe import mosaic", "pipeline.py:1: pipeline may not import fnpipe.mosaic"),
    ],
    ids=["a module", "from the package", "relative, in a function", "a public name"],
)
def test_an_arrow_that_goes_up_is_found(source: str, message: str):
    assert upward(source, PACKAGE / "pipeline.py") == [message]


def test_a_reader_may_not_draw():
    path = PACKAGE / "data" / "coco.py"
    assert upward("from fnpipe.ops.raster import fill", path) == []
    assert upward("from fnpipe.keys import key", path) == [
        "data/coco.py:1: data may not import fnpipe.keys.key"
    ]


def test_importing_the_package_needs_no_optional_package():
    """In a fresh interpreter; Triton comes in only where torch itself brings it."""
    modules = "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    bare, ours = (
        set(
            subprocess.run(
                [sys.executable, "-c", f"import sys, {names}; {modules}"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()
        )
        for names in ("torch, torchvision", "fnpipe")
    )
    assert ours & OPTIONAL == set()
    assert ("triton" in ours) <= ("triton" in bare)
