"""Values of tensors: frozen dataclasses that are pytrees, and show themselves in one line."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


T = TypeVar("T")
FEW = 8
"""Numbers of a row that is shown whole."""


def brief(value: Any) -> str:
    """A value as it is written; a tensor of more than a few numbers by its dtype and shape."""
    if isinstance(value, tuple):
        return f"({', '.join(map(brief, value))}{',' * (len(value) == 1)})"
    if not isinstance(value, Tensor):
        return repr(value)
    if value.device.type == "cpu" and value.ndim < 2 and 0 < value.numel() <= FEW:
        return repr(value)
    place = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{place}"


def represent(value: Any) -> str:
    """A dataclass with its fields in brief."""
    shown = (f"{f.name}={brief(getattr(value, f.name))}" for f in fields(value))
    return f"{type(value).__name__}({', '.join(shown)})"


def static(**options: Any) -> Any:
    """A field that is part of a value's structure: not a tensor, compared by ``==``."""
    return field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(static, field))
def value(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree whose leaves are its tensors.

    Fields made with :func:`static` become the structure. Tensors have no useful ``==``, so such
    values compare by identity; :func:`fnpipe.testing.assert_same_bits` compares their bytes.
    """
    cls.__repr__ = represent  # type: ignore[method-assign]
    made = dataclass(frozen=True, eq=False, repr=False)(cls)
    names = [f.name for f in fields(made) if not f.metadata.get("static")]  # type: ignore[arg-type]
    fixed = [f.name for f in fields(made) if f.metadata.get("static")]  # type: ignore[arg-type]

    def flatten(x: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(x, n) for n in names], tuple(getattr(x, n) for n in fixed)

    def flatten_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves, context = flatten(x)
        keyed = [(pytree.GetAttrKey(n), leaf) for n, leaf in zip(names, leaves, strict=True)]
        return keyed, context

    def unflatten(leaves: Any, context: tuple[Any, ...]) -> Any:
        return made(
            **dict(zip(names, leaves, strict=True)), **dict(zip(fixed, context, strict=True))
        )

    pytree.register_pytree_node(
        made,
        flatten,
        unflatten,
        serialized_type_name=f"{made.__module__}.{made.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
    return made


def map_tensors(fn: Callable[[Tensor], Tensor], tree: T) -> T:
    """Apply ``fn`` to every tensor of a pytree and leave all else as it is."""
    return pytree.tree_map_only(Tensor, fn, tree)


class Movable:
    """What every value of tensors can do. A mixin without state."""

    def to(self: T, device: torch.device | str, *, non_blocking: bool = False) -> T:
        """The same value with every tensor on ``device``."""
        return map_tensors(lambda t: t.to(device, non_blocking=non_blocking), self)

    def pin_memory(self: T) -> T:
        """The same value, type and all, with every tensor in page-locked memory."""
        return map_tensors(lambda t: t.pin_memory(), self)

    def replace(self: T, **changes: Any) -> T:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[type-var]
