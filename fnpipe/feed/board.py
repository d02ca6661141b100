"""What workers are at, on a board that all processes see: for messages and for statistics."""

from dataclasses import dataclass, field
from time import monotonic_ns

import torch
from jaxtyping import Int64
from torch import Tensor


FIELDS = (
    *("pid", "stream", "done", "epoch", "step", "sample", "since"),
    *("draw", "read", "render", "pack"),
)
"""One row a worker: what it is at, since when; then nanoseconds a part of the work, summed up."""
PARTS = ("draw", "read", "render", "pack")
AT = {name: place for place, name in enumerate(FIELDS)}


@dataclass
class Board:
    """A table in shared memory; each row has one writer, and readers may see it half written.

    Row ``w`` is worker w's; the last is the loader's own and says which stream is wanted.
    """

    workers: int
    table: Int64[Tensor, "w f"] = field(init=False)

    def __post_init__(self) -> None:
        self.table = torch.zeros(self.workers + 1, len(FIELDS), dtype=torch.int64).share_memory_()

    def line(self, row: int) -> "Line":
        """The row of a worker; -1 is the loader's."""
        return Line(self.table[row])

    def done(self, worker: int, stream: int) -> int:
        """How many batches of a stream a worker has finished."""
        line = self.line(worker)
        return line["done"] if line["stream"] == stream else 0

    def seconds(self) -> dict[str, float]:
        """Seconds that all workers together spent on each part of the work."""
        return {part: float(self.table[:, AT[part]].sum()) / 1e9 for part in PARTS}


class Line:
    """A row of the board. Reading and writing a number costs 0.1 us."""

    def __init__(self, row: Int64[Tensor, " f"]) -> None:
        self._row = row.numpy()

    def __getitem__(self, name: str) -> int:
        return int(self._row[AT[name]])

    def __setitem__(self, name: str, number: int) -> None:
        self._row[AT[name]] = number

    def spend(self, part: str, since: int) -> int:
        """Count the time since ``since`` (monotonic, ns) for a part of the work; returns now."""
        now = monotonic_ns()
        self._row[AT[part]] += now - since
        return now
