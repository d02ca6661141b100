"""Complete trainings with the input of every cut, of peers, and none: seconds, waits, hashes.

``python bench/fit.py [--json] [--out DIR] [--epochs 3] [--batch 64] [--size 640] [--records 2048]
[--workers N] [--cores N] [--pairs 5] [--arms A,B] [--ablation] [--plot FILE.png]``

Every run is a process of its own, and everybody has one a round, in turns forwards and backwards;
the baseline has two, so that its own noise is a row. Inside the timer: starting workers, loading,
augmenting, training, EMA, validation and a checkpoint each epoch, the last synchronise. Outside,
as ``set-up``: imports, reading the data set, filling caches, compiling, capturing the step.
``--arm NAME`` is one such run, which prints one line of JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import contract
from contract import Row


HERE = Path(__file__).resolve()
KINDS = ("model", "optimizer", "ema", "scheduler", "losses", "metrics")
AGAIN = " (again)"
FIGURES = {
    "seconds": "s",
    "set-up": "s",
    "input wait": "%",
    "input wait after the first batch": "%",
    "between steps": "%",
    "outside the step": "%",
    "a step": "ms",
    "host's work a step": "ms",
    "CPU": "s",
    "GPU memory": "GB",
    "loss of the first epoch": "loss",
    "loss of the last epoch": "loss",
    "objects hit": "%",
}
"""What a run says of itself, and in which unit."""
Run = dict[str, Any]


def one(options: argparse.Namespace) -> int:
    """One run, in this process: a line of JSON on stdout, or a traceback on stderr."""
    output = contract.take_stdout()
    try:
        import training

        options.workers = workers_of(options)
        found = training.run(options)
    except Exception:
        traceback.print_exc()
        return 1
    print(json.dumps(found), file=output, flush=True)
    return 0


def start(name: str, options: argparse.Namespace) -> Run:
    """One run, in a process of its own; where it fails, ``error`` says why."""
    given = ("epochs", "batch", "size", "records", "workers", "cores", "backend", "model")
    asked = {key: getattr(options, key) for key in given if getattr(options, key) is not None}
    words = [f"--{key}={value}" for key, value in asked.items()]
    command = [sys.executable, str(HERE), "--arm", name.removesuffix(AGAIN), *words]
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.timeout, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"arm": name, "error": f"failed: not done after {options.timeout} s"}
    if done.returncode:
        sys.stderr.write(done.stderr)
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return {"arm": name, "error": f"failed: {last}"}
    return json.loads(done.stdout.splitlines()[-1]) | {"arm": name}


def rounds(names: Sequence[str], pairs: int) -> Iterator[tuple[int, str]]:
    """Whose turn it is: A B C, then C B A, and so on."""
    for turn in range(pairs):
        yield from ((turn, name) for name in (names if turn % 2 == 0 else reversed(names)))


def compete(names: Sequence[str], options: argparse.Namespace) -> dict[str, dict[int, Run]]:
    """Every run of every arm, by round. Who failed once is not asked again."""
    found: dict[str, dict[int, Run]] = {name: {} for name in names}
    for turn, name in rounds(names, options.pairs):
        if any("error" in run for run in found[name].values()):
            continue
        found[name][turn] = run = start(name, options)
        told = run.get("error") or f"{run['seconds']:.2f} s, {run['images/s']:,.0f} images/s"
        print(f"round {turn + 1} of {options.pairs}, {name}: {told}", file=sys.stderr, flush=True)
    return found


def case_of(options: argparse.Namespace) -> str:
    """What everybody does."""
    model = "" if options.model == "nano" else f" of {options.model}'s model"
    return (
        f"fit{model}, {options.epochs} epochs of {options.records} photos, {options.size}, batch "
        f"{options.batch}, {workers_of(options)} workers, {cores_of(options)} cores"
    )


def cores_of(options: argparse.Namespace) -> int:
    """How many cores a run may use."""
    return options.cores or len(os.sched_getaffinity(0))


def workers_of(options: argparse.Namespace) -> int:
    """As many workers as cores, if not told."""
    return cores_of(options) if options.workers is None else options.workers


def report(case: str, found: dict[str, dict[int, Run]], baselines: Sequence[str]) -> list[Row]:
    """All rows: rates first, then each figure, then paired reductions, then hashes."""
    good = {name: list(runs.values()) for name, runs in found.items() if succeeded(runs)}
    rows = [
        summary(case, name, "images/s", good[name], "images/s") if name in good
        else Row(case, name, None, "images/s", note=failure(runs))
        for name, runs in found.items()
    ]  # fmt: skip
    for figure, unit in FIGURES.items():
        measured = {n: runs for n, runs in good.items() if runs[0][figure] is not None}
        rows += [summary(f"{case}: {figure}", n, figure, r, unit) for n, r in measured.items()]
    for baseline in baselines:
        if baseline in good:
            rows += reductions(case, {n: found[n] for n in good}, baseline)
    if "bound/model" in good:
        rows += idle(case, {n: found[n] for n in good})
    return rows + equal(case, good)


def succeeded(runs: dict[int, Run]) -> bool:
    """Whether every run of an arm came to its end."""
    return bool(runs) and not any("error" in run for run in runs.values())


def failure(runs: dict[int, Run]) -> str:
    """Why an arm has no figure."""
    return next((run["error"] for run in runs.values() if "error" in run), "not run")


def summary(case: str, who: str, figure: str, runs: list[Run], unit: str) -> Row:
    """Median and distance between quartiles; of rates, the range of seconds in the note."""
    values, note = [run[figure] for run in runs], ""
    if figure == "images/s":
        seconds = [run["seconds"] for run in runs]
        took = f"{min(seconds):.2f} to {max(seconds):.2f} s"
        note = "; ".join(filter(None, [f"{took} in {len(runs)} runs", runs[0]["note"]]))
    return row(case, who, values, unit, note)


def row(case: str, who: str, values: list[float], unit: str, note: str = "") -> Row:
    """Median and distance between quartiles."""
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else None
    spread = quartiles[2] - quartiles[0] if quartiles else None
    return Row(case, who, statistics.median(values), unit, spread, note)


def paired(
    runs: dict[int, Run], others: dict[int, Run], what: Callable[[float, float], float]
) -> list[float]:
    """``what`` of the seconds of two arms, round by round."""
    both = sorted(runs.keys() & others.keys())
    return [what(runs[turn]["seconds"], others[turn]["seconds"]) for turn in both]


def reductions(case: str, found: dict[str, dict[int, Run]], baseline: str) -> list[Row]:
    """By how much of the baseline's seconds each arm's are fewer, in pairs of one round."""
    rows = []
    for name, runs in found.items():
        if name != baseline:
            values = paired(runs, found[baseline], lambda a, b: 100 * (1 - a / b))
            times = paired(runs, found[baseline], lambda a, b: b / a)
            note = f"{min(values):.1f} to {max(values):.1f} in {len(values)} pairs"
            note = f"{statistics.median(times):.2f} times as fast, {note}"
            rows.append(row(f"{case}: seconds fewer than {baseline}", name, values, "%", note))
    return rows


def idle(case: str, found: dict[str, dict[int, Run]]) -> list[Row]:
    """The share of a fit in which the model could have run, had its batches been there."""
    bound, case = found["bound/model"], f"{case}: idle, against bound/model"
    return [
        row(case, name, paired(runs, bound, lambda a, b: 100 * (1 - b / a)), "%")
        for name, runs in found.items()
        if name != "bound/model"
    ]


def equal(case: str, good: dict[str, list[Run]]) -> list[Row]:
    """How many different hashes of each kind our arms have that see the same bytes: 1 is wanted."""
    streams: dict[str, list[Run]] = defaultdict(list)
    for runs in good.values():
        for run in runs:
            if run["stream"] is not None:
                streams[run["stream"]].append(run)
    rows = []
    for runs in streams.values():
        arms = list(dict.fromkeys(run["arm"] for run in runs))
        for kind in KINDS:
            count = len({run["hashes"][kind] for run in runs})
            note = f"{'EQUAL' if count == 1 else 'DIFFERENT'} in {len(runs)} runs of {len(arms)}"
            note += f" arms: {', '.join(a.removeprefix(contract.OURS) for a in arms)}"
            note += f"; {runs[0]['hashes'][kind][:16]}"
            rows.append(
                Row(f"{case}: hashes", f"{contract.OURS}{kind}", count, "hashes", note=note)
            )
    return rows


def measure(options: argparse.Namespace) -> list[Row]:
    """The main table, or one feature at a time."""
    from arms import ABLATION, MAIN

    if options.ablation:
        return ablation(options, ABLATION)
    names = options.arms.split(",") if options.arms else list(MAIN)
    if options.baseline in names:
        names.append(options.baseline + AGAIN)
    found = compete(names, options)
    rows = report(case_of(options), found, sorted({options.baseline, "fnpipe/finished"}))
    if options.plot:
        plot(case_of(options), found, options)
    return rows


def ablation(options: argparse.Namespace, features: dict[str, tuple[str, str]]) -> list[Row]:
    """A table a feature: the arm without it, the arm with it, and the first once more."""
    chosen = options.arms.split(",") if options.arms else list(features)
    rows, gains = [], {}
    for feature in chosen:
        without, having = features[feature]
        found = compete([without, having, without + AGAIN], options)
        rows += report(f"{feature}: {case_of(options)}", found, [without])
        gains[feature] = [
            paired(found[name], found[without], lambda a, b: 100 * (1 - a / b))
            for name in (having, without + AGAIN)
            if succeeded(found[name]) and succeeded(found[without])
        ]
    if options.plot:
        plot_features(case_of(options), gains, options.plot)
    return rows


def plot_features(case: str, gains: dict[str, list[list[float]]], file: Path) -> None:
    """Seconds saved by each feature, a dot a pair; in grey, by nothing at all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.5 * len(gains) + 1.8), layout="constrained")
    axes = figure.subplots()
    for at, both in enumerate(gains.values()):
        for values, color, shift in zip(both, ("C0", "0.7"), (-0.17, 0.17), strict=False):
            axes.barh(at + shift, statistics.median(values), color=color, height=0.32)
            axes.plot(values, [at + shift] * len(values), "k.", markersize=4)
    axes.axvline(0.0, color="k", linewidth=0.8)
    axes.set(
        yticks=range(len(gains)), yticklabels=list(gains), xlabel="% of the fit's seconds saved"
    )
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{case}\ngrey: the same arm against itself", fontsize=9)
    figure.savefig(file, dpi=150)


def plot(case: str, found: dict[str, dict[int, Run]], options: argparse.Namespace) -> None:
    """Images a second, a bar an arm and a dot a run; and the part of each fit spent in steps."""
    from matplotlib.figure import Figure

    good = {name: list(runs.values()) for name, runs in found.items() if succeeded(runs)}
    names = sorted(good, key=lambda n: statistics.median(r["images/s"] for r in good[n]))
    figure = Figure(figsize=(11, 0.5 * len(names) + 1.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for at, name in enumerate(names):
        rates = [run["images/s"] for run in good[name]]
        ours, bound = name.startswith(contract.OURS), name.startswith(contract.BOUND)
        color = "C0" if ours else "0.8" if bound else "C1"
        left.barh(at, middle := statistics.median(rates), color=color, height=0.7)
        left.plot(rates, [at] * len(rates), "k.", markersize=4)
        left.text(middle, at, f" {middle:,.0f}", va="center", ha="left")
        inside = statistics.median(100 - run["outside the step"] for run in good[name])
        right.barh(at, inside, color=color, height=0.7)
        right.text(inside, at, f" {inside:.0f} %", va="center", ha="left")
    left.set(yticks=range(len(names)), yticklabels=names, xlabel="images a second, whole fit")
    left.margins(x=0.15)
    right.set(xlabel="% of the fit in which the model trains", xlim=(0, 112))
    for panel in (left, right):
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(case, fontsize=10)
    figure.savefig(options.plot, dpi=150)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What a run is told."""
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--records", type=int, default=2048, help="photos an epoch, in turns")
    parser.add_argument("--cores", type=int, help="how many cores a run may use; all if left out")
    parser.add_argument("--workers", type=int, help="as many as cores if left out")
    parser.add_argument("--backend", help="ours on both sides; the fastest if left out")
    parser.add_argument("--model", default="nano", choices=["nano", "torchvision"])


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the driver is told."""
    add_run_options(parser)
    parser.add_argument("--pairs", type=int, default=5, help="rounds: runs of each arm")
    parser.add_argument("--arms", help="names, by commas; with --ablation, of features")
    parser.add_argument("--baseline", default="ultralytics", help="whose run is repeated")
    parser.add_argument("--ablation", action="store_true", help="one feature at a time")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a run may take")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the table")


def named(options: argparse.Namespace) -> Path:
    """This script, named by what it measures: ``--out`` writes a file of that name."""
    parts = ["fit", "ablation" if options.ablation else ""]
    parts.append("" if options.model == "nano" else options.model)
    parts.append(f"{options.cores}-cores" if options.cores else "")
    return HERE.with_name("-".join(filter(None, parts)) + ".py")


def main() -> int:
    """One run where ``--arm`` is given, else the driver."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arm")
    add_options(parser)
    options, _ = parser.parse_known_args()
    if options.arm:
        return one(options)
    script = str(named(options))
    contract.main(
        script, measure, description=__doc__, against="ultralytics", configure=add_options
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
