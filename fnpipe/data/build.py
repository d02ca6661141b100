"""From what a reader collected to a data set: photos scanned, rows made targets, faults counted."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fnpipe.data.dataset import Dataset, Report, check_host, pack_names
from fnpipe.data.decode import read_image, scan_image
from fnpipe.data.processes import Bar
from fnpipe.data.tidy import tidy
from fnpipe.ops.points import canonical_quads
from fnpipe.ops.ragged import offsets_of
from fnpipe.types import ArgumentError, DataError, Rings, Targets, check_choice, check_whole


Numbers = Sequence[int | float]

FAULTS = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""What reading a malformed file may raise."""
MAX_LINES = 100
"""Lines of a report for one kind of problem."""


class Notes:
    """A report in the making. With ``rows="drop"`` it also takes what a reader would refuse."""

    def __init__(self, *, rows: str = "raise") -> None:
        check_choice("rows", rows, ("raise", "drop"))
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self.tolerant: bool = rows == "drop"

    def add(self, kind: str, line: str) -> None:
        self.counts[kind] += 1
        if self.tolerant or self.counts[kind] <= MAX_LINES:
            self.lines.append(f"{kind}: {line}")

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Where rows are to be dropped, a ``DataError`` inside becomes a line of the report."""
        try:
            yield
        except DataError as error:
            if not self.tolerant:
                way = 'rows="drop" (--rows drop) reports it and goes on'
                raise DataError(f"{error}; {way}") from error
            self.add("row refused", str(error))

    def report(self) -> Report:
        return Report(counts=dict(self.counts), lines=tuple(self.lines))


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Turn whatever cannot be understood inside into a ``DataError`` that begins with ``what``."""
    try:
        yield
    except KeyError as error:
        raise DataError(f"{what}: no {error}") from error
    except ArgumentError:
        raise
    except FAULTS as error:
        raise DataError(f"{what}: {error}") from error


@contextmanager
def collector_paused() -> Iterator[None]:
    """Python's collector of cycles at rest inside.

    It would walk the millions of objects of a large file over and over: a third of the time to read
    860,000 annotations of COCO.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def as_path(name: str, given: object) -> Path:
    """Argument ``name`` as a path. Errors: ArgumentError."""
    try:
        return Path(given)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"{name} wanted a path, came {given!r:.80}") from None


def scan_photos(
    paths: Sequence[Path], notes: Notes, *, scan: str, unreadable: str, pixel_limit: int
) -> list[tuple[int, int] | None]:
    """Upright width and height of each photo, None for one that is missing or broken and noted.

    ``scan`` says how closely to look: "trust" only at whether the file is there (sizes are then
    (0, 0)), "header" at its header and last bytes, "decode" at all pixels. Raises the first
    ``DataError`` with ``unreadable="raise"``, or where no photo is left.
    """
    check_choice("scan", scan, ("trust", "header", "decode"))
    check_choice("unreadable", unreadable, ("drop", "raise"))
    check_whole("pixel_limit", pixel_limit, 1)

    def look(path: Path) -> tuple[int, int] | DataError:
        try:
            if not path.is_file():
                raise DataError(f"{path}: no such file")
            if scan == "trust":
                return 0, 0
            if scan == "header":
                return scan_image(path, pixel_limit=pixel_limit)
            _, height, width = read_image(path, pixel_limit=pixel_limit).shape
            return width, height
        except DataError as error:
            return error

    sizes: list[tuple[int, int] | None] = []
    with ThreadPoolExecutor() as threads:
        looks = threads.map(look, paths)
        for found in Bar(looks, "photos", len(paths), leave=False, delay=1, disable=None):
            if isinstance(found, DataError):
                if unreadable == "raise":
                    raise found
                notes.add("photo dropped", str(found))
            sizes.append(None if isinstance(found, DataError) else found)
    if sizes and not any(sizes):
        raise DataError(f"none of {len(sizes)} photos can be read; {notes.lines[-1]}")
    return sizes


def collect(
    owner: Sequence[int],
    labels: Sequence[int],
    *,
    scale: Float64[Tensor, "n 2"],
    boxes: Sequence[Numbers],
    ignore: Sequence[bool] | None = None,
    outlines: Sequence[Sequence[Numbers]] | None = None,
    poses: Sequence[Numbers] | None = None,
    keypoints: int = 0,
    quads: Sequence[Numbers] | None = None,
) -> Targets:
    """Targets of ``n`` rows of a file. All that is a position is multiplied by ``scale`` (x, y).

    A box is x0, y0, x1, y1, a quad four times x, y, a pose ``keypoints`` times x, y, flag, an
    outline a list of rings, a ring x, y, x, y, ... Float64 until scaled. Quads get their canonical
    order. What is None is absent.
    """
    check_host()
    n = len(owner)
    corners = torch.zeros(n, 0, 2, dtype=torch.float32)
    if quads is not None:
        corners = canonical_quads((_table(quads, n, 4, 2) * scale[:, None]).float())
    points = _table(poses or [[]] * n, n, keypoints, 3)
    points[..., :2] *= scale[:, None]
    return Targets(
        boxes=(_table(boxes, n, 4) * scale.repeat(1, 2)).float(),
        labels=torch.tensor(labels, dtype=torch.int64),
        owner=torch.tensor(owner, dtype=torch.int64),
        ids=torch.arange(n),
        ignore=torch.tensor(ignore or [False] * n, dtype=torch.bool),
        visible=torch.ones(n, dtype=torch.float32),
        keypoints=points.float(),
        quads=corners,
        rings=_join(outlines or [[]] * n, scale),
    )


def _table(rows: Sequence[Numbers], *shape: int) -> Float64[Tensor, "..."]:
    return torch.from_numpy(np.array(rows, dtype=np.float64)).reshape(shape)


def _join(outlines: Sequence[Sequence[Numbers]], scale: Float64[Tensor, "n 2"]) -> Rings:
    rings = [*chain.from_iterable(outlines)]
    numbers = np.fromiter(chain.from_iterable(rings), np.float64, count=sum(map(len, rings)))
    points = torch.from_numpy(numbers.reshape(-1, 2))
    ring_offsets = torch.tensor([0, *accumulate(len(ring) // 2 for ring in rings)])
    instance_offsets = torch.tensor([0, *accumulate(map(len, outlines))])
    counts = ring_offsets[instance_offsets].diff()
    return Rings(
        points=points.mul_(scale.repeat_interleave(counts, 0)).float(),
        ring_offsets=ring_offsets,
        instance_offsets=instance_offsets,
    )


def build(
    root: Path,
    files: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    targets: Targets,
    notes: Notes,
    place: Callable[[int], str],
    **fields: Any,
) -> Dataset:
    """A data set of photos ``files`` below ``root`` and of ``targets`` made tidy.

    ``fields`` are the other fields of :class:`fnpipe.data.dataset.Dataset`.
    """
    table = torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2)
    path_bytes, path_offsets = pack_names(files)
    targets = tidy(targets, table, lambda kind, row: notes.add(kind, place(row)))
    options: dict[str, Any] = {"image_ids": torch.arange(len(files)), **fields}
    return Dataset(
        root=root,
        path_bytes=path_bytes,
        path_offsets=path_offsets,
        sizes=table,
        targets=targets,
        offsets=offsets_of(torch.bincount(targets.owner, minlength=len(files))),
        report=notes.report(),
        **options,
    )
