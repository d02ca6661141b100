"""The contract of ``bench/``, on a bench of four contestants that sleep, are absent, or break."""

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


Rows = list[dict[str, Any]]
BENCH = Path(__file__).resolve().parents[1] / "bench"
SCRIPT = """
import os
import runpy
import time

import contract
from contract import Contestant


def noisy():
    import ctypes

    print("a peer that chats")
    os.write(1, b"a C library that chats\\n")
    ctypes.CDLL(None).puts(b"one that buffers")
    return Contestant("peer", lambda: time.sleep(0.001), images=2, note="half the work")


def measure(options):
    contestants = [
        contract.enter("peer", noisy),
        contract.enter("absent", lambda: __import__("no_such_package")),
        contract.enter("breaks", lambda: Contestant("breaks", lambda: 1 / 0)),
        Contestant("fnpipe/eager", lambda: time.sleep(0.004)),
        Contestant("bound/sleep", lambda: None),
    ]
    unit = options.unit
    return contract.compete("sleep", contestants, unit=unit, rounds=3, turn=0.004)


def configure(parser):
    parser.add_argument("--unit", default="ms/image")


contract.main(__file__, measure, against="peer", configure=configure)
"""


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("contract")


def run(folder: Path, *options: str) -> str:
    """What the script prints to stdout."""
    script = folder / "sleepers.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), *options],
        env=os.environ | {"PYTHONPATH": str(BENCH), "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, dict[str, Any]]:
    """What one run printed, and what it wrote."""
    folder = tmp_path_factory.mktemp("bench")
    printed = run(folder, "--json", "--out", str(folder / "results"))
    return json.loads(printed), json.loads((folder / "results" / "sleepers.json").read_text())


def test_json_prints_the_rows_and_nothing_else(reported: tuple[Rows, dict[str, Any]]) -> None:
    rows, written = reported
    assert {tuple(row) for row in rows} == {("case", "who", "value", "unit", "spread", "note")}
    by_name = {row["who"]: row for row in rows}
    assert set(by_name) == {"peer", "absent", "breaks", "fnpipe/eager", "bound/sleep"}
    assert {(row["case"], row["unit"]) for row in rows} == {("sleep", "ms/image")}
    assert by_name["peer"]["value"] >= 0.5
    assert by_name["fnpipe/eager"]["value"] >= 4.0
    assert by_name["peer"]["spread"] >= 0.0
    assert written["rows"] == rows
    assert f"python {sys.version.split()[0]}" in written["machine"]
    assert "torch " in written["machine"]
    assert "commit " in written["machine"]


def test_whoever_is_absent_or_breaks_is_a_row(reported: tuple[Rows, dict[str, Any]]) -> None:
    by_name = {row["who"]: row for row in reported[0]}
    assert by_name["absent"]["value"] is by_name["absent"]["spread"] is None
    assert by_name["absent"]["note"] == "not installed: No module named 'no_such_package'"
    assert by_name["breaks"]["value"] is None
    assert by_name["breaks"]["note"] == "failed: ZeroDivisionError: division by zero"


def test_the_table_names_the_machine_and_shows_our_loss(tmp_path: Path) -> None:
    text = run(tmp_path, "--unit", "images/s")
    machine, empty, case, heading, *rows = text.splitlines()
    assert "torch " in machine
    assert (empty, case) == ("", "sleep")
    assert heading.split() == ["who", "images/s", "spread", "speed", "(1", "=", "peer)"]
    cells = {row.split()[0]: row.split() for row in rows}
    assert cells["peer"][3:] == ["1", "half", "the", "work"]
    assert float(cells["fnpipe/eager"][3]) < 0.5
    assert cells["fnpipe/eager"][4:7] == ["LOSES", "to", "peer,"]
    assert cells["absent"][1:4] == ["-", "-", "-"]
    assert "LOSES" not in " ".join(cells["bound/sleep"])


def test_a_loss_is_judged_by_speed_in_either_unit(contract: ModuleType) -> None:
    for unit, ours, peer in (("ms/image", 8.0, 2.0), ("images/s", 125.0, 500.0)):
        row, _ = contract.judge(
            [contract.Row("c", "fnpipe/eager", ours, unit), contract.Row("c", "p", peer, unit)]
        )
        assert row.note == "LOSES to p, 4.00 times as fast"


def test_a_win_a_bound_another_case_and_a_share_are_no_loss(contract: ModuleType) -> None:
    rows = [
        contract.Row("c", "fnpipe/eager", 3.0, "images/s", note="as it was"),
        contract.Row("c", "peer", 2.0, "images/s"),
        contract.Row("c", "absent", None, "images/s", note="not installed"),
        contract.Row("c", "bound/device copy", 9.0, "images/s"),
        contract.Row("d", "peer", 9.0, "images/s"),
        contract.Row("e", "fnpipe/eager", 9.0, "%"),
        contract.Row("e", "peer", 3.0, "%"),
        contract.Row("f", "fnpipe/eager", 0.0, "ms"),
        contract.Row("f", "peer", 3.0, "ms"),
    ]
    assert contract.judge(rows) == rows


def test_turns_are_interleaved(contract: ModuleType) -> None:
    order: list[str] = []

    def timer(run, calls: int) -> float:
        run()
        return 1.0 * calls

    contestants = [
        contract.Contestant(who, lambda who=who: order.append(who), images=4) for who in "abc"
    ]
    rows = contract.compete("c", contestants, unit="ms/image", timer=timer, rounds=3)
    assert order[-9:] == list("abcabcabc")
    assert [(row.who, row.value, row.spread) for row in rows] == [(w, 250.0, 0.0) for w in "abc"]


@pytest.mark.parametrize("script", ["cpu.py", "device.py", "fit.py", "scale.py"])
def test_every_script_says_what_it_does(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout
    assert "--out DIR" in done.stdout


@pytest.mark.slow
def test_scale_finds_no_sample_that_differs_between_ranks() -> None:
    options = ["--quick", "--json", "--only", "growth", "ranks"]
    done = subprocess.run(
        [sys.executable, str(BENCH / "scale.py"), *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    by_case = {row["case"]: row for row in rows}
    assert all(row["value"] > 0 for row in rows)
    assert by_case["state_dict"]["value"] < 1000
    by_name = {row["who"]: row["note"] for row in rows}
    assert by_name["fnpipe/1 ranks"].endswith("0 of 128 samples differ")
    assert by_name["fnpipe/2 ranks"].endswith("0 of 128 samples differ")


@pytest.mark.parametrize("script", sorted(path.name for path in BENCH.glob("*.py")))
def test_every_script_finds_what_it_imports(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script measures may move; a table that nobody makes for a while would not tell."""
    monkeypatch.syspath_prepend(str(BENCH))
    try:
        runpy.run_path(str(BENCH / script), run_name="imported")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("fnpipe"):
            raise
        pytest.skip(f"{error.name} is not installed")
