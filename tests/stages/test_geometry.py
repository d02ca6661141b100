"""Geometry: where each stage sends a point, what it draws, and which options it refuses."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe.keys import Key
from fnpipe.types import ArgumentError


Samples = Callable[..., Key]
FramesOf = Callable[..., Tensor]


def send(stage: Any, drawn: list[float], frame: Tensor, *points: tuple[float, float]) -> Tensor:
    """Where a stage moves points, given what it drew; and the new frame, last."""
    maps, after = stage.move(torch.tensor([drawn], dtype=torch.float64), frame)
    given = torch.tensor([(x, y, 1.0) for x, y in points], dtype=torch.float64)
    moved = given @ maps[0].T
    return torch.cat([moved[:, :2] / moved[:, 2:], after])


STILL = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
"""Angle, gain, shear x, shear y, shift x, shift y, tilt x, tilt y of an affine stage at rest."""


def drawn_affine(**changes: float) -> list[float]:
    names = ["angle", "gain", "shear_x", "shear_y", "shift_x", "shift_y", "tilt_x", "tilt_y"]
    return [changes.get(name, rest) for name, rest in zip(names, STILL, strict=True)]


def test_an_affine_stage_at_rest_is_the_identity_exactly(samples: Samples, frames: FramesOf):
    stage = fp.affine()
    maps, after = stage.move(stage.draw(samples(5)), frames((97, 65)).expand(5, 2))
    assert (maps == torch.eye(3, dtype=torch.float64)).all()
    assert after.tolist() == [[97, 65]] * 5


@pytest.mark.parametrize(
    ("changes", "corner"),
    [
        ({"gain": 2.0}, (-50.0, -20.0)),
        ({"shift_x": 0.1, "shift_y": -0.5}, (10.0, -20.0)),
        # A quarter turn counter-clockwise on screen: the top left corner goes to the bottom left.
        ({"angle": 90.0}, (30.0, 70.0)),
        ({"angle": 180.0}, (100.0, 40.0)),
        ({"shear_x": 45.0}, (-20.0, 0.0)),
        ({"shear_y": 45.0}, (0.0, -50.0)),
    ],
)
def test_an_affine_stage_moves_about_the_frames_centre(
    frames: FramesOf, changes: dict[str, float], corner: tuple[float, float]
):
    stage = fp.affine(degrees=180.0, scale=0.9, shear=80.0, translate=1.0)
    found = send(stage, drawn_affine(**changes), frames((100, 40)), (0, 0), (50, 20))
    assert found[0].tolist() == pytest.approx(corner)
    shifted = (50 + 100 * changes.get("shift_x", 0), 20 + 40 * changes.get("shift_y", 0))
    assert found[1].tolist() == pytest.approx(shifted)
    assert found[2].tolist() == [100, 40]


def test_perspective_comes_first(frames: FramesOf):
    """As Ultralytics does: a point 50 right of the centre has depth 1 + 0.002 * 50."""
    stage = fp.affine(perspective=0.01)
    found = send(stage, drawn_affine(tilt_x=0.002), frames((100, 40)), (100, 20), (50, 0))
    assert found[0].tolist() == pytest.approx((50 + 50 / 1.1, 20))
    assert found[1].tolist() == pytest.approx((50, 0))


def test_what_an_affine_stage_draws_fills_its_ranges(samples: Samples):
    stage = fp.affine(degrees=30.0, translate=0.2, scale=0.5, shear=10.0, perspective=0.001)
    drawn = stage.draw(samples(4000))
    rest = torch.tensor(STILL, dtype=torch.float64)
    reach = torch.tensor([30, 0.5, 10, 10, 0.2, 0.2, 0.001, 0.001], dtype=torch.float64)
    share = (drawn - rest) / reach
    assert (share.abs() <= 1).all()
    assert (share.amax(0) > 0.99).all()
    assert (share.amin(0) < -0.99).all()
    assert (share.mean(0).abs() < 0.05).all()


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_a_sample_stays_as_it_is_with_probability_one_less_p(samples: Samples, p: float):
    drawn = fp.affine(degrees=30.0, scale=0.5, p=p).draw(samples(4000))
    still = (drawn == torch.tensor(STILL, dtype=torch.float64)).all(1)
    assert float(still.double().mean()) == pytest.approx(1 - p, abs=0.03)


def test_p_changes_no_number_of_those_that_move(samples: Samples):
    sure = fp.affine(degrees=30.0).draw(samples(100))
    rare = fp.affine(degrees=30.0, p=0.5).draw(samples(100))
    moved = rare[:, 0] != 0
    assert moved.any()
    assert torch.equal(rare[moved], sure[moved])


@pytest.mark.parametrize(
    ("size", "options", "frame", "corner", "gain"),
    [
        (512, {}, (1733, 977), (0, 111), (512 / 1733, 289 / 977)),
        (512, {}, (977, 1733), (111, 0), (289 / 977, 512 / 1733)),
        ((100, 200), {}, (50, 50), (50, 0), (2, 2)),
        ((100, 200), {"enlarge": False}, (50, 40), (75, 30), (1, 1)),
        ((100, 200), {"enlarge": False}, (400, 200), (0, 0), (0.5, 0.5)),
        (640, {}, (9000, 6), (0, 319), (640 / 9000, 1 / 6)),
        (640, {}, (1, 1), (0, 0), (640, 640)),
    ],
)
def test_case_64_a_letterbox_pads_by_the_rounded_sides(
    frames: FramesOf, size: Any, options: Any, frame: Any, corner: Any, gain: Any
):
    """1733 x 977 becomes 512 x 289: 111 rows above, 112 below."""
    stage = fp.letterbox(size, **options)
    found = send(stage, [], frames(frame), (0, 0), (frame[0], frame[1]))
    assert found[0].tolist() == list(corner)
    ends = [c + side * g for c, side, g in zip(corner, frame, gain, strict=True)]
    assert found[1].tolist() == pytest.approx(ends, abs=1e-9)
    assert ends == pytest.approx([round(e) for e in ends])
    height, width = (size, size) if isinstance(size, int) else size
    assert found[2].tolist() == [width, height]


def test_case_64_there_and_back_loses_nothing(frames: FramesOf):
    maps, _ = fp.letterbox(512).move(torch.zeros(1, 0, dtype=torch.float64), frames((1733, 977)))
    point = torch.tensor([123.456, 789.012, 1.0], dtype=torch.float64)
    assert (torch.linalg.inv(maps[0]) @ (maps[0] @ point) - point).abs().max() < 1e-9


def test_resize_stretches(frames: FramesOf):
    found = send(fp.resize((30, 20)), [], frames((10, 10)), (10, 10), (5, 1))
    assert found.tolist() == [[20, 30], [10, 3], [20, 30]]


@pytest.mark.parametrize(
    ("frame", "drawn", "corner"),
    [
        ((100, 60), (0.0, 0.0), (0, 0)),
        ((100, 60), (0.999, 0.999), (-60, -30)),
        ((100, 60), (0.5, 0.5), (-30, -15)),
        # A frame smaller than the window lies in it.
        ((20, 10), (0.999, 0.999), (20, 20)),
        ((20, 10), (0.0, 0.0), (0, 0)),
        ((100, 10), (0.999, 0.999), (-60, 20)),
        ((40, 30), (0.999, 0.0), (0, 0)),
    ],
)
def test_a_crop_begins_at_a_whole_pixel_anywhere_in_the_slack(
    frames: FramesOf, frame: Any, drawn: Any, corner: Any
):
    found = send(fp.crop((30, 40)), list(drawn), frames(frame), (0, 0))
    assert found.tolist() == [list(corner), [40, 30]]


def test_both_ends_of_the_slack_are_as_likely_as_the_rest(samples: Samples, frames: FramesOf):
    stage = fp.crop((30, 40))
    maps, _ = stage.move(stage.draw(samples(6000)), frames((43, 27)).expand(6000, 2))
    across, down = maps[:, 0, 2], maps[:, 1, 2]
    for found, places in ((across, [-3, -2, -1, 0]), (down, [0, 1, 2, 3])):
        assert sorted(set(found.tolist())) == places
        assert all(abs(int((found == p).sum()) - 1500) < 150 for p in places)


@pytest.mark.parametrize(("frame", "corner"), [((100, 61), (-30, -15)), ((21, 11), (9, 9))])
def test_a_centred_crop_draws_nothing(samples: Samples, frames: FramesOf, frame: Any, corner: Any):
    stage = fp.crop((30, 40), position="center")
    maps, _ = stage.move(stage.draw(samples(1)), frames(frame))
    assert maps[0, :2, 2].tolist() == list(corner)


@pytest.mark.parametrize(("horizontal", "vertical"), [(0.0, 0.0), (1.0, 0.0), (0.3, 0.8)])
def test_a_flip_has_a_probability_a_direction(samples: Samples, horizontal: float, vertical: float):
    flips = fp.flip(horizontal=horizontal, vertical=vertical).mirror(samples(4000))
    share = flips.double().mean(0).tolist()
    assert share == pytest.approx([horizontal, vertical], abs=0.03)
    both = float(flips.all(1).double().mean())
    assert both == pytest.approx(horizontal * vertical, abs=0.03)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fp.affine(p=1.5), "affine: p wanted a number in [0, 1], came 1.5"),
        (lambda: fp.affine(p=-0.1), "affine: p wanted a number in [0, 1], came -0.1"),
        (lambda: fp.affine(scale=1.0), "affine: scale wanted a number in [0, 0.99], came 1.0"),
        (lambda: fp.affine(shear=90.0), "affine: shear wanted a number in [0, 89], came 90.0"),
        (lambda: fp.affine(degrees=-5.0), "affine: degrees wanted a number >= 0, came -5.0"),
        (
            lambda: fp.affine(degrees=float("nan")),
            "affine: degrees wanted a number >= 0, came nan",
        ),
        (
            lambda: fp.affine(perspective=0.1),
            "affine: perspective wanted a number in [0, 0.01], came 0.1",
        ),
        (
            lambda: fp.letterbox(0),
            "letterbox: size wanted pixels, one number or (height, width), each >= 1, came 0",
        ),
        (
            lambda: fp.resize((64, 0)),
            "resize: size wanted pixels, one number or (height, width), each >= 1, came (64, 0)",
        ),
        (
            lambda: fp.flip(horizontal=2.0),
            "flip: horizontal wanted a number in [0, 1], came 2.0",
        ),
    ],
)
def test_an_option_out_of_range_is_refused(make: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        make()


def test_an_option_that_is_not_there_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'angle'"):
        fp.affine(angle=30)  # type: ignore[call-arg]


@dataclass(frozen=True)
class moving:
    """A stage of geometry that answers with what it is given."""

    answer: Callable[[Tensor], Any]
    name: str = "moving"
    projective = False

    def draw(self, key: fp.Key) -> Tensor:
        return torch.zeros(*key.sample.shape, 1, dtype=torch.float64)

    def move(self, drawn: Tensor, frames: Tensor) -> Any:
        return self.answer(frames)

    def __repr__(self) -> str:
        return "moving()"


@pytest.mark.parametrize(
    ("answer", "came"),
    [
        (lambda frames: None, "None"),
        (lambda frames: torch.eye(3).repeat(2, 1, 1), "float32[2, 3, 3]"),
        (lambda frames: (torch.eye(3).repeat(2, 1, 1), None), "(float32[2, 3, 3], None)"),
        (
            lambda frames: (torch.eye(3).repeat(2, 1, 1)[:, :2], frames),
            "(float32[2, 2, 3], float64[2, 2])",
        ),
    ],
    ids=["nothing", "a map alone", "no frames", "two rows"],
)
def test_a_stage_that_returns_no_maps_and_frames_is_told_of(answer: Any, came: str):
    data: Any = SimpleNamespace(
        sizes=torch.tensor([[20, 10], [30, 10]]),
        targets=fp.Targets.empty(),
        offsets=torch.zeros(3, dtype=torch.int64),
        keypoint_flip=(),
        read=len,
    )
    train = fp.pipe(fp.letterbox(8), moving(answer))
    wanted = "moving(): move wanted to return (maps float64[2, 3, 3], frames float64[2, 2]), came "
    with pytest.raises(ArgumentError, match=f"^{re.escape(wanted + came)}$"):
        train.draw(fp.key(seed=0, epoch=0, sample=torch.arange(2)), data)
