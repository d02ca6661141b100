"""Examples in docstrings give what they say, code in the documentation runs, the site builds."""

import doctest
import importlib
import inspect
import json
import pkgutil
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image as pillow

import fnpipe
from fnpipe.cli import parser


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
    """Word for word, from top to bottom, by two workers for eight; without a GPU on the CPU, and
    there eagerly."""
    monkeypatch.setattr("fnpipe.cuts.best", lambda device, recipe: ("eager", "to be quick"))
    monkeypatch.setattr("fnpipe.testing.prove", lambda fn: ["not here: it compiles"])
    # Dynamo cannot look through the checks of shapes; properties/test_step.py does compile.
    monkeypatch.setattr(torch, "compile", lambda **how: lambda fn: fn)
    (photos / "page.py").write_text("\n\n".join(blocks(page)))
    text = (photos / "page.py").read_text().replace("workers=8", "workers=2")
    if not torch.cuda.is_available():
        text = text.replace('"cuda"', '"cpu"').replace('"device")', '"ram")')
    (photos / "page.py").write_text(text)
    monkeypatch.syspath_prepend(str(photos))
    scope = names_that_pages_leave_to_the_reader()
    with warnings.catch_warnings():
        # The checks of shapes in a test run roll dice, which Hypothesis warns of in a strategy.
        warnings.filterwarnings("ignore", message="Do not use the `random` module")
        exec(compile(text, str(photos / "page.py"), "exec"), scope)


READ = [*PAGES, PROJECT / "bench" / "README.md", PROJECT / "CONTRIBUTING.md"]


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", READ, ids=lambda p: p.relative_to(PROJECT).as_posix())
def test_links_lead_somewhere(page: Path):
    """In a clone, where no site is built: to a file, and to a heading in it."""
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        if link.startswith("http"):
            continue
        there = page.parent / name if name else page
        assert there.is_file(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {link}"


def commands(beginning: str) -> list[list[str]]:
    """The lines in blocks of the pages that begin so, as words."""
    fence = r"^```[^\n]*\n(.*?)^```$"
    found = [block for page in READ for block in re.findall(fence, page.read_text(), re.M | re.S)]
    lines = [line for block in found for line in block.splitlines() if line.startswith(beginning)]
    return [shlex.split(line, comments=True) for line in lines]


def test_commands_of_the_pages_are_known():
    seen = commands("fnpipe ")
    assert len(seen) >= 5
    for _, *arguments in seen:
        parser().parse_args(arguments)


def test_benchmarks_of_the_pages_are_known():
    """Their scripts are there, and have the options."""
    contract, seen = (PROJECT / "bench" / "contract.py").read_text(), commands("python bench/")
    assert len(seen) >= 10
    for _, script, *arguments in seen:
        known = contract + (PROJECT / script).read_text()
        for option in (a for a in arguments if a.startswith("--")):
            assert f'"{option}"' in known, f"{script} {option}"


def kept(machine: str, script: str, who: str, case: str) -> float:
    """A figure of a kept result: of the one row of ``who`` whose case ends so."""
    path = PROJECT / "bench" / "results" / machine / f"{script}.json"
    rows = json.loads(path.read_text())["rows"]
    (value,) = [r["value"] for r in rows if r["who"] == who and r["case"].endswith(case)]
    return value


GPU, CPU = "nvidia-h200", "xeon-2-cores"
FIGURES = [
    *[
        ("README.md", shown, GPU, "device", who, f"channels-last, 640, batch {batch}")
        for shown, who, batch in [
            ("550,000", "fnpipe/triton", 64),
            ("601,000", "fnpipe/triton", 256),
            ("200,000", "fnpipe/compiled", 64),
            ("2,800", "fnpipe/eager", 64),
            ("6,700", "torchvision", 64),
            ("3,800", "kornia", 64),
        ]
    ],
    ("README.md", "68,000", GPU, "plan", "fnpipe/triton", "with boxes"),
    ("README.md", "76,000", GPU, "scale", "fnpipe/plan", "batch 64, 16 workers, on cuda"),
    *[
        ("README.md", shown, GPU, script, who, "cores")
        for script, column in [
            ("fit", ["4,390", "1,310", "644", "5,070"]),
            ("fit-12-epochs", ["4,850", "2,360", "1,140", "5,040"]),
            ("fit-4-cores", ["4,460", "598", "342", "5,110"]),
        ]
        for shown, who in zip(
            column, ["fnpipe/plan", "fnpipe/finished", "ultralytics", "bound/model"], strict=True
        )
    ],
    *[
        ("docs/pool.md", shown, CPU, "pool", who, case)
        for shown, who, case in [
            ("11.9", "fnpipe/without", "1024 x 1024"),
            ("0.94", "fnpipe/with pool", "1024 x 1024"),
            ("0.18", "fnpipe/with pool, in place", "1024 x 1024"),
            ("0.66", "fnpipe/with pool", "576 x 488"),
            ("317", "fnpipe/build", "CPU time"),
            ("391", "bound/Pillow's load", "CPU time"),
            ("342", "pillow", "CPU time"),
            ("343", "fnpipe/read_image", "CPU time"),
        ]
    ],
    ("docs/targets.md", "0.995", CPU, "agreement", "fnpipe/eager", "median"),
]


@pytest.mark.parametrize(("page", "shown", "machine", "script", "who", "case"), FIGURES)
def test_a_figure_is_the_one_that_is_kept(
    page: str, shown: str, machine: str, script: str, who: str, case: str
):
    """Rounded to the digits that are shown: thousands where they end in noughts."""
    digits = shown.replace(",", "")
    places = len(digits.partition(".")[2]) or len(digits.rstrip("0")) - len(digits)
    text = (PROJECT / page).read_text()
    assert re.search(rf"(?<![\d,.]){re.escape(shown)}(?!\d|[,.]\d)", text), "is not on the page"
    assert round(kept(machine, script, who, case), places) == float(digits)


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
