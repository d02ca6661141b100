"""One buffer for all tensors of a value: one allocation, one file handle, one copy over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils import _pytree as pytree

from fnpipe.types import Movable, static, value


ALIGNMENT = 16
"""Bytes; the widest single access of a GPU thread."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in the buffer: its first byte, dtype, shape, and memory order."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@value
class Packed(Movable):
    """A value as bytes and the recipe to see it again, without a copy."""

    buffer: UInt8[Tensor, " n"]
    slots: tuple[Slot | None, ...] = static()
    rebuild: Any = static()

    def unpack(self) -> Any:
        """The value; its tensors are views of the buffer."""
        leaves = [None if s is None else _view(self.buffer, s) for s in self.slots]
        return pytree.tree_unflatten(leaves, self.rebuild)


def packed(tree: Any, *, empty: Callable[..., Tensor] = torch.empty) -> Packed:
    """Copy every tensor of a pytree into one buffer. Its leaves must be tensors or None."""
    leaves, rebuild = pytree.tree_flatten(tree)
    slots: list[Slot | None] = []
    end = 0
    for t in leaves:
        if t is None:
            slots.append(None)
            continue
        dense = t if _dense(t) else t.contiguous()
        slots.append(Slot(end, t.dtype, tuple(t.shape), dense.stride()))
        end += -(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT
    buffer = empty(end, dtype=torch.uint8)
    for t, slot in zip(leaves, slots, strict=True):
        if slot is not None:
            _view(buffer, slot).copy_(t)
    return Packed(buffer, tuple(slots), rebuild)


def _dense(t: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps, in whatever order: channels last stays so."""
    return t.is_contiguous() or (
        t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    )


def _view(buffer: Tensor, slot: Slot) -> Tensor:
    count = 1
    for n in slot.shape:
        count *= n
    part = buffer[slot.start : slot.start + count * slot.dtype.itemsize]
    return part.view(slot.dtype).as_strided(
        slot.shape, slot.stride, part.storage_offset() // slot.dtype.itemsize
    )
