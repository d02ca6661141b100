"""What workers are at, on a board that all processes see: for messages and for statistics."""

from time import monotonic_ns

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fnpipe.feed.slab import shared_copy


PARTS = ("draw", "read", "render", "pack")
FIELDS = ("pid", "stream", "done", "epoch", "step", "sample", "since", *PARTS)
"""One row a worker: what it is at, since when; then nanoseconds a part of the work, summed up."""
AT = {name: place for place, name in enumerate(FIELDS)}


class Board:
    """A table in shared memory; each row has one writer, and readers may see it half written.

    Row ``w`` is worker w's; the last is the loader's own and says which stream is wanted. Without
    workers the loader has the first, too, and there is nobody to share with. Errors: LoaderError.
    """

    table: Int64[Tensor, "w f"]
    lines: tuple["Line", ...]

    def __init__(self, workers: int) -> None:
        table = torch.zeros(max(workers, 1) + 1, len(FIELDS), dtype=torch.int64)
        self.__setstate__((shared_copy(table) if workers else table,))

    def __getstate__(self) -> tuple[Int64[Tensor, "w f"]]:
        return (self.table,)

    def __setstate__(self, state: tuple[Int64[Tensor, "w f"]]) -> None:
        (self.table,) = state
        self._numbers = self.table.numpy()
        self.lines = tuple(Line(row) for row in self._numbers)
        self._streams, self._done = (self._numbers[:-1, AT[name]] for name in ("stream", "done"))

    def done(self, stream: int) -> int:
        """How many batches of a stream are finished."""
        return int(self._done @ (self._streams == stream))

    def seconds(self) -> dict[str, float]:
        """Seconds that all workers together spent on each part of the work."""
        return {part: float(self._numbers[:, AT[part]].sum()) / 1e9 for part in PARTS}

    def clear(self) -> None:
        """Forget what workers are at, and keep the times."""
        self._numbers[:-1, : AT["draw"]] = 0


class Line:
    """A row of the board. Reading or writing a number costs 0.1 us."""

    def __init__(self, row: np.ndarray | None = None) -> None:
        self._row = np.zeros(len(FIELDS), dtype=np.int64) if row is None else row

    def __getitem__(self, name: str) -> int:
        return int(self._row[AT[name]])

    def __setitem__(self, name: str, number: int) -> None:
        self._row[AT[name]] = number

    def spend(self, part: str, since: int) -> int:
        """Count the time since ``since`` (monotonic, ns) for a part of the work; returns now."""
        now = monotonic_ns()
        self._row[AT[part]] += now - since
        return now
