"""The strategies of ``fnpipe.testing`` reach the hard cases they promise, and every value is sound.

A law that a pipeline keeps for all of them stands here too; planted faults must break it.
"""

from typing import Any

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import fnpipe as fp
from fnpipe.testing import assert_same_bits, strategies
from fnpipe.testing.strategies import Album
from fnpipe.types import Targets


once = {"database": None, "derandomize": True, "phases": [Phase.generate]}
hunt = settings(max_examples=2000, deadline=None, **once)
some = settings(max_examples=60, deadline=None)
SIZE = (48, 64)


REACHED: dict[str, tuple[Any, Any]] = {
    "one pixel": (strategies.images(), lambda i: i.shape[1:] == (1, 1)),
    "one column": (strategies.images(), lambda i: i.shape[2] == 1 < i.shape[1]),
    "a grey photo": (strategies.images(), lambda i: i.shape[1] > 2 and bool((i[0] == i[2]).all())),
    "no instance": (strategies.albums(), lambda a: len(a.targets) == 0),
    "a crowd": (strategies.albums(), lambda a: bool(a.targets.ignore.any())),
    "two rings": (
        strategies.albums(),
        lambda a: bool((a.targets.rings.instance_offsets.diff() == 2).any()),
    ),
    "a missing keypoint": (
        strategies.albums(),
        lambda a: bool((a.targets.keypoints[..., 2] == 0).any()),
    ),
    "a quad that sticks out": (strategies.albums(), lambda a: bool((a.targets.quads < 0).any())),
    "a tie of channels": (strategies.colors, lambda c: c[0] == c[1] != c[2]),
    "nine tiles": (strategies.pipelines(), lambda p: getattr(p.stages[0], "tiles", 0) == 9),
    "perspective": (strategies.pipelines(), lambda p: p.projective),
}


@pytest.mark.parametrize("name", REACHED)
def test_hard_cases_are_reached(name: str):
    strategy, is_it = REACHED[name]
    find(strategy, is_it, settings=hunt)


@some
@given(strategies.albums())
def test_targets_are_sound(album: Album):
    """Boxes with an area in their photo, one row of everything an instance, owners ascending."""
    targets = album.targets
    limits = album.sizes[targets.owner]
    assert bool((targets.boxes[:, 2:] > targets.boxes[:, :2]).all())
    assert bool((targets.boxes[:, :2] >= 0).all() and (targets.boxes[:, 2:] <= limits).all())
    assert bool((targets.owner.diff() >= 0).all())
    rows = {len(targets.labels), len(targets.quads), len(targets.keypoints), len(targets)}
    assert rows == {len(targets.rings.instance_offsets) - 1}
    assert int(targets.rings.ring_offsets[-1]) == len(targets.rings.points)


def check_inside(targets: Targets) -> None:
    height, width = SIZE
    assert bool((targets.boxes >= 0).all())
    assert bool((targets.boxes <= torch.tensor([width, height, width, height])).all())
    assert bool((targets.boxes[:, 2:] > targets.boxes[:, :2]).all())
    assert bool(((targets.visible > 0) & (targets.visible <= 1)).all())


@some
@given(strategies.albums(), strategies.pipelines(size=SIZE), st.data())
def test_moved_targets_stay_inside_and_whole(album: Album, pipeline: fp.Pipeline, data: Any):
    """Nothing leaves the frame, and every kind of target has the same rows."""
    plan, moved = data.draw(strategies.plans(pipeline, album))
    check_inside(moved)
    again = pipeline.annotate(plan, album)
    assert_same_bits(moved, again)
    assert len(moved.rings.instance_offsets) == len(moved) + 1
    # Row i of all tables is instance ids[i] of the album.
    assert_same_bits(album.targets.labels[moved.ids], moved.labels)
    assert_same_bits(album.targets.ignore[moved.ids], moved.ignore)


@given(strategies.albums(), strategies.pipelines(size=SIZE), st.data())
def rerun(album: Album, pipeline: fp.Pipeline, data: Any) -> None:
    check_inside(data.draw(strategies.plans(pipeline, album))[1])


def test_a_box_outside_would_be_found(monkeypatch: pytest.MonkeyPatch):
    """The instrument: boxes shifted by one pixel after the move break the law above."""
    honest = fp.Pipeline.annotate

    def planted(self: fp.Pipeline, plan: fp.Plan, data: Any) -> Targets:
        moved = honest(self, plan, data)
        return moved.replace(boxes=moved.boxes + 1.0)

    monkeypatch.setattr(fp.Pipeline, "annotate", planted)
    with pytest.raises(AssertionError):
        settings(some, **once)(rerun)()
