"""Pipelines as plain tables, and as TOML: what is kept beside a run, or written by hand.

A table names a recipe and its parameters, or the stages of a pipeline one by one::

    recipe = "yolo"                  [[stages]]
    imgsz = 640                      stage = "mosaic"
    hsv_h = 0.02                     size = 640

Both mean the pipeline that the same call in Python makes.
"""

import difflib
import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch

from fnpipe.pipeline import Pipeline, pipe
from fnpipe.recipes import tasks
from fnpipe.stages import color, erase, finish, geometry, masks, mix, mosaic, paste
from fnpipe.types import ArgumentError


RECIPES: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (tasks.yolo, tasks.detr, tasks.segment, tasks.pose, tasks.obb, tasks.validation)
}
"""The recipes, by name."""
STAGES: dict[str, type] = {
    s.__name__: s
    for s in (
        *(mosaic.mosaic, geometry.affine, geometry.letterbox, geometry.resize, geometry.crop),
        *(geometry.flip, color.hsv, color.brightness, color.contrast, color.grayscale),
        *(color.solarize, color.posterize, finish.keep, finish.finish, masks.masks),
        *(paste.copy_paste, mix.mixup, mix.cutmix, erase.erase),
    )
}
"""The stages that a table can hold: all whose parameters are numbers and words."""


def defaults(recipe: str) -> dict[str, Any]:
    """All parameters of a recipe but ``imgsz``, with their defaults. Errors: ArgumentError."""
    chosen = _pick("recipe", recipe, RECIPES)
    shared = tasks.yolo if recipe in tasks.VARIANTS else chosen
    parameters = inspect.signature(shared).parameters.values()
    own = {p.name: p.default for p in parameters if p.default is not p.empty}
    return own | tasks.VARIANTS.get(recipe, {})


def from_dict(table: Mapping[str, Any]) -> tasks.Recipe:
    """The pipeline that a table describes: ``{"recipe": name, "imgsz": pixels, ...}`` or
    ``{"stages": [{"stage": name, ...}, ...]}``.

    >>> from_dict({"recipe": "validation", "imgsz": 640, "dtype": "uint8"})
    pipe(letterbox(640), finish(dtype=torch.uint8))

    A dtype is torch's name of it, a pair or triple a list. Errors: ArgumentError for an unknown
    name, with the nearest known one, and for whatever the stages refuse.
    """
    if not isinstance(table, Mapping):
        raise ArgumentError(f"wanted a table of a recipe or of stages, came {table!r:.80}")
    if "stages" in table:
        _check_names("a pipeline", table, ["stages"])
        if not isinstance(table["stages"], Sequence) or isinstance(table["stages"], str):
            raise ArgumentError(f"stages wanted a list of tables, came {table['stages']!r:.80}")
        return pipe(*map(_stage, table["stages"]))
    if "recipe" not in table:
        raise ArgumentError(f"wanted the key 'recipe' or 'stages', came {', '.join(table) or '{}'}")
    name = table["recipe"]
    build = _pick("recipe", name, RECIPES)
    _check_names(name, table, ["recipe", "imgsz", *defaults(name)])
    if "imgsz" not in table:
        raise ArgumentError(f"{name}: wanted the key 'imgsz', the side of the images in pixels")
    given = {k: _revive(k, v) for k, v in table.items() if k not in ("recipe", "imgsz")}
    return build(table["imgsz"], **given)


def to_dict(pipeline: Pipeline) -> dict[str, Any]:
    """A pipeline as a table of its stages; parameters at their defaults are left out.

    >>> to_dict(tasks.validation(640, dtype=torch.uint8))["stages"]
    [{'stage': 'letterbox', 'size': 640}, {'stage': 'finish', 'dtype': 'uint8'}]

    Errors: ArgumentError for a stage that holds a function or a data set: code keeps it; and for a
    schedule, which the table of the recipe that makes it says (``close_mosaic``, ``epochs``).
    """
    if not isinstance(pipeline, Pipeline):
        raise ArgumentError(f"to_dict wanted a pipeline, came {pipeline!r:.80}")
    return {"stages": [_row(s) for s in pipeline.stages]}


def from_toml(text: str | Path) -> tasks.Recipe:
    """:func:`from_dict` of TOML: a ``Path`` to a file, or the text itself.

    Errors: ArgumentError, and OSError for a file that cannot be read.

    >>> from_toml('recipe = "yolo"\\nimgsz = 640\\ndegree = 10')
    Traceback (most recent call last):
    fnpipe.types.ArgumentError: yolo: no parameter 'degree'; the nearest is 'degrees'
    """
    if not isinstance(text, str | Path):
        raise ArgumentError(f"from_toml wanted text or a pathlib.Path, came {text!r:.80}")
    where = text if isinstance(text, Path) else "recipe"
    try:
        table = tomllib.loads(text.read_text("utf-8") if isinstance(text, Path) else text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        file = isinstance(text, str) and text.endswith(".toml")
        hint = "; a file wants to be a pathlib.Path" if file else ""
        raise ArgumentError(f"{where}: not TOML: {error}{hint}") from error
    return from_dict(table)


def to_toml(table: Pipeline | Mapping[str, Any]) -> str:
    """TOML of a pipeline, or of a table such as :func:`from_dict` takes; needs ``tomli-w``.

    Errors: ArgumentError where that is not installed, and as :func:`to_dict`.
    """
    try:
        import tomli_w
    except ModuleNotFoundError as error:
        raise ArgumentError("writing TOML wants tomli-w: pip install 'fnpipe[toml]'") from error
    plain = table if isinstance(table, Mapping) else to_dict(table)
    return tomli_w.dumps({k: _plain(k, v) for k, v in plain.items() if v is not None})


def nearest(name: str, known: Iterable[str]) -> str:
    """Words for an error: the known name that is most like this one, or all of them."""
    names = [*known]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"the nearest is {close[0]!r}" if close else f"there are {', '.join(names)}"


def _pick(kind: str, name: Any, known: Mapping[str, Any]) -> Any:
    if not isinstance(name, str) or name not in known:
        raise ArgumentError(f"no {kind} {name!r}; {nearest(str(name), known)}")
    return known[name]


def _check_names(what: str, given: Iterable[str], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise ArgumentError(f"{what}: no parameter {name!r}; {nearest(str(name), known)}")


def _stage(row: Mapping[str, Any]) -> Any:
    if not isinstance(row, Mapping) or "stage" not in row:
        raise ArgumentError(f"a stage wanted the key 'stage', came {row!r:.80}")
    made = _pick("stage", row["stage"], STAGES)
    parameters = fields(made)
    _check_names(row["stage"], row, ["stage", *(f.name for f in parameters)])
    for f in parameters:
        if f.default is MISSING and f.name not in row:
            raise ArgumentError(f"{row['stage']}: wanted the key {f.name!r}")
    return made(**{k: _revive(k, v) for k, v in row.items() if k != "stage"})


def _row(stage: Any) -> dict[str, Any]:
    name = type(stage).__name__
    if STAGES.get(name) is not type(stage):
        raise ArgumentError(f"{stage!r} holds a function, which no table can; keep the code")
    given = {f.name: getattr(stage, f.name) for f in fields(stage)}
    changed = {f.name for f in fields(stage) if given[f.name] != f.default}
    return {"stage": name} | {k: _plain(k, v) for k, v in given.items() if k in changed}


def _plain(name: str, value: Any) -> Any:
    """A parameter as TOML has it: numbers, words, lists and tables of them."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple | list):
        return [_plain(name, v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(k, v) for k, v in value.items()}
    if not isinstance(value, bool | int | float | str):
        raise ArgumentError(f"{name}={value!r} is no number or word, so no table can hold it")
    return value


def _revive(name: str, value: Any) -> Any:
    """The reverse: lists become tuples, names of dtypes dtypes."""
    if name == "dtype" and isinstance(value, str):
        dtypes = {str(d).removeprefix("torch."): d for d in finish.DTYPES}
        return _pick("dtype", value, dtypes)
    return tuple(value) if isinstance(value, list) else value
