"""Which part of a batch is whose: ranks share one global batch without a word between them."""

from typing import NamedTuple

import torch.distributed

from fnpipe.types import ArgumentError


class Share(NamedTuple):
    """One of ``world_size`` consecutive parts of every batch: that of ``rank``."""

    rank: int = 0
    world_size: int = 1

    def of(self, places: range) -> range:
        """The rank's part of a batch's places; parts differ by at most one, and may be empty.

        All ranks' parts in order are the batch, so its samples do not depend on the world size.
        """
        first, last = (-(-len(places) * r // self.world_size) for r in (self.rank, self.rank + 1))
        return places[first:last]


def share(rank: int | None, world_size: int | None) -> Share:
    """The share that is asked for, that of torch.distributed where it is initialised, or all.

    Errors: ArgumentError for a rank without a world size, or outside it.
    """
    if rank is None and world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return Share()
    if isinstance(rank, int) and isinstance(world_size, int) and 0 <= rank < world_size:
        return Share(rank, world_size)
    raise ArgumentError(
        f"rank, world_size wanted 0 <= rank < world_size, came {rank!r}, {world_size!r}"
    )
