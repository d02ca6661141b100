"""``bench/fit.py``: the detector against plain loops, and four cuts that train to equal bytes."""

import argparse
import importlib
import json
import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


BENCH = Path(__file__).resolve().parents[1] / "bench"
KINDS = ("model", "optimizer", "ema", "scheduler", "losses", "metrics")


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("detector")


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, shared_data: Path) -> Iterator[ModuleType]:
    """The module, on the usual photos; afterwards torch is as it was."""
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.setenv("FNPIPE_DATA", str(shared_data))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield importlib.import_module("training")
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # pyright: ignore
    torch.backends.cudnn.deterministic = False


def scene(detector: ModuleType, *, count: int = 40, seed: int = 0) -> tuple[Any, Tensor]:
    """Boxes of all sizes in three pictures of 256 x 128, the second one empty."""
    random = torch.Generator().manual_seed(seed)
    low = torch.rand(count, 2, generator=random) * torch.tensor([220.0, 100.0])
    sides = torch.rand(count, 2, generator=random) ** 3 * 250 + 3
    boxes = torch.cat([low, low + sides], 1)
    owner = torch.arange(count) // (count // 2) * 2
    labels = torch.randint(5, (count,), generator=random)
    return detector.pad(boxes, labels, owner, None, 3)


def owner_of(detector: ModuleType, truth: Any, image: int, x: float, y: float, stride: int) -> int:
    """The smallest box that claims a point, box by box; MOST where none does."""
    level, best = detector.STRIDES.index(stride), (math.inf, detector.MOST)
    for row in range(detector.MOST):
        x0, y0, x1, y1 = truth.boxes[image, row].tolist()
        here = detector.LONGEST[level] < max(x1 - x0, y1 - y0) <= detector.LONGEST[level + 1]
        inside = x0 < x < x1 and y0 < y < y1
        reach = detector.REACH * stride
        near = abs(x - (x0 + x1) / 2) < reach and abs(y - (y0 + y1) / 2) < reach
        if truth.valid[image, row] and here and inside and near:
            best = min(best, ((x1 - x0) * (y1 - y0), row))
    return best[1]


@pytest.mark.parametrize("stride", [8, 16, 32])
def test_assignment_is_the_plain_loops(detector: ModuleType, stride: int) -> None:
    truth, _ = scene(detector)
    height, width = 128 // stride, 256 // stride
    found = detector.assign(truth, height, width, stride)
    expected = [
        [
            [
                owner_of(detector, truth, image, (i + 0.5) * stride, (j + 0.5) * stride, stride)
                for i in range(width)
            ]
            for j in range(height)
        ]
        for image in range(3)
    ]
    assert found.tolist() == expected
    assert (found[1] == detector.MOST).all()
    assert (found < detector.MOST).any()


def plain_loss(detector: ModuleType, maps: list[Tensor], truth: Any) -> float:
    """Cell by cell, class by class, in Python's numbers."""
    total, cells = 0.0, 0
    for level, stride in enumerate(detector.STRIDES):
        rows = detector.assign(truth, *maps[level].shape[2:], stride)
        for image, j, i in torch.cartesian_prod(*map(torch.arange, rows.shape)).tolist():
            row, said = int(rows[image, j, i]), maps[level][image, :, j, i].tolist()
            taken = row < detector.MOST
            wanted = int(truth.labels[image, row]) if taken else -1
            for label, logit in enumerate(said[4:]):
                chance = 1 / (1 + math.exp(-logit))
                total -= math.log(chance if label == wanted else 1 - chance)
            if taken:
                cells += 1
                far = [math.log1p(math.exp(d)) * stride for d in said[:4]]
                x, y = (i + 0.5) * stride, (j + 0.5) * stride
                box = [x - far[0], y - far[1], x + far[2], y + far[3]]
                total += 1 - plain_giou(box, truth.boxes[image, row].tolist())
    return total / max(cells, 1)


def plain_giou(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return width * height / union - (hull - union) / hull


@pytest.mark.parametrize("count", [40, 0])
def test_loss_is_the_plain_loops(detector: ModuleType, count: int) -> None:
    """Of sums of some 3,000 float32 numbers, so to a part in 100,000."""
    truth, _ = scene(detector, count=40)
    if not count:
        truth = detector.Truth.empty(3, torch.device("cpu"))
    random = torch.Generator().manual_seed(1)
    maps = [torch.randn(3, 9, 128 // s, 256 // s, generator=random) for s in (8, 16, 32)]
    found = float(detector.loss_of(maps, truth))
    assert found == pytest.approx(plain_loss(detector, maps, truth), rel=1e-5)


def test_no_gradient_is_missing_or_odd(detector: ModuleType) -> None:
    truth, _ = scene(detector)
    torch.manual_seed(0)
    model = detector.Detector(5)
    detector.loss_of(model(torch.rand(3, 3, 128, 256)), truth).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) < 1_000_000


def test_padding_keeps_every_box_and_crowds_are_none(detector: ModuleType) -> None:
    boxes = torch.tensor([[0, 0, 9, 9], [0, 0, 2, 2], [0, 0, 5, 5], [1, 1, 2, 4]]).float()
    labels, owner = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 0, 2])
    keep = torch.tensor([True, True, False, True])
    truth, fullest = detector.pad(boxes, labels, owner, keep, 3)
    assert truth.boxes.shape == (3, detector.MOST, 4)
    assert truth.valid.sum(1).tolist() == [2, 0, 1]
    assert truth.labels[0, :2].tolist() == [1, 0]
    assert truth.boxes[2, 0].tolist() == [1, 1, 2, 4]
    assert int(fullest) == 3


def test_more_boxes_than_there_is_room_are_refused(detector: ModuleType) -> None:
    step = detector.Step(5, 1, 64, 1, torch.device("cpu"), seed=0)
    count = detector.MOST + 1
    boxes = torch.tensor([[2.0, 2.0, 30.0, 30.0]]).expand(count, 4)
    zeros = torch.zeros(count, dtype=torch.int64)
    step(torch.zeros(1, 3, 64, 64), *detector.pad(boxes, zeros, zeros, None, 1))
    message = f"an image wanted at most {detector.MOST} boxes, came {count}: raise MOST"
    with pytest.raises(ValueError, match=message):
        step.check()


def test_a_step_is_one_that_a_graph_can_hold(detector: ModuleType) -> None:
    """No operator that waits for the device, or has no deterministic form on CUDA."""
    forbidden = (
        "_local_scalar_dense", "nonzero", "masked_select", "index_put", "index_add", "scatter",
        "cumsum", "cumprod", "prod", "upsample", "unique", "bincount", "embedding", "nll_loss2d",
        "max_pool", "grid_sampler", "kthvalue", "put_", "index.Tensor",
    )  # fmt: skip
    seen: list[str] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    step = detector.Step(5, 2, 64, 4, torch.device("cpu"), seed=0)
    with Log():
        step.again()
    assert len(seen) > 300
    assert not [name for name in seen if any(word in name for word in forbidden)]


def test_warming_up_leaves_no_trace(detector: ModuleType) -> None:
    step = detector.Step(5, 1, 64, 20, torch.device("cpu"), seed=3)
    torch.manual_seed(3)
    fresh = detector.Detector(5).state_dict()
    for name, value in step.model.state_dict().items():
        assert torch.equal(value, fresh[name]), name
    assert not any(v.any() for s in step.optimizer.state.values() for v in s.values())
    assert step.optimizer.param_groups[0]["lr"] is step.rate
    assert int(step.position) == 0


def options(arm: str, **given: Any) -> argparse.Namespace:
    base = {"epochs": 2, "batch": 4, "size": 64, "records": 16, "workers": 0, "cores": None}
    return argparse.Namespace(arm=arm, backend="eager", model="nano", **(base | given))


def test_every_cut_trains_to_equal_bytes(training: ModuleType) -> None:
    runs = [
        training.run(options("fnpipe/finished")),
        training.run(options("fnpipe/warped")),
        training.run(options("fnpipe/source", workers=1)),
        training.run(options("fnpipe/plan")),
        training.run(options("fnpipe/source without pool")),
    ]
    for kind in KINDS:
        assert len({run["hashes"][kind] for run in runs}) == 1, kind
    assert len(set(runs[0]["hashes"].values())) == len(KINDS)
    assert len({run["stream"] for run in runs}) == 1


def test_the_detector_learns(training: ModuleType) -> None:
    """A batch by heart, and something of photos that it never sees twice alike."""
    heart = training.run(options("bound/model", epochs=8))
    assert heart["loss of the last epoch"] < 0.7 * heart["loss of the first epoch"]
    found = training.run(options("fnpipe/finished", epochs=8))
    assert found["loss of the last epoch"] < 0.95 * found["loss of the first epoch"]
    assert found["images/s"] == pytest.approx(128 / found["seconds"])
    assert 0 <= found["input wait"] <= 100
    assert math.isfinite(found["metrics"][-1][0])


def test_a_byte_of_a_batch_changes_the_hashes(
    training: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver calls EQUAL must come out different where one pixel of one batch is."""
    one = training.run(options("fnpipe/finished", epochs=1))
    arms = importlib.import_module("arms")
    ready = arms.ours_ready

    def spoilt(batch: Any) -> Any:
        images, *rest = ready(batch)
        images[:, 0, 0, 0] += (batch.ids == 3) / 255
        return images, *rest

    monkeypatch.setattr(arms, "ours_ready", spoilt)
    other = training.run(options("fnpipe/finished", epochs=1))
    differ = [kind for kind in KINDS if one["hashes"][kind] != other["hashes"][kind]]
    assert {"model", "optimizer", "ema", "losses"} <= set(differ)
    assert "scheduler" not in differ


def fake(seconds: float, *, name: str = "fnpipe/plan", model: str = "0" * 64) -> dict[str, Any]:
    """A run as its process tells of it."""
    figures = dict.fromkeys(importlib.import_module("fit_report").FIGURES, 1.0)
    hashes = dict.fromkeys(KINDS, "0" * 64) | {"model": model}
    own = {"arm": name, "stream": "", "note": "", "hashes": hashes, "GPU memory": None, "took": 9.0}
    return figures | own | {"seconds": seconds, "images/s": 60 / seconds}


def test_arms_take_turns_forwards_and_backwards(detector: ModuleType) -> None:
    rounds = list(importlib.import_module("fit").rounds("abc", 2))
    assert rounds == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a")]


def test_the_report_pairs_rounds_and_counts_hashes(detector: ModuleType) -> None:
    fit = importlib.import_module("fit_report")
    plan = {turn: fake(seconds) for turn, seconds in enumerate((1.0, 2.0, 6.0))}
    odd = {0: fake(3.0, name="fnpipe/source", model="f" * 64), 1: fake(4.0), 2: fake(3.0)}
    bound = {turn: fake(1.0, name="bound/model") | {"stream": None} for turn in range(3)}
    gone = {0: {"arm": "peer", "error": "failed: OSError: no"}}
    found = {"fnpipe/plan": plan, "fnpipe/source": odd, "bound/model": bound, "peer": gone}
    rows = {(r.case, r.who): r for r in fit.report("c", found, ["fnpipe/source", "peer"])}
    assert rows["c", "fnpipe/plan"].value == 30.0
    assert rows["c", "peer"].note == "failed: OSError: no"
    fewer = rows["c: seconds fewer than fnpipe/source", "fnpipe/plan"]
    assert fewer.value == 50.0  # of 66.7, 50 and -100
    assert fewer.note == "2.00 times as fast, -100.0 to 66.7 in 3 pairs"
    assert rows["c: idle, against bound/model", "fnpipe/plan"].value == 50.0
    assert rows["c: hashes", "fnpipe/model"].value == 2
    assert rows["c: hashes", "fnpipe/model"].note.startswith("DIFFERENT in 6 runs of 2 arms")
    assert rows["c: hashes", "fnpipe/ema"].value == 1
    assert rows["c: hashes", "fnpipe/ema"].note.startswith(
        "EQUAL in 6 runs of 2 arms: plan, source"
    )
    assert not [case for case, _ in rows if "GPU memory" in case]


def test_an_arm_of_fewer_rounds_is_compared_where_both_ran(detector: ModuleType) -> None:
    fit = importlib.import_module("fit_report")
    plan = {turn: fake(1.0 + turn) for turn in range(3)}
    found = {"fnpipe/plan": plan, "peer": {1: fake(4.0)}, "late": {3: fake(5.0)}, "never": {}}
    rows = {(r.case, r.who): r for r in fit.report("c", found, ["peer"])}
    assert rows["c", "peer"].note.startswith("4.00 to 4.00 s in 1 runs")
    assert rows["c", "never"].value is None
    assert rows["c", "never"].note == "not run: no time was left"
    fewer = "c: seconds fewer than peer"
    assert rows[fewer, "fnpipe/plan"].value == 50.0
    assert rows[fewer, "fnpipe/plan"].note.endswith("50.0 to 50.0 in 1 pairs")
    assert rows[fewer, "late"].value is None
    assert rows[fewer, "late"].note == "no round in common"
    gains = [fit.gains_of(found[name], found["peer"]) for name in ("fnpipe/plan", "late", "never")]
    assert gains == [[50.0], [], []]


@pytest.fixture
def started(detector: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all runs that the driver starts, each of which takes a second by itself."""
    names: list[str] = []

    def start(name: str, options: argparse.Namespace) -> dict[str, Any]:
        names.append(name)
        if name == "breaks":
            return {"arm": name, "error": "failed: OSError: no", "took": 1.0}
        return fake(2.0, name=name)

    monkeypatch.setattr(importlib.import_module("fit"), "start", start)
    return names


def compete(file: Path | None, names: str, *, budget: float = math.inf, case: str = "c") -> Any:
    """The arms of one case, in two rounds."""
    kept = importlib.import_module("fit_runs").take_up(file, budget)
    options = argparse.Namespace(pairs=2)
    return importlib.import_module("fit").compete(case, names.split(), options, kept)


def test_kept_runs_are_taken_up_and_not_made_again(started: list[str], tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    first = compete(file, "a b")
    assert started == ["a", "b", "b", "a"]
    assert compete(file, "a b c") == first | {"c": {0: fake(2.0, name="c"), 1: fake(2.0, name="c")}}
    assert started[4:] == ["c", "c"]
    compete(file, "a", case="another")
    assert started[6:] == ["a", "a"]
    assert len(file.read_text().splitlines()) == 8


def test_an_arm_runs_once_a_round_for_all_features(started: list[str], tmp_path: Path) -> None:
    fit = importlib.import_module("fit")
    options = argparse.Namespace(
        pairs=2, arms=None, model="nano", backend=None, epochs=1, records=8, size=64, batch=4,
        workers=2, cores=2, plot=tmp_path / "features.png",
    )  # fmt: skip
    kept = importlib.import_module("fit_runs").take_up(None, math.inf)
    features = {"cache": ("slow", "fast"), "fused": ("eager", "fast")}
    rows = {(r.case, r.who): r for r in fit.ablation(options, features, kept)}
    assert started[:4] == ["slow", "fast", "eager", "fast (again)"] == started[:3:-1]
    case = fit.case_of(options)
    for feature, without in (("cache", "slow"), ("fused", "eager"), ("nothing", "fast (again)")):
        saved = rows[f"{feature}: {case}: seconds fewer than {without}", "fast"]
        assert (saved.value, saved.note) == (0.0, "1.00 times as fast, 0.0 to 0.0 in 2 pairs")
    assert options.plot.stat().st_size > 10_000


def test_a_run_cut_off_or_of_other_code_is_left_out_and_said(
    started: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.jsonl"
    compete(file, "a")
    one, two = file.read_text().splitlines()
    other = json.dumps(json.loads(one) | {"code": "older"})
    file.write_text(f"{other}\n{two}\n{one[:60]}")
    capsys.readouterr()
    compete(file, "a")
    assert started == ["a", "a", "a"]
    told = capsys.readouterr().err
    assert "1 runs taken up, 2 left out: of other code, another machine, or cut off" in told
    assert compete(file, "a", budget=0)["a"].keys() == {0, 1}


def test_no_run_starts_that_might_not_end_in_time(started: list[str], tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    assert compete(None, "a", budget=0) == {"a": {}}
    assert compete(file, "a b", budget=5)["a"].keys() == {0}  # it took 9
    assert started == ["a"]
    assert compete(file, "a b", budget=8) == {"a": {0: fake(2.0, name="a")}, "b": {}}
    assert compete(file, "a b", budget=100)["b"].keys() == {0, 1}


def test_an_arm_that_is_quick_may_start_later(detector: ModuleType) -> None:
    kept = importlib.import_module("fit_runs").take_up(None, 5.0)
    kept.hold("c", 0, fake(2.0, name="slow"))
    kept.hold("c", 0, fake(2.0, name="quick") | {"took": 1.0})
    assert [kept.may_start(name) for name in ("slow", "quick", "new")] == [False, True, False]


def test_who_failed_is_asked_again_by_a_later_call_only(started: list[str], tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    compete(file, "breaks a")
    assert started == ["breaks", "a", "a"]
    found = compete(file, "breaks a", budget=0)
    assert found["breaks"][0]["error"] == "failed: OSError: no"
    compete(file, "breaks a")
    assert started[3:] == ["breaks"]


def test_a_process_that_dies_is_a_failure(detector: ModuleType) -> None:
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=os.abort)
    process.start()
    sender.close()
    found = importlib.import_module("fit").answer(receiver, process, 60.0)
    assert found == {"error": "failed: the process ended with exit code -6"}


def test_who_fails_is_a_row_that_says_so() -> None:
    command = [sys.executable, str(BENCH / "fit.py"), "--json", "--pairs", "1", "--arms", "nobody"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["who"], row["value"], row["note"]) == (
        "nobody",
        None,
        "failed: KeyError: 'nobody'",
    )
    assert "Traceback" in done.stderr
