"""Masks, the last thing made of targets: rings stay rings until there is nothing left to move."""

from dataclasses import KW_ONLY
from typing import Any

from fnpipe.ops import paint, raster
from fnpipe.stages.stage import stage
from fnpipe.types import Masks, Targets, check_choice, check_whole


KINDS = ("instance", "overlap", "semantic")


@stage
class masks:
    """Rings to masks, a pixel for ``stride`` x ``stride`` of the image: ``batch.masks``.

    - "instance": bool [n, h / stride, w / stride], a plane for each row of the targets, empty for a
      row without rings; :func:`fnpipe.split_by_owner` takes it apart by image.
    - "overlap": int32 [b, h / stride, w / stride], where instances of an image are numbered from 1
      in the order of their rows, smaller ones on top, and 0 is background.
    - "semantic": int32 [b, h / stride, w / stride], labels, smaller ones on top; -1 is background.

    A crowd is drawn like any instance: ``ignore`` says which rows they are. Wherever a batch is
    cut, the device rasterises what a worker has not, to the same bits. Errors: ArgumentError for an
    unknown kind or a stride below 1, and where it does not divide the image.
    """

    _: KW_ONLY
    stride: int = 4
    kind: str = "instance"
    name: str = "masks"

    def __post_init__(self) -> None:
        check_choice("masks: kind", self.kind, KINDS)
        check_whole("masks: stride", self.stride, 1)

    def rasterize(
        self, targets: Targets, images: int, size: tuple[int, int], *, impl: str = "torch"
    ) -> Masks:
        """The masks of a batch of ``images`` images of ``size`` (height, width)."""
        how: dict[str, Any] = {"stride": self.stride, "impl": impl}
        rings = targets.rings
        if self.kind == "instance":
            return raster.masks(rings, size, **how)
        if self.kind == "overlap":
            return paint.overlap_map(rings, targets.owner, images, size, **how)
        return paint.semantic_map(rings, targets.labels, targets.owner, images, size, **how)
