"""The proving kit: compare bytes, write targets down, try a pure function on every backend."""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, floor
from torch.utils import _pytree as pytree

from fnpipe.digests import sources_digest
from fnpipe.numerics import audit, compiled, count_differences, package
from fnpipe.stages.color import check_planes, pointwise
from fnpipe.types import ArgumentError, Finish, Plane, Rings, Targets


HARD = (0.0, 0.5, 1.0, 1.5, 2.5, 64.0, 113.5, 114.0, 127.0, 127.5, 128.0, 254.5, 255.0)
"""Codes where arithmetic goes wrong: ends, ties of rounding, the fill, the middle."""


def assert_same_bits(expected: Any, got: Any, *, what: str = "") -> None:
    """Fail unless two trees of tensors are the same, bit for bit: structure, dtypes, shapes, words.

    The message says how many words differ, in which tensor, and which came first. Zeros of either
    sign are different words, and so are NaNs of different payload.
    """
    left, shape = pytree.tree_flatten(expected)
    right, other = pytree.tree_flatten(got)
    assert shape == other, f"{what}: structure {shape} against {other}"
    for place, (a, b) in enumerate(zip(left, right, strict=True)):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            same = type(a) is type(b) and a == b
            assert same, f"{what}: leaf {place} is {a!r} against {b!r}"
            continue
        assert a.dtype == b.dtype, f"{what}: leaf {place} is {a.dtype} against {b.dtype}"
        assert a.shape == b.shape, f"{what}: leaf {place} is {a.shape} against {b.shape}"
        count, first = count_differences(a, b)
        assert not count, (
            f"{what}: leaf {place}: {count} of {a.numel()} words differ, first {first}"
        )


def rings_of(*instances: Sequence[Any]) -> Rings:
    """Rings of instances: each a list of rings, a ring its points [p, 2], x and y in pixels."""
    rings = [torch.as_tensor(ring).float().reshape(-1, 2) for own in instances for ring in own]
    return Rings(
        points=torch.cat([torch.zeros(0, 2, dtype=torch.float32), *rings]),
        ring_offsets=torch.tensor([0, *accumulate(map(len, rings))]),
        instance_offsets=torch.tensor([0, *accumulate(map(len, instances))]),
    )


def targets_of(boxes: Any, **columns: Any) -> Targets:
    """Targets with these ``boxes`` [n, 4], and whatever other ``columns`` are given.

    By default they are of one image, labels and ids count from 0, nothing is to be ignored, all is
    visible, and there are no keypoints, quads and rings.
    """
    sides = torch.as_tensor(boxes).float().reshape(-1, 4)
    n = len(sides)
    plain = Targets(
        boxes=sides,
        labels=torch.arange(n),
        owner=torch.zeros(n, dtype=torch.int64),
        ids=torch.arange(n),
        ignore=torch.zeros(n, dtype=torch.bool),
        visible=torch.ones(n, dtype=torch.float32),
        keypoints=torch.zeros(n, 0, 3, dtype=torch.float32),
        quads=torch.zeros(n, 0, 2, dtype=torch.float32),
        rings=Rings.empty(n),
    )
    return plain.replace(**columns)


def hard_planes(count: int = 4096, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Three planes: greys, ties of two channels, neighbours one ulp apart, and any codes."""
    generator = torch.Generator().manual_seed(seed)
    r, g, b = torch.rand(3, count, generator=generator).mul(255.0).unbind(0)
    grid = torch.cartesian_prod(*3 * [torch.tensor(HARD)])
    quarter = count // 4
    r, g, b = r.clone(), g.clone(), b.clone()
    g[:quarter] = r[:quarter]
    b[: quarter // 2] = r[: quarter // 2]
    g[quarter : 2 * quarter] = torch.nextafter(r, torch.tensor(256.0))[quarter : 2 * quarter]
    planes = [torch.cat([p, q]) for p, q in zip((r, g, b), grid.unbind(1), strict=True)]
    return planes[0], planes[1], planes[2]


def prove(fn: Callable[..., Any] | pointwise, *parameters: float, ahead: bool = False) -> list[str]:
    """Prove a pointwise function: inside the vocabulary, and equal in bits on every backend here.

    ``parameters`` are values to try, one a parameter of ``fn`` after its three planes (each 0.3
    where none are given). Tried are eager, compiled on the CPU, with ``ahead`` an AOT package (half
    a minute to build), and where there is a GPU eager, compiled and Triton on it; Triton's
    interpreter where there is none, for a function of a module: a script's or a notebook's cannot
    be imported by it. Returns what was tried. Errors: AssertionError that names the
    culprit operation with its line, or the one pixel, of all that differ, that came first.
    """
    given = fn.fn if isinstance(fn, pointwise) else fn
    if not inspect.isfunction(given):
        raise ArgumentError(f"prove wanted a function of r, g, b and parameters, came {fn!r:.80}")
    count = given.__code__.co_argcount - 3
    check_planes(given, count)
    values = [torch.full((1,), v) for v in (parameters or (0.3,) * count)]
    planes = hard_planes()
    findings = audit(given, *(p[:8] for p in planes), *values)
    assert not findings, "outside the vocabulary:\n" + "\n".join(map(str, findings))
    expected = torch.stack(given(*planes, *values))
    compare = partial(_compare, expected, planes, values)
    compare("compiled on the CPU", torch.stack(compiled(given)(*planes, *values)))
    tried = ["vocabulary", "eager on the CPU", "compiled on the CPU"]
    if ahead:
        built = package(given, [*planes, *values], key=f"prove {sources_digest(given)}")
        compare("package on the CPU", torch.stack(built(*planes, *values)))
        tried.append("package on the CPU")
    if not torch.cuda.is_available():
        return [*tried, *_interpret(given, values)]
    moved = [t.cuda() for t in (*planes, *values)]
    for who, run in (("eager", given), ("compiled", compiled(given))):
        compare(f"{who} on the GPU", torch.stack(run(*moved)).cpu())
    _through_triton(given, values, "cuda")
    return [*tried, "eager on the GPU", "compiled on the GPU", "Triton on the GPU"]


def _through_triton(fn: Callable[..., Any], values: list[Tensor], device: str = "cpu") -> None:
    """Errors: AssertionError where Triton makes other codes, or other planes, in bits.

    A kernel gives codes alone, so a second function in it shows one byte of each plane after the
    other: from 2**15 down to 2**-32, which is every bit of a number from 0.002 on.
    """
    from fnpipe.ops.pixel_triton import paint_fused

    planes = hard_planes()
    r, g, b = fn(*planes, *values)
    stacked = torch.stack(planes)[None, :, None].to(device)
    first = (torch.stack(values, 1) if values else torch.zeros(1, 0)).to(device)

    def check(who: str, wanted: Tensor, *then: tuple[Callable[..., Any], Tensor]) -> None:
        colors = (first, *(value[None].to(device) for _, value in then))
        chain = (fn, *(other for other, _ in then))
        got = paint_fused(stacked, colors, chain, Finish(torch.uint8))[0, :, 0]
        _compare(wanted, planes, values, f"Triton, {who}", got.cpu().float())

    check("codes", torch.stack((r, g, b)).clamp(0, 255).round())
    for power in range(-8, 33, 8):
        scale = torch.tensor([2.0**power])
        wanted = torch.stack(_digits(r, g, b, scale))
        check(f"a byte at 2**{-power}", wanted, (_digits, scale))


def _digits(r: Plane, g: Plane, b: Plane, scale: Plane) -> tuple[Plane, Plane, Plane]:
    """A byte of each plane: the last one before the point, once ``scale`` has moved it. Exact."""
    return _digit(r, scale), _digit(g, scale), _digit(b, scale)


def _digit(x: Plane, scale: Plane) -> Plane:
    whole = floor(x * scale)
    return whole - 256.0 * floor(whole * 0.00390625)


def _compare(
    expected: Tensor, planes: Sequence[Tensor], values: list[Tensor], who: str, got: Tensor
) -> None:
    """Errors: AssertionError with one pixel that goes in, what was wanted of it, and what came."""
    count, first = count_differences(expected, got)
    if first is None:
        return
    pixel = first % expected.shape[1]
    went_in = [float(p[pixel]) for p in planes] + [float(v) for v in values]
    wanted, came = expected[:, pixel].tolist(), got[:, pixel].tolist()
    raise AssertionError(
        f"{who}: {count} of {expected.numel()} words differ; of {went_in} it makes {came}, "
        f"eager {wanted}"
    )


def _interpret(fn: Callable[..., Any], values: list[Tensor]) -> list[str]:
    """The same through Triton's interpreter, which must be chosen before Triton is imported."""
    code = (
        "import importlib, torch\n"
        "from fnpipe.testing import _through_triton\n"
        f"fn = importlib.import_module({fn.__module__!r})\n"
        f"for name in {fn.__qualname__!r}.split('.'): fn = getattr(fn, name)\n"
        f"values = [torch.full((1,), v) for v in {[float(v) for v in values]!r}]\n"
        "_through_triton(getattr(fn, 'fn', fn), values)\n"
    )
    if fn.__module__ == "__main__" or "<locals>" in fn.__qualname__:
        return []
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return ["Triton, interpreted"]
