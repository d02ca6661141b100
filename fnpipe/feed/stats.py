"""Where the time goes while a loader runs, in numbers and in one sentence."""

from dataclasses import dataclass, field


HINTS = {
    "draw": "drawing and moving targets: add workers",
    "read": "reading and decoding photos: hold them decoded in a pool, prepare smaller ones, or "
    "add workers",
    "render": "pixels: cut earlier so that the device makes them, or add workers",
    "pack": "copying finished batches: cut earlier, or quantise to a smaller dtype",
}
"""What to do, by the part of the workers' work that takes longest."""
NEGLIGIBLE = 0.05
"""A share of time that the consumer may wait without anybody calling the loader slow."""


@dataclass(frozen=True)
class Stats:
    """A loader's figures since it was made; seconds on the clock of whoever spent them.

    ``waited`` for workers, where a batch was not made yet when it was asked for; ``completed`` on
    the host's part of receiving, moving and finishing batches; ``consumed`` between handing out a
    batch and being asked for the next. ``parts`` are seconds of all workers together. ``ready`` is
    how many batches lay ready on average when one was asked for, ``bound`` how many there can be.
    """

    batches: int = 0
    waited: float = 0.0
    completed: float = 0.0
    consumed: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    ready: float = 0.0
    bound: int = 0
    bytes: int = 0
    replaced: int = 0

    @property
    def bottleneck(self) -> str:
        """One sentence: who waits for whom, and what would help."""
        total = self.waited + self.completed + self.consumed
        if not self.batches or not total:
            return "No batch has been handed out yet."
        waited = self.waited / total
        if waited < NEGLIGIBLE and self.completed < self.consumed:
            return (
                f"The consumer is the bottleneck: it waits for {waited:.1%} of the time, and "
                f"{self.ready:.1f} of {self.bound} batches lie ready when it asks."
            )
        if self.completed > self.waited:
            return (
                f"The loader's own thread is the bottleneck: {self.completed / total:.1%} of the "
                "time goes into moving batches and finishing them on the device."
            )
        part = max(self.parts, key=self.parts.__getitem__)
        share = self.parts[part] / (sum(self.parts.values()) or 1.0)
        return (
            f"Workers are the bottleneck: the consumer waits for {waited:.1%} of the time, and "
            f"{share:.0%} of their work is {HINTS[part]}."
        )

    def __str__(self) -> str:
        each = max(self.batches, 1) / 1e3
        lines = [f"{self.batches} batches, {self.bytes / 1e6:,.1f} MB, {self.replaced} replaced"]
        for name in ("waited", "completed", "consumed"):
            lines.append(f"  {name:10s} {getattr(self, name) / each:10.3f} ms a batch")
        for name, seconds in self.parts.items():
            lines.append(f"  {name:10s} {seconds / each:10.3f} ms a batch, in workers")
        lines.append(f"  ready      {self.ready:10.1f} of {self.bound} batches")
        return "\n".join([*lines, self.bottleneck])


@dataclass
class Tally:
    """What a loader counts as it goes, in nanoseconds: a few additions a batch."""

    bound: int
    batches: int = 0
    waited: int = 0
    completed: int = 0
    consumed: int = 0
    ready: int = 0
    bytes: int = 0

    def stats(self, parts: dict[str, float], replaced: int) -> Stats:
        """The figures, with the seconds that workers spent."""
        return Stats(
            batches=self.batches,
            waited=self.waited / 1e9,
            completed=self.completed / 1e9,
            consumed=self.consumed / 1e9,
            parts=parts,
            ready=self.ready / max(self.batches, 1),
            bound=self.bound,
            bytes=self.bytes,
            replaced=replaced,
        )
