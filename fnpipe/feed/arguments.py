"""What a loader is asked for, looked at before anything is made of it."""

import math
import multiprocessing
from typing import Any

import torch

from fnpipe.data.dataset import Dataset, check_dataset, lacks_outlines
from fnpipe.pipeline import Pipeline
from fnpipe.schedules import values_of
from fnpipe.stages.masks import masks
from fnpipe.stages.paste import copy_paste
from fnpipe.types import ArgumentError, check_choice, check_flag, check_whole


def check_parts(data: Any, pipeline: Any, pool: Any) -> None:
    """Errors: ArgumentError for another kind of value, and for a data set without photos."""
    check_dataset(data)
    if len(data) == 0:
        raise ArgumentError(f"data wanted at least one photo, came an empty set ({data.root})")
    for each in values_of(pipeline):
        if not isinstance(each, Pipeline):
            raise ArgumentError(
                "pipeline wanted fnpipe.pipe(...), or a schedule or buckets of them, came "
                f"{each!r:.80}"
            )
        _check_rings(data, each)
    if pool is not None and not (hasattr(pool, "gather") or hasattr(pool, "sources")):
        raise ArgumentError(f"pool wanted fnpipe.pool(data, kind), came {pool!r:.80}")


def _check_rings(data: Dataset, pipeline: Pipeline) -> None:
    """Errors: ArgumentError for stages that would do nothing, since no instance has a ring."""
    wanting = [s for s in pipeline.stages if isinstance(s, masks | copy_paste)]
    if wanting and lacks_outlines(data):
        raise ArgumentError(
            f"{wanting[0]!r} wants outlines, and data has none: its reader's task='segment' "
            "reads them"
        )


def check_numbers(
    *, workers: Any, prefetch: Any, memory: Any, ahead: Any, timeout: Any, start_method: Any
) -> None:
    """Errors: ArgumentError for a number out of range, or an unknown start method."""
    check_flag("ahead", ahead)
    check_whole("workers", workers, 0)
    check_whole("prefetch", prefetch, 1)
    if memory is not None:
        check_whole("memory", memory, 1)
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ArgumentError(f"timeout wanted seconds > 0, came {timeout!r}")
    if start_method is not None:
        check_choice("start_method", start_method, multiprocessing.get_all_start_methods())


def exactly(device: Any) -> torch.device:
    """The device that is meant: "cuda" is the current one. Errors: ArgumentError without it."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ArgumentError(f"device wanted 'cpu' or 'cuda', came {device!r}")
    if found.type == "cpu":
        return torch.device("cpu")  # where a tensor is that was made on "cpu:0"
    if not torch.cuda.is_available():
        raise ArgumentError(f"device {device!r}: torch finds no GPU here; take device='cpu'")
    if ":" not in str(found):
        return torch.device("cuda", torch.cuda.current_device())
    if found.index >= torch.cuda.device_count():
        raise ArgumentError(f"device {device!r}: there are {torch.cuda.device_count()} GPUs here")
    return found
