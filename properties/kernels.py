"""Kernels for laws: any operation of the table on its own, and what all of them compile to.

Run as a script, it compiles them for a GPU that need not be there, and prints their PTX.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton.language as tl
from laws import FINISHES, SHAPE, TABLE, describe
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_triton

from fnpipe.ops import pixel, pixel_triton, render_triton
from fnpipe.ops.layers_triton import layer_pointers
from fnpipe.ops.reread import define, reread


@cache
def elementwise(fn: Callable[..., Any], inputs: int, outputs: int) -> Any:
    """The Triton kernel that reads ``fn`` again: rows in, words out, nothing else."""
    lines = [
        "def kernel(given, out, n, BLOCK: tl.constexpr):",
        "    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        *(
            f"    a{i} = tl.load(given + {i} * n + lane, mask=lane < n, other=1)"
            for i in range(inputs)
        ),
        f"    {', '.join(f'b{i}' for i in range(outputs))} = "
        f"fn({', '.join(f'a{i}' for i in range(inputs))})",
        *(
            f"    tl.store(out + {i} * n + lane, b{i}.to(tl.int32, bitcast=True), mask=lane < n)"
            for i in range(outputs)
        ),
    ]
    return define("kernel", "\n".join(lines) + "\n", {"tl": tl, "fn": reread(fn)})


def run_triton(column: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
    found = {}
    for fn, inputs in TABLE:
        rows = torch.stack([column[name] for name in inputs.split()])
        like = fn(*rows)
        like = like if isinstance(like, tuple) else (like,)
        out = torch.empty(len(like), rows.shape[1], dtype=torch.int32, device=rows.device)
        kernel = elementwise(fn, len(rows), len(like))
        kernel[(2,)](rows, out, rows.shape[1], BLOCK=1024, enable_fp_fusion=False)
        found[fn.__name__] = tuple(o.view(t.dtype) for o, t in zip(out, like, strict=True))
    planes = torch.stack([column[name].view(SHAPE) for name in "rgb"], 1)
    for how in FINISHES:
        found[describe(how)] = (pixel_triton.paint_fused(planes, (), (), how),)
    return found


def fused_kernels() -> dict[str, tuple[Any, dict[str, Any]]]:
    """The kernels that make batches, with every colour stage, and what they are specialised to."""
    chain = tuple(fn for fn, inputs in TABLE if inputs.startswith("r g b"))
    counts = tuple(len(inputs.split()) - 3 for _, inputs in TABLE if inputs.startswith("r g b"))
    shared = {"WHOLE": False, "SHIFTED": True, "LAST": True, "PACKED": True, "INTERPRETED": False}
    shared |= {"EVEN": False, "PAIRS": 32, "STEP": 4, "STEPS": 8, "LANES": 256}
    render, paint = (module.build(chain, counts) for module in (render_triton, pixel_triton))
    made = {
        f"render, {grid} x {grid}, projective {projective}": (
            render,
            shared | {"GRID": grid, "PROJECTIVE": projective, "DTYPE": tl.bfloat16},
        )
        for grid, projective in ((1, False), (2, False), (2, True))
    }
    two = render_triton.build(chain, counts, layers=2)
    made["render, 2 x 2, two layers"] = (
        two, shared | {"GRID": 2, "PROJECTIVE": False, "DTYPE": tl.bfloat16},
    )  # fmt: skip
    return {**made, "paint": (paint, shared | {"DTYPE": tl.float16})}


POINTERS = {
    **dict.fromkeys("words sizes origins strides".split(), "*i32"),
    **dict.fromkeys("offsets sources".split(), "*i64"),
    **dict.fromkeys("maps splits colors planes weight".split(), "*fp32"),
    **dict.fromkeys("mirror cover active".split(), "*i1"),
}
INTEGERS = "height width pixels n".split()


def compile_to_ptx(kernel: Any, constants: dict[str, Any], out: str, *, fused: bool = False) -> str:
    """What a kernel becomes for compute capability 9.0; no GPU is needed."""
    kinds = {name: "i32" for name in INTEGERS} | POINTERS | {"out": out, "given": "*fp32"}
    names = kernel.arg_names
    kinds |= {name: "*fp32" for name in names if name.startswith("colors")}
    for name in layer_pointers(2):
        kinds[name] = POINTERS[name.rstrip("01")]
    signature = {
        name: "constexpr" if name in constants else kinds.get(name, "fp32") for name in names
    }
    fixed = {(names.index(n),): value for n, value in constants.items() if n in names}
    made = compile_triton(
        ASTSource(kernel, signature, constexprs=fixed),
        target=GPUTarget("cuda", 90, 32),
        options={"enable_fp_fusion": fused},
    )
    return made.asm["ptx"]


def print_ptx() -> None:
    found = {
        name: compile_to_ptx(kernel, fixed, "*fp16" if fixed["DTYPE"] == tl.float16 else "*bf16")
        for name, (kernel, fixed) in fused_kernels().items()
    }
    kernel = elementwise(pixel.shift_hsv, 6, 3)
    found["planted"] = compile_to_ptx(kernel, {"BLOCK": 1024}, "*i32", fused=True)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    print_ptx()
