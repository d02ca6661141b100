"""What the runs of a fit come to: rows of figures, of pairs and of hashes, and two plots."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import contract
from contract import Row
from fit_runs import Run


KINDS = ("model", "optimizer", "ema", "scheduler", "losses", "metrics")
FIGURES = {
    "seconds": "s",
    "set-up": "s",
    "set-up of the input": "s",
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
    return next((r["error"] for r in runs.values() if "error" in r), "not run: no time was left")


def summary(case: str, who: str, figure: str, runs: list[Run], unit: str) -> Row:
    """Median and distance between quartiles; of rates, the range of seconds in the note."""
    values, note = [run[figure] for run in runs], ""
    if figure == "images/s":
        seconds = [run["seconds"] for run in runs]
        took = f"{min(seconds):.2f} to {max(seconds):.2f} s"
        note = "; ".join(filter(None, [f"{took} in {len(runs)} runs", runs[0]["note"]]))
    return row(case, who, values, unit, note)


def row(case: str, who: str, values: list[float], unit: str, note: str = "") -> Row:
    """Median and distance between quartiles; of pairs there may be none yet."""
    if not values:
        return Row(case, who, None, unit, note="no round in common")
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
    rows, case = [], f"{case}: seconds fewer than {baseline}"
    for name, runs in found.items():
        if name != baseline:
            values, note = paired(runs, found[baseline], fewer), ""
            if values:
                times = statistics.median(paired(runs, found[baseline], lambda a, b: b / a))
                note = f"{times:.2f} times as fast, {min(values):.1f} to {max(values):.1f}"
                note += f" in {len(values)} pairs"
            rows.append(row(case, name, values, "%", note))
    return rows


def fewer(seconds: float, others: float) -> float:
    """By how many percent of the others' seconds these are fewer."""
    return 100 * (1 - seconds / others)


def gains_of(having: dict[int, Run], without: dict[int, Run]) -> list[float]:
    """What an arm saves against another, pair by pair; nothing where one of them failed."""
    return paired(having, without, fewer) if succeeded(having) and succeeded(without) else []


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


def draw(case: str, found: dict[str, dict[int, Run]], file: Path) -> None:
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
        left.text(max(rates), at, f"  {middle:,.0f}", va="center", ha="left")
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
    figure.savefig(file, dpi=150)


def draw_features(case: str, gains: dict[str, list[float]], file: Path) -> None:
    """Seconds saved by each feature, a dot a pair; the last, in grey, is the control."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.4 * len(gains) + 1.8), layout="constrained")
    axes = figure.subplots()
    for at, values in enumerate(gains.values()):
        if values:
            color = "C0" if at < len(gains) - 1 else "0.7"
            axes.barh(at, statistics.median(values), color=color, height=0.6)
        axes.plot(values, [at] * len(values), "k.", markersize=4)
    axes.axvline(0.0, color="k", linewidth=0.8)
    axes.set(
        yticks=range(len(gains)), yticklabels=list(gains), xlabel="% of the fit's seconds saved"
    )
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{case}\ngrey: an arm against itself", fontsize=9)
    figure.savefig(file, dpi=150)
