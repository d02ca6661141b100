"""One buffer for all tensors of a value: one allocation, one file handle, one copy over.

What goes beside the buffer is small and plain: where each tensor lies, and the value's form in
bytes, which a process reads once however many values of that form come.
"""

import pickle
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils import _pytree as pytree

from fnpipe.types import ArgumentError, Empty, Movable, static, value


ALIGNMENT = 16
"""Bytes; the widest single access of a GPU thread."""


class Slot(NamedTuple):
    """Where a tensor lies in the buffer: dtype, first element, shape, and memory order."""

    dtype: torch.dtype
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@value
class Packed(Movable):
    """A value as bytes and the recipe to see it again, without a copy."""

    buffer: UInt8[Tensor, " n"]
    slots: tuple[Slot | None, ...] = static()
    form: bytes = static()

    def unpack(self) -> Any:
        """The value; its tensors are views of the buffer."""
        return _builder(self.form)(self._leaves())

    def _leaves(self) -> Iterator[Tensor | None]:
        # One view a dtype, then one call a tensor: 1.5 us each, where slicing first took 4.
        typed, first = {}, self.buffer.storage_offset()
        for slot in self.slots:
            if slot is None:
                yield None
                continue
            dtype, start, shape, stride = slot
            if dtype not in typed:
                typed[dtype] = self.buffer.view(dtype), first // dtype.itemsize
            view, offset = typed[dtype]
            yield view.as_strided(shape, stride, start + offset)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Packed":
        """The same value on ``device``: one copy."""
        return Packed(self.buffer.to(device, non_blocking=non_blocking), self.slots, self.form)

    def pin_memory(self) -> "Packed":
        """The same value in page-locked memory: one copy."""
        return Packed(self.buffer.pin_memory(), self.slots, self.form)


def packed(tree: Any, *, empty: Empty = torch.empty, ground: Tensor | None = None) -> Packed:
    """Copy every tensor of a pytree into one buffer.

    ``empty(bytes, dtype=torch.uint8)`` gives the memory. A tensor that was made where ``ground``
    (bytes) begins stays there, and the others come behind it, if there is room for them. Errors:
    ArgumentError for a leaf that is neither a tensor nor None.
    """
    leaves: list[Tensor | None] = []
    form = pickle.dumps(_flatten(tree, leaves))
    there = None if ground is None else _first_in(ground, leaves)
    slots, end = _lay_out(leaves, there)
    if ground is None or there is None or end > ground.numel():
        there, buffer = None, empty(end, dtype=torch.uint8)
    else:
        buffer = ground[:end]
    made = Packed(buffer, slots, form)
    for index, (view, t) in enumerate(zip(made._leaves(), leaves, strict=True)):
        if view is not None and t is not None and index != there:
            view.copy_(t)
    return made


def _first_in(ground: Tensor, leaves: list[Tensor | None]) -> int | None:
    """Which leaf fills the beginning of ``ground``, if one does."""
    for index, t in enumerate(leaves):
        if t is not None and t.numel() and t.data_ptr() == ground.data_ptr():
            return index if _dense(t) else None
    return None


def _lay_out(leaves: list[Tensor | None], first: int | None) -> tuple[tuple[Slot | None, ...], int]:
    """A slot a leaf, in order but for the one that is ``first``; and the bytes of all."""
    slots: list[Slot | None] = [None] * len(leaves)
    end = 0
    for index in sorted(range(len(leaves)), key=lambda i: i != first):
        t = leaves[index]
        if t is None:
            continue
        dense = t if _dense(t) else t.contiguous()
        slots[index] = Slot(t.dtype, end // t.element_size(), tuple(t.shape), dense.stride())
        end += -(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT
    return tuple(slots), end


def _flatten(tree: Any, leaves: list[Tensor | None]) -> Any:
    """The form of a tree: None for a leaf, else (type, context, forms). ``leaves`` take its leaves.

    Torch's own TreeSpec is no such plain value: its pickles differ between versions and warn.
    """
    kind = type(tree)
    if kind not in pytree.SUPPORTED_NODES:
        if tree is not None and not isinstance(tree, Tensor):
            raise ArgumentError(f"packed: wanted tensors and None as leaves, came {tree!r}")
        leaves.append(tree)
        return None
    children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(tree)
    return kind, context, tuple(_flatten(child, leaves) for child in children)


@lru_cache(maxsize=256)
def _builder(form: bytes) -> Callable[[Iterator[Tensor | None]], Any]:
    return _build(pickle.loads(form))


def _build(form: Any) -> Callable[[Iterator[Tensor | None]], Any]:
    """The function that takes its leaves off an iterator and gives the tree."""
    if form is None:
        return next
    kind, context, forms = form
    unflatten = pytree.SUPPORTED_NODES[kind].unflatten_fn
    parts = [_build(part) for part in forms]
    return lambda leaves: unflatten([part(leaves) for part in parts], context)


def _dense(t: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps, in whatever order: channels last stays so."""
    return t.is_contiguous() or (
        t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    )
