"""A digest of what functions compute: the key of whatever is built of them.

It is of their code as it was loaded. Their files would be a worse key: one may have been edited
since, and what is built of the old code would be found under the key of the new; a notebook's cell
has no file; and functions that a function makes differ only in the numbers that they close over.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from hashlib import blake2s
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any


def sources_digest(*functions: Callable[..., Any]) -> str:
    """A digest of the code of ``functions`` and of all of their package that they call by name.

    Values that they close over or read of their modules count as :func:`plain` tells them. What is
    reached through a module's name is not looked at. The same in every process.
    """
    reached = _reached(functions)
    order = [reached.index(_bare(fn)) for fn in functions]
    digest = blake2s(repr(order).encode(), digest_size=16)
    for fn in reached:
        facts = fn.__code__, fn.__defaults__, fn.__kwdefaults__, dict(_read(fn))
        digest.update(repr((fn.__module__, fn.__qualname__, plain(facts))).encode())
    return digest.hexdigest()


def _reached(functions: tuple[Callable[..., Any], ...]) -> list[FunctionType]:
    """Functions and those that they name, each once, in the order in which they are met."""
    found: list[FunctionType] = []
    waiting: list[Any] = [*functions]
    while waiting:
        fn = _bare(waiting.pop(0))
        if isinstance(fn, FunctionType) and fn not in found:
            found.append(fn)
            called = [value for _, value in _read(fn) if callable(value)]
            waiting += [other for other in called if _package(other) == _package(fn)]
    return found


def _bare(fn: Any) -> Any:
    """The function that decorators wrapped."""
    return inspect.unwrap(getattr(fn, "fn", fn))


def _package(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__module__", "").split(".")[0]


def _read(fn: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function closes over and what it reads of its module, by name."""
    variables = inspect.getclosurevars(fn)
    for name, value in sorted({**variables.globals, **variables.nonlocals}.items()):
        if not inspect.ismodule(value):
            yield name, value


def plain(value: Any) -> Any:
    """A value as ones that have a ``repr`` without an address, the same in every process.

    Numbers, words, paths, tensors and arrays whole, and tuples, lists, sets, dicts and dataclasses
    of them; functions and classes by their names, other objects by their class.
    """
    if isinstance(value, CodeType):  # what it does, without where it stands
        return value.co_code, value.co_names, value.co_varnames, plain(value.co_consts)
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(plain(each)) for each in value)
    if type(value) is dict:  # no cache of weak references
        return sorted(repr((plain(key), plain(each))) for key, each in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__qualname__, [plain(getattr(value, f.name)) for f in fields(value)]
    if hasattr(value, "tolist") and not isinstance(value, type):
        return str(value.dtype), value.tolist()
    return getattr(value, "__qualname__", type(value).__qualname__)
