"""A position to go on from, and proof that it is one in the same run."""

import inspect
from collections.abc import Callable
from hashlib import blake2s
from typing import Any

from fnpipe.digests import plain, sources_digest
from fnpipe.feed.job import Job
from fnpipe.schedules import values_of
from fnpipe.types import ArgumentError


VERSION = 1


def identity(job: Job) -> dict[str, Any]:
    """All that a batch depends on besides its address, as plain values.

    ``data`` is the data set's fingerprint, ``recipe`` its code, ``functions`` a digest of the text
    of the colour functions in it. Workers, ranks, cut and backends are not here: they change no
    byte.
    """
    functions = [stage.color for pipeline in values_of(job.recipe) for stage in pipeline.colors]
    epochs = job.epochs
    return {
        "batch_size": repr(epochs.batch_size),
        "seed": epochs.seed,
        "shuffle": epochs.shuffle,
        "data": job.data.fingerprint(),
        "recipe": repr(job.recipe),
        "functions": blake2s("".join(map(_source, functions)).encode(), digest_size=16).hexdigest(),
    }


def _source(function: Callable[..., Any]) -> str:
    """A function's text, or its code where it was typed into an interpreter, and what it closes."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = sources_digest(function)
    return f"{text}{plain(inspect.getclosurevars(function).nonlocals)}"


def position(state: Any, own: dict[str, Any], *, strict: bool) -> tuple[int, int]:
    """The (epoch, step) of a state, if it is one of a loader of this identity.

    Not ``strict``, only what a step means is compared: its batch size. Errors: ArgumentError.
    """
    if not isinstance(state, dict):
        raise ArgumentError(f"state wanted what state_dict() gave, came {state!r:.80}")
    if state.get("version") != VERSION:
        raise ArgumentError(f"state wanted version {VERSION}, came {state.get('version')!r}")
    for name in own if strict else ("batch_size",):
        if state.get(name) != own[name]:
            raise ArgumentError(
                f"state is of a run with {name} {state.get(name)!r}, this loader has {own[name]!r}"
                + ("; strict=False takes its position all the same" * (name != "batch_size"))
            )
    epoch, step = state.get("epoch"), state.get("step")
    if type(epoch) is not int or type(step) is not int or epoch < 0 or step < 0:
        raise ArgumentError(f"state wanted epoch, step >= 0, came {epoch!r}, {step!r}")
    return epoch, step
