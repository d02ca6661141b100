"""What a loader does with a pool on the side of the device."""

import warnings
from dataclasses import replace
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fnpipe.cuts import Mapped
from fnpipe.data.pool import Rest
from fnpipe.feed.locked import Locked
from fnpipe.types import ArgumentError, Sources


def device_pool(pool: Any, device: torch.device) -> Sources:
    """The sources of a pool on ``device``. Errors: ArgumentError where there are none."""
    sources = getattr(pool, "sources", None)
    if sources is None or sources.words.device != device:
        came = "none" if sources is None else f"one on {sources.words.device}"
        raise ArgumentError(
            f"cut 'plan' wanted a pool on {device}, came {came}: "
            f"pool=fnpipe.pool(data, 'device', device='{device}')"
        )
    return sources


_LOCKED: WeakKeyDictionary[Any, Locked] = WeakKeyDictionary()
"""Pools whose pages are locked already: other loaders of this process read them, too."""


def map_pool(pool: Any, device: torch.device, *, cut: str) -> Locked | None:
    """A pool's words in locked pages, out of which a GPU copies windows by itself.

    Of a pool that the device holds in part, they are those of the host's copy. None where workers
    have to copy: no page of a file on a disk can be locked, and workers decode the photos that a
    pool lacks.
    """
    if cut == "plan":
        pool = getattr(getattr(pool, "rest", None), "host", None)
    whole = cut in ("source", "plan") and getattr(pool, "kind", None) == "ram" and pool.held is None
    if not whole or device.type != "cuda" or find_spec("triton") is None:
        return None
    if pool not in _LOCKED:
        with torch.cuda.device(device.index):
            locked = Locked(pool.sources.words, read_only=True)
        if locked.error:
            warnings.warn(
                f"workers copy windows: the GPU cannot read the pool ({locked.error})", stacklevel=3
            )
            return None
        _LOCKED[pool] = locked
    return _LOCKED[pool]


def for_workers(pool: Any, *, cut: str, mapped: bool) -> Any:
    """A pool as workers see it; where it is ``mapped``, they copy nothing."""
    if cut == "plan":
        rest: Rest | None = getattr(pool, "rest", None)
        return replace(rest, copies=False) if mapped and rest is not None else rest
    if not mapped:
        return pool
    return Mapped(pool.sources.replace(words=torch.zeros(0, dtype=torch.int32)))
