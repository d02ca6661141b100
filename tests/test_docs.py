"""Examples in docstrings give what they say, code in the documentation runs, the site builds."""

import doctest
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image as pillow

import fnpipe


ROOT = Path(fnpipe.__file__).parent
PROJECT = ROOT.parent
PAGES = sorted([PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")])
WITH_EXAMPLES = [
    ".".join(("fnpipe", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text()
]


def test_examples_in_docstrings():
    counts = [doctest.testmod(importlib.import_module(name)) for name in WITH_EXAMPLES]
    assert sum(c.attempted for c in counts) >= 3
    assert sum(c.failed for c in counts) == 0


def blocks(page: Path) -> list[str]:
    """The Python of a page, block by block."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data set that the pages name, small, in the folder that they run in."""
    generator = torch.Generator().manual_seed(0)
    document = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "leaf"}]}
    (tmp_path / "train2017").mkdir()
    for i in range(8):
        codes = torch.randint(0, 256, (48, 64, 3), dtype=torch.uint8, generator=generator)
        pillow.fromarray(codes.numpy()).save(tmp_path / "train2017" / f"{i}.png")
        document["images"].append({"id": i, "file_name": f"{i}.png", "width": 64, "height": 48})
        document["annotations"].append(
            {"id": i, "image_id": i, "category_id": 1, "bbox": [8, 8, 40, 30], "iscrowd": 0}
            | {"segmentation": [[8, 8, 48, 8, 48, 38, 8, 38]]}
        )
    (tmp_path / "instances_train2017.json").write_text(json.dumps(document))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names_that_pages_leave_to_the_reader() -> dict[str, object]:
    """A model, for pages that train one; data and a pipeline, for pages that go on from there."""

    def model(images: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        return images.float().mean()

    data = fnpipe.read_coco("instances_train2017.json", "train2017")
    train = fnpipe.pipe(fnpipe.mosaic(64), fnpipe.finish())
    return {"model": model, "fp": fnpipe, "data": data, "train": train, "__name__": "page"}


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_code_of_a_page_runs(page: Path, photos: Path, monkeypatch: pytest.MonkeyPatch):
    """Word for word, from top to bottom; without a GPU on the CPU, and there eagerly."""
    monkeypatch.setattr("fnpipe.cuts.best", lambda device, recipe: ("eager", "to be quick"))
    monkeypatch.setattr("fnpipe.testing.prove", lambda fn: ["not here: it compiles"])
    # Dynamo cannot look through the checks of shapes; properties/test_step.py does compile.
    monkeypatch.setattr(torch, "compile", lambda **how: lambda fn: fn)
    (photos / "page.py").write_text("\n\n".join(blocks(page)))
    text = (photos / "page.py").read_text()
    if not torch.cuda.is_available():
        text = text.replace('"cuda"', '"cpu"').replace('"device")', '"ram")')
    (photos / "page.py").write_text(text)
    monkeypatch.syspath_prepend(str(photos))
    scope = names_that_pages_leave_to_the_reader()
    with warnings.catch_warnings():
        # The checks of shapes in a test run roll dice, which Hypothesis warns of in a strategy.
        warnings.filterwarnings("ignore", message="Do not use the `random` module")
        exec(compile(text, str(photos / "page.py"), "exec"), scope)


def documented(page: str) -> Iterator[str]:
    """Dotted names that a page of the reference has an entry for, members listed with them."""
    module = ""
    for line in page.splitlines():
        directive = re.match(r"\.\. auto(\w+):: (\S+)", line)
        if directive:
            module = directive[2]
            yield module
        members = re.match(r"\s+:members: (.+)", line)
        if members:
            yield from (f"{module}.{name.strip()}" for name in members[1].split(","))


ENTRIES = {*documented((PROJECT / "docs" / "api.md").read_text())}


def test_every_public_name_has_an_entry():
    modules = {"recipes": "fnpipe.recipes"}
    wanted = {
        f"fnpipe.{name}"
        for name, value in vars(fnpipe).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    for module in modules.values():
        public = vars(importlib.import_module(module))
        wanted |= {
            f"{module}.{name}"
            for name, value in public.items()
            if inspect.isfunction(value) and not name.startswith("_")
        }
    assert wanted - ENTRIES == set()


def test_an_entry_is_of_something_that_is_there():
    for name in ENTRIES:
        pkgutil.resolve_name(name)


def test_the_site_builds_without_a_warning(tmp_path: Path):
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    built = subprocess.run(
        [*command, str(PROJECT / "docs"), str(tmp_path / "site")], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr[-3000:]
    assert (tmp_path / "site" / "api.html").is_file()
