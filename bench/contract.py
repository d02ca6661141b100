"""The contract that every script of ``bench/`` keeps.

A script lets contestants do the same work on equal inputs, in turns, in one process, and hands back
rows. It prints them as a table under a line that names the machine; ``--json`` prints the rows and
nothing else; ``--out DIR`` writes both to ``DIR/<script>.json``. Whoever is not installed, or
breaks, is a row that says so, and a row of ours that a peer beats says by whom.

Names: ``fnpipe/<path>`` is ours, ``bound/<name>`` is what no code can beat (a copy of the same
bytes), any other name is a peer.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TextIO

import torch


OURS = "fnpipe/"
BOUND = "bound/"
FROM_SECONDS: dict[str, Callable[[float], float]] = {
    "ms/image": lambda seconds: 1e3 * seconds,
    "ms/batch": lambda seconds: 1e3 * seconds,
    "images/s": lambda seconds: 1 / seconds,
}

Timer = Callable[[Callable[[], object], int], float]
"""Seconds that a number of calls take."""


@dataclass(frozen=True)
class Row:
    """One figure: the median of its turns, and the distance between their quartiles as spread.

    ``value`` is None where there is nothing to measure; ``note`` then says why.
    """

    case: str
    who: str
    value: float | None
    unit: str
    spread: float | None = None
    note: str = ""

    @property
    def speed(self) -> float:
        """The value as a rate, so that more is better; 0 where there is none."""
        if not self.value or not self.timed:
            return 0.0
        return self.value if self.unit.endswith("/s") else 1 / self.value

    @property
    def timed(self) -> bool:
        """Whether the value is a rate or a time: of shares, bytes and losses nobody is faster."""
        return self.unit.endswith("/s") or self.unit.partition("/")[0] in ("s", "ms")


@dataclass(frozen=True)
class Contestant:
    """Who makes ``images`` images at every ``run``.

    ``note`` says in one line what this contestant does otherwise than the case says; where ``run``
    is None, why there is none.
    """

    who: str
    run: Callable[[], object] | None
    images: float = 1
    note: str = ""


def enter(who: str, build: Callable[[], Contestant]) -> Contestant:
    """``build()``; where that is not to be had, a contestant that says why."""
    try:
        return build()
    except ModuleNotFoundError as error:
        return Contestant(who, None, note=f"not installed: {error}")
    except Exception as error:
        return Contestant(who, None, note=reason(error))


def reason(error: Exception) -> str:
    """An error in one line."""
    first_line, *_ = str(error).splitlines() or [""]
    return f"failed: {type(error).__name__}: {first_line}"


def wall_seconds(run: Callable[[], object], calls: int) -> float:
    """Seconds on the host's clock that ``calls`` calls take."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - start


def cpu_seconds(run: Callable[[], object], calls: int) -> float:
    """Seconds of CPU that ``calls`` calls cost this process, on all its threads together.

    Equals the clock's for one busy thread on an idle machine. Neighbours on a shared machine do not
    count (they doubled the clock's seconds where this was tried), hidden threads do.
    """
    start = time.process_time()
    for _ in range(calls):
        run()
    return time.process_time() - start


def cuda_seconds(run: Callable[[], object], calls: int) -> float:
    """Seconds between two events on the current stream around ``calls`` calls.

    Waits for the whole device on both sides: nobody's left-over work falls into another's turn.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(end)


def compete(
    case: str,
    contestants: Sequence[Contestant],
    *,
    unit: str,
    timer: Timer = wall_seconds,
    rounds: int = 11,
    turn: float = 0.02,
) -> list[Row]:
    """Time everybody round robin, so that drift of clocks and load hits all alike: a row each.

    A turn is as many calls as fill ``turn`` seconds, found while warming up.
    """
    ready: dict[Contestant, int] = {}
    rows = []
    for contestant in contestants:
        if contestant.run is None:
            rows.append(Row(case, contestant.who, None, unit, note=contestant.note))
            continue
        try:
            ready[contestant] = warm_up(contestant.run, timer, turn)
        except Exception as error:
            rows.append(Row(case, contestant.who, None, unit, note=reason(error)))
    turns: dict[Contestant, list[float]] = {contestant: [] for contestant in ready}
    for _ in range(rounds):
        for contestant, calls in ready.items():
            assert contestant.run is not None
            turns[contestant].append(timer(contestant.run, calls) / (calls * contestant.images))
    return [summarise(case, contestant, unit, turns[contestant]) for contestant in ready] + rows


def warm_up(run: Callable[[], object], timer: Timer, turn: float) -> int:
    """Call until compilers, caches and clocks have settled; return how many calls fill a turn."""
    timer(run, 2)
    seconds = min(timer(run, 1) for _ in range(3))
    return max(1, min(1000, round(turn / max(seconds, 1e-9))))


def summarise(case: str, contestant: Contestant, unit: str, seconds: list[float]) -> Row:
    """Median and distance between quartiles, in ``unit``, of seconds an image."""
    values = [FROM_SECONDS[unit](s) for s in seconds]
    low, _, high = statistics.quantiles(values, n=4)
    median = statistics.median(values)
    return Row(case, contestant.who, median, unit, high - low, contestant.note)


def judge(rows: Sequence[Row]) -> list[Row]:
    """Say in the note of each row of ours which peer beats it, if one does."""
    best: dict[str, Row] = {}
    for row in rows:
        if not row.who.startswith((OURS, BOUND)) and row.value is not None:
            best[row.case] = max(row, best.get(row.case, row), key=attrgetter("speed"))

    def judged(row: Row) -> Row:
        peer = best.get(row.case)
        if peer is None or not row.who.startswith(OURS) or not 0 < row.speed < peer.speed:
            return row
        loss = f"LOSES to {peer.who}, {peer.speed / row.speed:.2f} times as fast"
        return replace(row, note="; ".join(filter(None, [loss, row.note])))

    return [judged(row) for row in rows]


def machine() -> str:
    """One line: processor, cores, GPU, versions, load, commit."""
    return f"{host()}; load {os.getloadavg()[0]:.1f}; commit {commit()}"


def host() -> str:
    """What stays the same from call to call: processor, cores, GPU, versions."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [
        f"{processor()}, {cores} cores",
        gpu,
        f"python {platform.python_version()}",
        f"torch {torch.__version__}",
        f"triton {installed('triton')}",
    ]
    return "; ".join(parts)


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def installed(package: str) -> str:
    """The version of a package, or "none"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def commit() -> str:
    """The commit measured, with "-dirty" where files differ from it; "unknown" outside git."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def table(rows: Sequence[Row], *, against: str | None) -> str:
    """The rows as text, case by case, with each one's speed relative to ``against``'s."""
    lines = []
    wide = max((len(row.who) for row in rows), default=0)
    for case, group in groupby(rows, key=attrgetter("case")):
        members = list(group)
        base = next((row.speed for row in members if row.who == against), 0.0)
        unit = members[0].unit
        heading = f"{'speed':>8}  (1 = {against})" if against else ""
        lines += ["", case, f"  {'who':{wide}}  {unit:>10}  {'spread':>10}  {heading}".rstrip()]
        for row in members:
            ratio = figure(row.speed / base if base and row.value is not None else None)
            figures = f"{figure(row.value):>10}  {figure(row.spread):>10}"
            lines.append(f"  {row.who:{wide}}  {figures}  {ratio:>8}  {row.note}".rstrip())
    return "\n".join(lines)


def figure(value: float | None) -> str:
    """A number with three digits that count, or a dash."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def take_stdout() -> TextIO:
    """The standard output, for the caller alone: whatever else is printed goes to stderr for good.

    For good, since C libraries may flush as late as at exit.
    """
    sys.stdout.flush()
    mine = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return mine


def main(
    script: str,
    measure: Callable[[argparse.Namespace], Sequence[Row]],
    *,
    description: str | None = None,
    against: str | None = None,
    configure: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> None:
    """Read the command line, measure, and report as the contract says.

    ``configure`` adds a script's own options; ``against`` is whose speed counts as 1 in the table.
    """
    parser = argparse.ArgumentParser(Path(script).name, description=description)
    parser.add_argument("--json", action="store_true", help="print the rows and nothing else")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write DIR/<script>.json as well")
    configure(parser)
    options = parser.parse_args()
    output = take_stdout()
    line, rows = machine(), judge(measure(options))
    listed = [asdict(row) for row in rows]
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        report = json.dumps({"machine": line, "rows": listed}, indent=1)
        (options.out / f"{Path(script).stem}.json").write_text(report + "\n")
    shown = f"{line}\n{table(rows, against=against)}"
    print(json.dumps(listed, indent=1) if options.json else shown, file=output, flush=True)
