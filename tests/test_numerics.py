"""The contract of bytes: what an audit finds, how things are compiled, who may hold packages."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fnpipe import numerics
from fnpipe.numerics import Finding, audit
from fnpipe.types import ArgumentError, NumericsError


HERE = Path(__file__).name


def by_a_number(x: Tensor) -> Tensor:
    return x / 255


def by_a_tensor(x: Tensor) -> Tensor:
    return x / torch.full_like(x, 255.0)


def found(fn: Callable[..., Any], *example: Tensor) -> list[str]:
    return [f.operation for f in audit(fn, *(example or (torch.ones(4),)))]


def test_a_number_that_divides_is_found_with_its_line():
    (finding,) = audit(by_a_number, torch.ones(1))
    assert finding.operation == "div"
    assert finding.reason == (
        "CUDA multiplies by the reciprocal of a scalar divisor; multiply by a constant"
    )
    line = by_a_number.__code__.co_firstlineno + 1
    assert finding.where == f"{__file__}:{line}: return x / 255"
    assert str(finding) == f"div: {finding.reason} ({finding.where})"


def test_a_tensor_may_divide():
    assert audit(by_a_tensor, torch.ones(4)) == ()


@pytest.mark.parametrize(
    ("fn", "operation"),
    [
        (lambda x: torch.lerp(x, x, 0.5), "lerp"),
        (lambda x: torch.addcmul(x, x, x), "addcmul"),
        (lambda x: x.view(2, 2) @ x.view(2, 2), "mm"),
        (lambda x: x.sum(), "sum"),
        (lambda x: x.mean(), "mean"),
        (lambda x: x.cumsum(0), "cumsum"),
        (lambda x: x.exp(), "exp"),
        (lambda x: x**1.5, "pow"),
        (lambda x: x.sin(), "sin"),
        (lambda x: x.sqrt(), "sqrt"),
        (lambda x: 1 / x, "reciprocal"),
        (lambda x: x.erf(), "erf"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_rounds_in_its_own_way_is_found(fn: Callable[[Tensor], Tensor], operation: str):
    (finding,) = audit(fn, torch.ones(4))
    assert finding.operation == operation
    assert finding.reason == numerics.REASONS.get(operation, "it is not in the vocabulary")
    assert HERE in finding.where


@pytest.mark.parametrize(
    ("fn", "option"),
    [
        (lambda x: torch.add(x, x, alpha=0.3), "alpha"),
        (lambda x: torch.sub(x, x, alpha=0.3), "alpha"),
        (lambda x: torch.rsub(x, 2.0, alpha=0.3), "alpha"),
        (lambda x: torch.round(x, decimals=2), "decimals"),
        (lambda x: torch.div(x, x, rounding_mode="floor"), "rounding_mode"),
        (lambda x: torch.arange(0.0, 0.4, 0.1), "step"),
    ],
    ids=["add", "sub", "rsub", "round", "div", "arange"],
)
def test_an_option_that_makes_an_operation_another_is_found(
    fn: Callable[[Tensor], Tensor], option: str
):
    """Inductor on the CPU gave other words than eager torch for each of these."""
    (finding,) = audit(fn, torch.ones(4))
    assert finding.reason == numerics.OPTIONS[option][1]


def test_options_are_allowed_where_they_change_no_word():
    def fn(x: Tensor) -> Tensor:
        cut = torch.div(x, x, rounding_mode="trunc")[::2]
        return torch.add(cut, torch.arange(0.5, 3.5, 2.0), alpha=1)

    def whole(x: Tensor) -> Tensor:
        return torch.div(torch.add(x, x, alpha=3), x, rounding_mode="floor")

    assert found(fn) == found(whole, torch.ones(4, dtype=torch.int64)) == []


def test_each_place_is_found():
    assert found(lambda x: (x / 3).exp() / 5) == ["div", "exp", "div"]


def test_whole_numbers_may_be_summed():
    assert found(lambda x: x.sum() + x.cumsum(0), torch.ones(4, dtype=torch.int64)) == []


def test_the_vocabulary_is_allowed():
    def fn(x: Tensor, i: Tensor) -> Tensor:
        y = torch.where(x > 0.5, torch.minimum(x * 2 + 1, x), x.floor().abs()).clamp(0, 1).round()
        return torch.stack([y, x[i & 1] - y, (i >> 1).to(torch.float32)]).permute(1, 0)

    assert found(fn, torch.rand(4), torch.arange(4)) == []


def test_a_branch_is_seen_as_the_example_takes_it():
    def fn(x: Tensor) -> Tensor:
        return x.exp() if x.shape[0] > 2 else x

    assert found(fn, torch.ones(2)) == []
    assert found(fn, torch.ones(3)) == ["exp"]


def test_findings_are_values():
    assert Finding("a", "b", "c") == Finding("a", "b", "c")


# Comparing


def test_words_are_compared_not_numbers():
    a = torch.tensor([0.0, 1.0, float("nan"), 2.0])
    assert numerics.count_differences(a, a.clone()) == (0, None)
    b = torch.tensor([-0.0, 1.0, float("nan"), 2.0000002])
    assert numerics.count_differences(a, b) == (2, 0)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.uint8, torch.bool, torch.int64, torch.float64),
        *(torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    ],
)
def test_any_dtype_is_compared(dtype: torch.dtype):
    a = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    b = torch.tensor([[0, 1], [0, 1]]).to(dtype)
    assert numerics.count_differences(a, b) == (1, 2)
    assert numerics.count_differences(a.T, a.T.contiguous()) == (0, None)


def test_other_shapes_and_dtypes_are_refused():
    with pytest.raises(ArgumentError) as caught:
        numerics.count_differences(torch.zeros(2), torch.zeros(3, dtype=torch.int64))
    assert str(caught.value) == "wanted torch.float32 (2,), came torch.int64 (3,)"


def test_the_canary_says_how_many_words_differ_and_which_first():
    numerics.refuse_difference("it", torch.ones(9), torch.ones(9))
    got = torch.ones(9)
    got[3:5] = 2
    with pytest.raises(NumericsError) as caught:
        numerics.refuse_difference("backend 'x'", torch.ones(9), got)
    assert str(caught.value) == (
        "backend 'x' differs from eager in 2 of 9 words, first at 3: "
        f"torch {torch.__version__} on this machine does not keep the contract of equal bytes; "
        "use backend='eager' and please report it with this message"
    )


# Compiling


@pytest.fixture
def inductor() -> Any:
    from torch._inductor import config

    return config


def test_all_is_compiled_as_one_graph_with_the_switches(monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, Any] = {}

    def compile_nothing(fn: Any, **how: Any) -> Any:
        seen.update(how, fn=fn)
        return fn

    monkeypatch.setattr(torch, "compile", compile_nothing)
    made = numerics.compiled(by_a_number)
    assert seen["fullgraph"] is True
    assert seen["options"]["eager_numerics.division_rounding"] is True
    assert seen["options"]["emulate_precision_casts"] is True
    assert made(torch.tensor([255.0])) == 1.0


def test_each_has_a_code_object_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """Dynamo counts recompilations by it."""
    monkeypatch.setattr(torch, "compile", lambda fn, **how: fn)
    one, other = numerics.compiled(by_a_number), numerics.compiled(by_a_number)
    assert len({id(f.__code__) for f in (one, other, by_a_number)}) == 3

    def outer(by: int) -> Callable[..., int]:
        def inner(x: int, *, more: int = 1) -> int:
            return x * by + more

        return inner

    assert numerics.compiled(outer(3))(5) == 16


def test_a_torch_without_a_switch_is_refused(monkeypatch: pytest.MonkeyPatch, inductor: Any):
    monkeypatch.delitem(inductor._config, "emulate_precision_casts")
    with pytest.raises(NumericsError) as caught:
        numerics.options()
    assert str(caught.value) == (
        f"torch {torch.__version__} has no Inductor option emulate_precision_casts, so compiled "
        "code could give other bytes than eager code; fnpipe wants torch 2.11 to 2.14"
    )


def test_an_option_of_speed_that_a_torch_lacks_is_left_out(
    monkeypatch: pytest.MonkeyPatch, inductor: Any
):
    monkeypatch.delitem(inductor._config, "assert_indirect_indexing")
    assert "assert_indirect_indexing" not in numerics.options()


# Packages


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fnpipe"


class Builder:
    """Stands in for AOTInductor: a package is a file that says how often one was built."""

    def __init__(self) -> None:
        self.built = 0

    def make(self, fn: Any, example: Any, path: Path, *, options: Any, dynamic_shapes: Any) -> None:
        assert options["emulate_precision_casts"] is True
        self.built += 1
        path.write_text(f"package {self.built}")

    def load(self, path: str) -> Any:
        return lambda: Path(path).read_text()


@pytest.fixture
def builder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(numerics, "make", made.make)
    monkeypatch.setattr(numerics, "load", made.load)
    return made


def test_a_package_is_built_once(builder: Builder):
    example = [torch.zeros(3)]
    assert numerics.package(by_a_number, example, key="k")() == "package 1"
    assert numerics.package(by_a_number, example, key="k")() == "package 1"
    assert builder.built == 1


def test_another_key_shape_dtype_or_option_is_another_package(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
):
    numerics.package(by_a_number, [torch.zeros(3)], key="k")
    numerics.package(by_a_number, [torch.zeros(3)], key="other")
    numerics.package(by_a_number, [torch.zeros(4)], key="k")
    numerics.package(by_a_number, [torch.zeros(3, dtype=torch.float64)], key="k")
    monkeypatch.setitem(numerics.SPEED, "realize_reads_threshold", 5)
    numerics.package(by_a_number, [torch.zeros(3)], key="k")
    assert builder.built == 5


FORKED = """
import multiprocessing, sys
import torch
from fnpipe import numerics

def scale(x):
    return x * 1.25 + 0.5

def again():  # as torch's DataLoader begins a worker
    torch.set_num_threads(1)
    sys.exit(not torch.equal(run(x), expected))

if __name__ == "__main__":
    torch.set_num_threads(3)
    x = torch.arange(2.0**20)
    run = numerics.package(scale, [x], key="forked")
    expected = run(x)
    child = multiprocessing.get_context("fork").Process(target=again)
    child.start()
    child.join(20)
    if child.exitcode is None:
        child.kill()
        sys.exit("the child hangs")
    sys.exit(child.exitcode)
"""


@pytest.mark.skipif(sys.platform == "darwin" or os.name == "nt", reason="no fork here")
@pytest.mark.skipif(numerics.compiler() is None, reason="no C++ compiler here")
def test_a_package_that_was_used_runs_in_a_child_too(cache: Path, tmp_path: Path):
    """Its kernels take the threads there are, not those there were when it was built."""
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
