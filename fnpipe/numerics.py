"""The contract that makes bytes equal: a vocabulary, an audit, one ``torch.compile``, one package.

Allowed in pixel code: ``+ - *``, tensor / tensor division, ``minimum maximum clamp where floor
round abs``, comparisons, integer arithmetic, casts, gathers. Each has one correctly rounded answer.
What stands outside, and why, is in :data:`REASONS`.

Everything fnpipe compiles goes through :func:`compiled` or :func:`package`, with the same switches.
Without them Inductor fuses ``a * b + c`` into one rounding and divides approximately on CUDA: of
78.6 million words of colour arithmetic 11.2 million came out different from the eager CPU's on an
H200; with both switches none did.
"""

import hashlib
import inspect
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fnpipe.cache import cache_folder
from fnpipe.packages import compiler as compiler
from fnpipe.packages import load as load
from fnpipe.packages import make
from fnpipe.types import ArgumentError, NumericsError


SWITCHES: dict[str, Any] = {
    "eager_numerics.division_rounding": True,
    "emulate_precision_casts": True,
}
"""Inductor options without which bytes differ: IEEE division, no contraction of ``a * b + c``."""

SPEED: dict[str, Any] = {
    # Every look-up lies inside its bordered source by construction (properties/test_render.py).
    "assert_indirect_indexing": False,
    # At the default of 30 operations Inductor writes masks to memory between loops, byte by byte.
    "realize_opcount_threshold": 100,
    "realize_reads_threshold": 30,
    # Else a kernel asks for as many threads as there were when it was built, 16 of them in each of
    # 16 workers, and one that was forked may wait for ever for those that it left behind.
    "cpp.dynamic_threads": True,
}
"""Inductor options that no byte depends on; one that a torch version lacks is left out."""

VOCABULARY = frozenset(
    "__and__ __lshift__ __or__ __rshift__ _to_copy _unsafe_view abs add alias arange "
    "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor "
    "broadcast_to cat ceil clamp clamp_max clamp_min clone copy copy_ detach div empty eq "
    "expand expand_as fill flip floor full full_like gather ge gt index index_select le "
    "lift_fresh_copy logical_and logical_not logical_or lt maximum minimum mul ne neg new_full "
    "new_zeros ones ones_like permute relu reshape round rsub scalar_tensor select sign slice "
    "split split_with_sizes squeeze stack sub to transpose trunc unbind unsqueeze view where "
    "zeros zeros_like".split()
)
"""ATen operations (without overload) that give the same bits on every backend."""

REASONS = {
    "lerp": "its formula differs between the CPU and CUDA",
    "addcmul": "it is fused into one rounding on some backends",
    "addcdiv": "it is fused into one rounding on some backends",
    "mm": "the order of its sums depends on the library",
    "bmm": "the order of its sums depends on the library",
    "sum": "the order of a float sum depends on the device",
    "mean": "the order of a float sum depends on the device",
    "cumsum": "the order of a float sum depends on the device",
    "grid_sampler_2d": "each device has a rounding of its own; use fnpipe's warp",
    "affine_grid_generator": "each device has a rounding of its own; use a plan's maps",
    "upsample_bilinear2d": "each device has a rounding of its own; use fnpipe's resize",
    "exp": "each library rounds it its own way",
    "log": "each library rounds it its own way",
    "pow": "each library rounds it its own way; multiply instead",
    "sin": "each library rounds it its own way; draw it on the host",
    "cos": "each library rounds it its own way; draw it on the host",
    "sqrt": "CUDA compiles it to an approximation under some flags",
    "reciprocal": "a * (1 / b) is not a / b: it changed 56,055 of 786,432 words",
}
OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "alpha": (lambda a: a == 1, "it is fused into one rounding on some backends; multiply apart"),
    "decimals": (lambda d: d == 0, "compilers multiply by a power of ten's reciprocal"),
    "rounding_mode": (lambda m: m != "floor", "compilers round down a quotient that was rounded"),
    "step": (lambda s: s % 1 == 0, "each backend adds fractions its own way; scale integers"),
}
"""What an option may be of floats. Others changed 15 to 1,259 of 4,099 words under Inductor."""
MACHINERY = {"torch", "jaxtyping", "beartype"}
"""Packages whose lines on a stack are not what called an operation: torch, and who checks types."""
SCALAR_DIVISOR = "CUDA multiplies by the reciprocal of a scalar divisor; multiply by a constant"


@dataclass(frozen=True)
class Finding:
    """One operation outside the vocabulary: which, why, and the source line it came from."""

    operation: str
    reason: str
    where: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.reason} ({self.where})"


def audit(fn: Callable[..., Any], *example: Any) -> tuple[Finding, ...]:
    """Every operation of ``fn`` that can give other bits on another backend; empty is a pass.

    ``fn`` is run on ``example`` (tensors of the right dtype; one element is enough), so branches
    on Python values are seen as the example takes them. Float sums are found, integer sums allowed.
    What says of itself that it is not ``portable`` (:func:`fnpipe.adapters.foreign.foreign`) is
    found without being run.
    """
    if not getattr(fn, "portable", True):
        return (Finding(repr(fn), "code of others, which promises no bytes", "declared"),)
    try:
        inspect.signature(fn).bind(*example)
    except TypeError:
        raise ArgumentError(
            "audit wanted a function and an example of its arguments, came "
            f"{fn!r:.60} and {len(example)} of them"
        ) from None
    with _Recorder() as seen:
        fn(*example)
    return tuple(seen.found)


class _Recorder(TorchDispatchMode):
    """Watches every ATen operation that runs, and keeps those outside the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Finding] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        reason = _reason(name, given | (kwargs or {}), out)
        if reason is not None:
            self.found.append(Finding(name, reason, _line()))
        return out


def _reason(name: str, given: dict[str, Any], out: Any) -> str | None:
    """Why an operation with the arguments ``given`` is outside the vocabulary, or None."""
    whole = isinstance(out, Tensor) and not out.is_floating_point()
    if name == "div" and not isinstance(given["other"], Tensor):
        return SCALAR_DIVISOR
    for option, (allowed, reason) in OPTIONS.items():
        if option in given and not whole and not allowed(given[option]):
            return reason
    if name in VOCABULARY or (whole and name in ("sum", "cumsum")):
        return None
    return REASONS.get(name, "it is not in the vocabulary")


def _line() -> str:
    """The innermost line on the stack that is no machinery's: file:line: code."""
    for frame in reversed(traceback.extract_stack()):
        parts = set(Path(frame.filename).parts)
        if frame.filename != __file__ and not parts & MACHINERY:
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return "source line unknown"


def options() -> dict[str, Any]:
    """Inductor's options for every compilation here.

    Errors: NumericsError where this torch lacks a switch that bytes depend on.
    """
    from torch._inductor import config

    known = config._config  # type: ignore[attr-defined]
    missing = [name for name in SWITCHES if name not in known]
    if missing:
        raise NumericsError(
            f"torch {torch.__version__} has no Inductor option {' nor '.join(missing)}, so "
            "compiled code could give other bytes than eager code; fnpipe wants torch 2.11 to 2.14"
        )
    return SWITCHES | {name: v for name, v in SPEED.items() if name in known}


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` under ``torch.compile``: one graph, the switches, a code object of its own.

    Sizes are those of the first call but where :func:`any_batch` leaves them open. Dynamo counts
    recompilations per code object; a copy for every caller keeps one pipeline's count from using
    up another's.
    """
    own = types.FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    own.__kwdefaults__ = fn.__kwdefaults__
    return torch.compile(own, fullgraph=True, options=options())


@contextmanager
def any_batch(tensors: Sequence[Tensor]) -> Iterator[None]:
    """While a call of :func:`compiled` may compile: leave the tensors' first dimension open.

    So another batch size or buffer length is no other compilation. A batch of one is, once. All
    else is shut: Dynamo, which remembers what it met by line of code, would make variables of
    height and width, and of a finish's scales, once it met two recipes. A kernel of open sizes
    takes 0.8 ms for 0.3 on an H200.
    """
    for t in tensors:
        torch._dynamo.maybe_mark_dynamic(t, 0)
        for dimension in range(1, t.dim()):
            torch._dynamo.mark_static(t, dimension)
    with torch._dynamo.config.patch(specialize_int=True, specialize_float=True):
        yield


def count_differences(expected: Tensor, got: Tensor) -> tuple[int, int | None]:
    """How many words differ in bits, and the flat index of the first."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        raise ArgumentError(
            f"wanted {expected.dtype} {tuple(expected.shape)}, came {got.dtype} {tuple(got.shape)}"
        )
    a, b = (_bits(t.detach().cpu()) for t in (expected, got))
    different = (a != b).flatten().nonzero()
    return len(different), int(different[0]) if len(different) else None


def _bits(t: Tensor) -> Tensor:
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if not t.is_floating_point():
        return t
    return t.contiguous().view(integers[t.element_size()])


def refuse_difference(who: str, expected: Tensor, got: Tensor) -> None:
    """The canary: raise NumericsError where ``got`` is not ``expected``, bit for bit."""
    count, first = count_differences(expected, got)
    if count:
        raise NumericsError(
            f"{who} differs from eager in {count} of {expected.numel()} words, first at {first}: "
            f"torch {torch.__version__} on this machine does not keep the contract of equal bytes; "
            "use backend='eager' and please report it with this message"
        )


def package(
    fn: Callable[..., Any],
    example: Sequence[Tensor],
    *,
    key: str,
    dynamic_shapes: Any = None,
) -> Callable[..., Any]:
    """An AOTInductor package of ``fn`` for this CPU: built once, loaded in milliseconds.

    ``key`` must change whenever ``fn`` computes something else (its sources, constants, static
    sizes); torch's version, the processor's instructions and the shapes of ``example`` are added
    here. Of several processes that want it at once one builds it (:mod:`fnpipe.packages`). Errors:
    NumericsError without a C++ compiler, or with one whose packages cannot be loaded.
    """
    shapes = [(tuple(t.shape), str(t.dtype)) for t in example]
    # By name: hosts that share a home may differ within what torch calls AVX512.
    instructions = sorted(name for name, has in torch.cpu.get_capabilities().items() if has is True)
    facts = key, torch.__version__, instructions, shapes, options()
    name = hashlib.blake2s(repr(facts).encode(), digest_size=16).hexdigest()
    path = cache_folder() / f"{fn.__name__}-{name}.pt2"
    if not path.exists():
        make(fn, tuple(example), path, options=options(), dynamic_shapes=dynamic_shapes)
    return load(str(path))
