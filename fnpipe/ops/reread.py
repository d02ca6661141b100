"""Read a torch definition again, as Triton: one spelling of the arithmetic, two compilers.

``reread(fn)`` parses the source of a pure elementwise function, binds the names of torch's
functions to small Triton helpers, turns ``/`` into a correctly rounded division, and hands the
result to ``triton.jit``. Constants and helper functions that ``fn`` uses are re-read along with it.
What cannot be re-read raises :class:`Unreadable` with the reason and the line, and takes the
compiled path instead.
"""
# Triton gives a kernel's parameters and values no types.
# pyright: basic

import ast
import builtins
import inspect
import linecache
import os
import textwrap
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1), which knows no assembly."""


class Unreadable(ValueError):
    """A function that Triton cannot read; the message says why and where."""


@triton.jit
def _where(condition, chosen, other):
    return tl.where(condition, chosen, other)


@triton.jit
def _minimum(a, b):
    return tl.minimum(a, b)


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b)


@triton.jit
def _clamp(x, min=None, max=None):
    if min is not None:
        x = tl.maximum(x, min)
    if max is not None:
        x = tl.minimum(x, max)
    return x


@triton.jit
def _floor(x):
    return tl.floor(x)


@triton.jit
def _abs(x):
    return tl.abs(x)


@triton.jit
def _div(a, b):
    # Triton's `/` is div.full, up to 2 ulp off; torch divides with correct rounding.
    return tl.div_rn(a, b)


@triton.jit
def _ones_like(x):
    return tl.full(x.shape, 1.0, x.dtype)


HELPERS: dict[Any, Any] = {
    torch.where: _where,
    torch.minimum: _minimum,
    torch.maximum: _maximum,
    torch.clamp: _clamp,
    torch.floor: _floor,
    torch.abs: _abs,
    torch.div: _div,
    torch.ones_like: _ones_like,
    builtins.abs: _abs,
}
"""Torch's elementwise functions and their Triton spelling: the whole vocabulary that is re-read."""
KNOWN = f"{', '.join(sorted({h.__name__ for h in HELPERS}))}, + - * /, comparisons and .to()"

_TORCH = types.ModuleType("torch")
for _fn, _helper in HELPERS.items():
    setattr(_TORCH, _fn.__name__, _helper)
_TORCH.float32 = tl.float32  # type: ignore[attr-defined]
_TORCH.int32 = tl.int32  # type: ignore[attr-defined]


def _constant(node: ast.expr) -> bool:
    return all(
        isinstance(n, ast.Constant | ast.UnaryOp | ast.BinOp | ast.operator | ast.unaryop)
        for n in ast.walk(node)
    )


class _Spelling(ast.NodeTransformer):
    """Drop what only Python needs, and spell division as a call."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div) and not _constant(node):
            called = ast.Call(ast.Name("_div", ast.Load()), [node.left, node.right], [])
            return ast.copy_location(called, node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.op, ast.Div):
            return self.generic_visit(node)
        before = ast.parse(ast.unparse(node.target), mode="eval").body
        divided = ast.BinOp(before, node.op, node.value)
        return ast.copy_location(ast.Assign([node.target], self.visit(divided)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.decorator_list = []
        node.returns = None
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            argument.annotation = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return node


def _bind(name: str, value: Any, fn: Callable[..., Any]) -> Any:
    """What a global name of ``fn`` means to Triton."""
    if value is torch:
        return _TORCH
    if isinstance(value, int | float):
        return tl.constexpr(value)
    if isinstance(value, types.FunctionType):
        return reread(value)
    try:
        return HELPERS[value]
    except (KeyError, TypeError):
        raise Unreadable(
            f"{fn.__qualname__} uses {name!r} ({type(value).__name__}), which has no Triton "
            f"spelling; known are {KNOWN}"
        ) from None


UNLIKE: dict[type[ast.AST], str] = {
    ast.Mod: "%",
    ast.FloorDiv: "//",
    ast.Pow: "**",
    ast.MatMult: "@",
}
"""Operators that Triton lacks or gives another meaning: its remainders have the dividend's sign."""


def _refuse_unlike(tree: ast.AST, names: dict[str, Any], fn: Callable[..., Any]) -> None:
    """Errors: :class:`Unreadable`, with the line, for operators, methods and names of torch's."""
    for node in ast.walk(tree):
        what = None
        if isinstance(node, ast.AugAssign) or (isinstance(node, ast.BinOp) and not _constant(node)):
            what = UNLIKE.get(type(node.op))
        elif isinstance(node, ast.Attribute) and node.attr != "to":
            owner = names.get(node.value.id) if isinstance(node.value, ast.Name) else None
            known = owner is torch and hasattr(_TORCH, node.attr)
            what = None if known else ast.unparse(node)
        if what is not None:
            line = fn.__code__.co_firstlineno + node.lineno - 1  # type: ignore[attr-defined]
            raise Unreadable(
                f"{fn.__code__.co_filename}:{line}: {fn.__qualname__} uses {what}, which has no "
                f"Triton spelling; known are {KNOWN}"
            )


def define(name: str, source: str, globals: dict[str, Any], **options: Any) -> Any:
    """``triton.jit`` of a function given as text: Triton reads sources, and linecache has them."""
    filename = f"<fnpipe {name} {abs(hash(source)):x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": f"fnpipe.{name}", **globals}
    exec(compile(source, filename, "exec"), namespace)
    return triton.jit(namespace[name], **options)


TWINS: dict[Callable[..., Any], Any] = {}
"""Definitions that have a faster Triton spelling by hand, proved equal: :mod:`fnpipe.ops.twins`."""


@cache
def reread(fn: Callable[..., Any]) -> Any:
    """The Triton function that ``fn``'s own source defines. Errors: :class:`Unreadable`."""
    if fn in TWINS:
        return TWINS[fn]
    try:
        source = textwrap.dedent(inspect.getsource(fn))
        (tree,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise Unreadable(f"the source of {fn!r} cannot be read: {error}") from error
    if not isinstance(tree, ast.FunctionDef):
        raise Unreadable(f"{fn!r} is not written with def")
    closure = inspect.getclosurevars(fn)
    names = {**closure.builtins, **closure.globals, **closure.nonlocals}
    tree = _Spelling().visit(tree)
    _refuse_unlike(tree, names, fn)
    tree = ast.fix_missing_locations(tree)
    table = {name: _bind(name, value, fn) for name, value in names.items()}
    return define(fn.__name__, ast.unparse(tree) + "\n", {**table, "_div": _div, "tl": tl})
