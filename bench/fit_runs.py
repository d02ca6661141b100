"""Runs of a fit, kept in a file as they come, so that a later call need not make them again."""

import hashlib
import json
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import contract


HERE = Path(__file__).resolve().parent
TRAINING = ("training", "arms", "peers", "detector", "ssdlite")
"""Modules of ``bench/`` that a run executes: the driver may change between two calls."""
Run = dict[str, Any]
"""What one training says of itself; where it broke, ``error`` says why."""


@dataclass
class Kept:
    """Runs by case, arm and round; ``file`` gets each one as a line, as soon as it is there.

    A run may start while more is left until ``deadline`` (of :func:`time.monotonic`) than the
    ``longest`` process of its arm took, of any arm if there was none. ``origin`` is what two runs
    of one table must share.
    """

    origin: dict[str, str]
    file: Path | None = None
    deadline: float = float("inf")
    longest: dict[str, float] = field(default_factory=dict)
    runs: dict[tuple[str, str, int], Run] = field(default_factory=dict)

    def find(self, case: str, arm: str, turn: int) -> Run | None:
        """The run of an arm in a round, or None."""
        return self.runs.get((case, arm, turn))

    def may_start(self, arm: str) -> bool:
        """Whether there is time for one more."""
        most = self.longest.get(arm, max(self.longest.values(), default=0.0))
        return self.deadline - time.monotonic() > most

    def add(self, case: str, turn: int, run: Run) -> None:
        """Keep a run that has just ended."""
        self.hold(case, turn, run)
        if self.file:
            place = {"commit": contract.commit(), "case": case, "round": turn}
            with self.file.open("a") as lines:
                lines.write(json.dumps(self.origin | place | {"run": run}) + "\n")

    def hold(self, case: str, turn: int, run: Run) -> None:
        """Know of a run; the last of its case, arm and round counts."""
        self.runs[case, run["arm"], turn] = run
        self.longest[run["arm"]] = max(self.longest.get(run["arm"], 0.0), run["took"])


def take_up(file: Path | None, budget: float) -> Kept:
    """The runs of a file that this code made on such a machine; the others are left out, said so.

    ``budget`` are the seconds until the last run should have ended.
    """
    kept = Kept(origin(), file, time.monotonic() + budget)
    if file is None or not file.is_file():
        return kept
    text = file.read_text()
    if text and not text.endswith("\n"):  # its driver was stopped while it wrote
        with file.open("a") as lines:
            lines.write("\n")
    found = [parse(line) for line in text.splitlines() if line.strip()]
    ours = [line for line in found if line.items() >= kept.origin.items()]
    for line in ours:
        kept.hold(line["case"], line["round"], line["run"])
    told = f"{file}: {len(ours)} runs taken up"
    if len(ours) < len(found):
        told += f", {len(found) - len(ours)} left out: of other code, another machine, or cut off"
    print(told, file=sys.stderr, flush=True)
    return kept


def parse(line: str) -> dict[str, Any]:
    """What a line says; nothing where it was cut off."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return {}


def origin() -> dict[str, str]:
    """What two runs must share to stand in one table: the code that they executed, the machine.

    Not the commit: a change of the docs spoils no run, and one that nobody committed yet does.
    """
    package = find_spec("fnpipe")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("fnpipe")
    files = sorted(Path(package.origin).parent.rglob("*.py"))
    files += [HERE / f"{name}.py" for name in TRAINING]
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return {"code": code.hexdigest()[:16], "machine": contract.host()}
