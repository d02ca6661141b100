"""Complete trainings with the input of every cut, of peers, and none: seconds, waits, hashes.

``python bench/fit.py [--json] [--out DIR] [--epochs 3] [--batch 64] [--size 640] [--records 2048]
[--workers N] [--cores N] [--pairs 5] [--arms A,B] [--ablation] [--plot FILE.png]
[--runs FILE.jsonl] [--budget SECONDS]``

Every run is a process of its own, and everybody has one a round, in turns forwards and backwards;
the baseline has two, so that its own noise is a row. Inside the timer: starting workers, loading,
augmenting, training, EMA, validation and a checkpoint each epoch, the last synchronise. Outside,
as ``set-up``: reading the data set, filling caches, compiling, capturing the step.
``--arm NAME`` is one such run, which prints one line of JSON.

``--runs`` keeps every run as it comes, and a later call takes up those of the same case, code and
machine: with ``--budget``, which starts none that might not end in time, a table can be made in
several short calls. The last, or one of ``--budget 0``, only reports.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import contract
from contract import Row
from fit_report import draw, draw_features, gains_of, report
from fit_runs import Kept, Run, take_up


HERE = Path(__file__).resolve()
AGAIN = " (again)"
NOTHING = "nothing"
"""The control among the features."""
PROCESSES = multiprocessing.get_context("forkserver")
"""Every run's process is a fork of one that has imported what all need, and has done nothing else:
5 s a run of the cut plan on an H200, where imports of its own made it 15."""
PROCESSES.set_forkserver_preload(["training", "detector", "torch._dynamo", "torchvision"])


def one(options: argparse.Namespace) -> int:
    """One run, in this process: a line of JSON on stdout, or a traceback on stderr."""
    output = contract.take_stdout()
    found = tried(options)
    if "error" not in found:
        print(json.dumps(found), file=output, flush=True)
    return int("error" in found)


def tried(options: argparse.Namespace) -> Run:
    """What a run in this process says; ``error`` says why it failed, after a traceback."""
    try:
        import training

        return training.run(options)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"failed: {traceback.format_exception_only(error)[-1].strip()}"}


def start(name: str, options: argparse.Namespace) -> Run:
    """One run, in a process of its own that ``took`` so long; ``error`` says why it failed."""
    workers = workers_of(options)
    asked = argparse.Namespace(
        **(vars(options) | {"arm": name.removesuffix(AGAIN), "workers": workers})
    )
    receiver, sender = PROCESSES.Pipe(duplex=False)
    began = time.monotonic()
    usual = multiprocessing.get_start_method()
    process = PROCESSES.Process(target=tell, args=(sender, asked, usual))
    process.start()
    sender.close()
    try:
        found = answer(receiver, process, options.timeout)
    finally:
        process.kill()
        process.join()
    return found | {"arm": name, "took": time.monotonic() - began}


def answer(receiver: Connection, process: BaseProcess, timeout: float) -> Run:
    """What a process says of its run, once it has ended."""
    if not receiver.poll(timeout):
        return {"error": f"failed: not done after {timeout} s"}
    try:
        found = receiver.recv()
    except EOFError:
        process.join()
        return {"error": f"failed: the process ended with exit code {process.exitcode}"}
    process.join(timeout)
    return found


def tell(sender: Connection, options: argparse.Namespace, usual: str) -> None:
    """A run in a process of its own, and what it says sent to who started it.

    Its workers start as is ``usual``, not as it was started.
    """
    multiprocessing.set_start_method(usual, force=True)
    sender.send(tried(options))


def rounds(names: Sequence[str], pairs: int) -> Iterator[tuple[int, str]]:
    """Whose turn it is: A B C, then C B A, and so on."""
    for turn in range(pairs):
        yield from ((turn, name) for name in (names if turn % 2 == 0 else reversed(names)))


def compete(
    case: str, names: Sequence[str], options: argparse.Namespace, kept: Kept
) -> dict[str, dict[int, Run]]:
    """Every run of every arm, by round: kept ones, and new ones while there is time.

    Who failed in an earlier call is asked again, who failed in this one is not.
    """
    found: dict[str, dict[int, Run]] = {name: {} for name in names}
    failed = set()
    for turn, name in rounds(names, options.pairs):
        run = kept.find(case, name, turn)
        if (run is None or "error" in run) and name not in failed and kept.may_start(name):
            run = start(name, options)
            kept.add(case, turn, run)
            failed |= {name} if "error" in run else set()
            say = run.get("error") or f"{run['seconds']:.2f} s, {run['images/s']:,.0f} images/s"
            print(
                f"round {turn + 1} of {options.pairs}, {name}: {say}", file=sys.stderr, flush=True
            )
        if run is not None:
            found[name][turn] = run
    return found


def case_of(options: argparse.Namespace) -> str:
    """What everybody does."""
    what = "" if options.model == "nano" else f" of {options.model}'s model"
    what += f", all {options.backend}" if options.backend else ""
    return (
        f"fit{what}, {options.epochs} epochs of {options.records} photos, {options.size}, batch "
        f"{options.batch}, {workers_of(options)} workers at most, {cores_of(options)} cores"
    )


def cores_of(options: argparse.Namespace) -> int:
    """How many cores a run may use."""
    return options.cores or len(os.sched_getaffinity(0))


def workers_of(options: argparse.Namespace) -> int:
    """As many workers as cores, if not told."""
    return cores_of(options) if options.workers is None else options.workers


def measure(options: argparse.Namespace) -> list[Row]:
    """The main table, or one feature at a time."""
    from arms import ABLATION, MAIN

    kept = take_up(options.runs, options.budget)
    if options.ablation:
        return ablation(options, ABLATION, kept)
    names = options.arms.split(",") if options.arms else list(MAIN)
    if options.baseline in names:
        names.append(options.baseline + AGAIN)
    case = case_of(options)
    found = compete(case, names, options, kept)
    if options.plot:
        draw(case, found, options.plot)
    return report(case, found, sorted({options.baseline, "fnpipe/finished"}))


def ablation(
    options: argparse.Namespace, features: dict[str, tuple[str, str]], kept: Kept
) -> list[Row]:
    """A table a feature: the arm without it against the arm with it, in the same rounds.

    An arm runs once a round, for all features that want it and for the main table: what is kept of
    that is taken up. The last table is the control, an arm against itself.
    """
    chosen = options.arms.split(",") if options.arms else list(features)
    asked = {feature: features[feature] for feature in chosen}
    arm = next(iter(asked.values()))[1]
    asked[NOTHING] = (arm + AGAIN, arm)
    names = list(dict.fromkeys(name for both in asked.values() for name in both))
    case = case_of(options)
    found = compete(case, names, options, kept)
    rows, gains = [], {}
    for feature, (without, having) in asked.items():
        both = {name: found[name] for name in (without, having)}
        rows += report(f"{feature}: {case}", both, [without])
        gains[feature] = gains_of(found[having], found[without])
    if options.plot:
        draw_features(case, gains, options.plot)
    return rows


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
    parser.add_argument(
        "--runs", type=Path, metavar="FILE.jsonl", help="keep runs, take up its own"
    )
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS",
        help="start no run when less is left than one of its arm took; 0 only reports",
    )  # fmt: skip


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
    # Where the server of PROCESSES finds what it imports.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *sys.path])
    script = str(named(options))
    contract.main(
        script, measure, description=__doc__, against="ultralytics", configure=add_options
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
