"""Geometry: each stage a homography from parameters. A pipeline multiplies them into one."""

from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from fnpipe.keys import Key, uniform
from fnpipe.ops.maps import compose, fit, matrix, scale_and_shift, sine_cosine
from fnpipe.stages.stage import (
    Drawn,
    Frames,
    as_size,
    check_number,
    check_probability,
    stage,
)
from fnpipe.types import ArgumentError, Maps


def _nothing(key: Key) -> Drawn:
    """No parameters, for stages that draw none."""
    return torch.zeros(*key.sample.shape, 0, dtype=torch.float64)


def _frames_like(frames: Frames, height: int, width: int) -> Frames:
    return torch.tensor([width, height], dtype=torch.float64).expand(frames.shape)


@stage
class affine:
    """Rotate, scale, shear, shift and tilt about the frame's centre; the frame keeps its size.

    Degrees for ``degrees`` and ``shear`` (each way), a share of the frame for ``translate``, a gain
    of 1 +- ``scale``, ``perspective`` in 1 / pixel. In Ultralytics' order: perspective first, then
    rotation and scale, then shear, then translation, so that the hyper-parameters mean the same.
    With probability ``1 - p`` a sample stays as it is. Frames wander, photos are not cut: what
    leaves the frame here can come back by a later stage. Errors: ArgumentError for what could make
    a map singular: ``scale`` above 0.99, ``shear`` above 89, ``perspective`` above 0.01.
    """

    _: KW_ONLY
    degrees: float = 0.0
    translate: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    perspective: float = 0.0
    p: float = 1.0
    name: str = "affine"

    def __post_init__(self) -> None:
        check_number("affine", "degrees", self.degrees, 0.0)
        check_number("affine", "translate", self.translate, 0.0, 1.0)
        check_number("affine", "scale", self.scale, 0.0, 0.99)
        check_number("affine", "shear", self.shear, 0.0, 89.0)
        check_number("affine", "perspective", self.perspective, 0.0, 0.01)
        check_probability("affine", "p", self.p)

    @property
    def projective(self) -> bool:
        return self.perspective > 0.0

    def draw(self, key: Key) -> Drawn:
        """Columns: angle, gain, shear x, shear y, shift x, shift y, tilt x, tilt y."""
        u = uniform(key, 9)
        reach = torch.tensor(
            [self.degrees, self.scale, self.shear, self.shear]
            + [self.translate] * 2
            + [self.perspective] * 2,
            dtype=torch.float64,
        )
        drawn = (u[:, :8] * 2.0 - 1.0) * reach
        drawn = torch.where(u[:, 8:] < self.p, drawn, 0.0)
        drawn[:, 1] += 1.0
        return drawn

    def move(self, drawn: Drawn, frames: Frames) -> tuple[Maps, Frames]:
        angle, gain, shear_x, shear_y, shift_x, shift_y, tilt_x, tilt_y = drawn.unbind(1)
        width, height = frames.unbind(1)
        one = torch.ones_like(width)
        centred = scale_and_shift(one, one, width * -0.5, height * -0.5)
        if self.projective:
            tilt = matrix([[one, 0.0, 0.0], [0.0, one, 0.0], [tilt_x, tilt_y, one]])
            centred = compose(tilt, centred)
        sine, cosine = sine_cosine(angle)
        # y points down, so this turns counter-clockwise on screen for positive angles (cv2's way).
        turn = matrix(
            [
                [gain * cosine, gain * sine, 0.0],
                [0.0 - gain * sine, gain * cosine, 0.0],
                [0.0, 0.0, one],
            ]
        )
        total = compose(turn, centred)
        if self.shear > 0.0:
            (sx, cx), (sy, cy) = sine_cosine(shear_x), sine_cosine(shear_y)
            total = compose(
                matrix([[one, sx / cx, 0.0], [sy / cy, one, 0.0], [0.0, 0.0, one]]), total
            )
        back = scale_and_shift(one, one, (shift_x + 0.5) * width, (shift_y + 0.5) * height)
        return compose(back, total), frames


@stage
class letterbox:
    """Fit the frame into ``size`` (one number or height, width), centred, the rest filled.

    Sides are rounded to whole pixels; an odd pixel of padding goes right and below (Ultralytics).
    ``enlarge=False`` leaves a smaller frame at its size.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    enlarge: bool = True
    name: str = "letterbox"
    projective: ClassVar[bool] = False

    def __post_init__(self) -> None:
        as_size("letterbox", self.size)

    def draw(self, key: Key) -> Drawn:
        return _nothing(key)

    def move(self, drawn: Drawn, frames: Frames) -> tuple[Maps, Frames]:
        height, width = as_size("letterbox", self.size)
        fitted, gain = fit(frames, width, height)
        if not self.enlarge:
            small = (frames <= torch.tensor([width, height])).all(1, keepdim=True)
            fitted, gain = torch.where(small, frames, fitted), torch.where(small, 1.0, gain)
        out = _frames_like(frames, height, width)
        shift = ((out - fitted) * 0.5).floor()
        return scale_and_shift(*gain.unbind(1), *shift.unbind(1)), out


@stage
class resize:
    """Stretch the frame to ``size`` (one number or height, width), whatever its aspect."""

    size: int | tuple[int, int]
    _: KW_ONLY
    name: str = "resize"
    projective: ClassVar[bool] = False

    def __post_init__(self) -> None:
        as_size("resize", self.size)

    def draw(self, key: Key) -> Drawn:
        return _nothing(key)

    def move(self, drawn: Drawn, frames: Frames) -> tuple[Maps, Frames]:
        out = _frames_like(frames, *as_size("resize", self.size))
        none = torch.zeros_like(out[:, 0])
        gain_x, gain_y = (out / frames).unbind(1)
        return scale_and_shift(gain_x, gain_y, none, none), out


@stage
class crop:
    """A window of ``size`` at a whole-pixel position, anywhere in the frame or at its centre.

    Where the frame is smaller than the window it lies anywhere (or centred) inside the window.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    position: Literal["random", "center"] = "random"
    name: str = "crop"
    projective: ClassVar[bool] = False

    def __post_init__(self) -> None:
        as_size("crop", self.size)
        if self.position not in ("random", "center"):
            raise ArgumentError(
                f"crop: position wanted 'random' or 'center', came {self.position!r}"
            )

    def draw(self, key: Key) -> Drawn:
        """Columns: where in the slack the window begins, across and down, in [0, 1]."""
        if self.position == "center":
            return torch.full((*key.sample.shape, 2), 0.5, dtype=torch.float64)
        return uniform(key, 2)

    def move(self, drawn: Drawn, frames: Frames) -> tuple[Maps, Frames]:
        out = _frames_like(frames, *as_size("crop", self.size))
        slack = frames - out
        # `slack + sign` makes both ends as likely as the places between; the centre rounds down.
        reach = slack if self.position == "center" else slack + torch.where(slack < 0, -1.0, 1.0)
        start = torch.trunc(drawn * reach)
        start = torch.maximum(torch.minimum(start, slack.clamp(min=0.0)), slack.clamp(max=0.0))
        one = torch.ones_like(start[:, 0])
        return scale_and_shift(one, one, *(0.0 - start).unbind(1)), out


@stage
class flip:
    """Mirror left and right with probability ``horizontal``, up and down with ``vertical``.

    An exact permutation of pixels where it comes after all other geometry. Keypoints change places
    by the data set's left/right map when a sample is mirrored once, not when it is turned by both.
    """

    _: KW_ONLY
    horizontal: float = 0.0
    vertical: float = 0.0
    name: str = "flip"

    def __post_init__(self) -> None:
        check_probability("flip", "horizontal", self.horizontal)
        check_probability("flip", "vertical", self.vertical)

    def mirror(self, key: Key) -> Bool[Tensor, "b 2"]:
        chances = torch.tensor([self.horizontal, self.vertical], dtype=torch.float32)
        return uniform(key, 2) < chances
