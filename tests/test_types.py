"""Values of tensors: they are trees, they move whole, and they do not change."""

import pickle
from dataclasses import FrozenInstanceError
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fnpipe.types import (
    Batch,
    Plan,
    Rings,
    Sources,
    Targets,
    map_tensors,
    static,
    value,
)


@value
class Pair:
    """Two tensors and a word."""

    first: Tensor
    second: Tensor
    word: str = static(default="none")


def pair(word: str = "a") -> Pair:
    return Pair(torch.zeros(2), torch.ones(3), word)


def plan(**changes: Any) -> Plan:
    one = torch.zeros(1, dtype=torch.int64)
    identity = torch.diag(torch.tensor([128.0, 128.0, 1.0])).expand(1, 1, 3, 3)
    made = Plan(
        ids=one + 7,
        epochs=one,
        sources=one[:, None],
        maps=identity,
        forward=torch.eye(3, dtype=torch.float64).expand(1, 1, 3, 3),
        splits=torch.zeros(1, 2, 0, 3),
        mirror=torch.zeros(1, 2, dtype=torch.bool),
        colors=(torch.ones(1, 3), torch.ones(1, 1)),
        size=(480, 640),
    )
    return made.replace(**changes)


def batch(count: int = 2) -> Batch:
    return Batch(
        images=torch.zeros(count, 3, 4, 4),
        targets=Targets.empty(keypoints=2, corners=4),
        ids=torch.arange(count),
        epochs=torch.zeros(count, dtype=torch.int64),
    )


def test_a_value_is_a_tree_of_its_tensors():
    leaves, shape = pytree.tree_flatten(pair())
    assert [len(t) for t in leaves] == [2, 3]
    again = pytree.tree_unflatten([t + 1 for t in leaves], shape)
    assert isinstance(again, Pair)
    assert again.word == "a"
    assert again.second.tolist() == [2, 2, 2]


def test_what_is_static_is_structure():
    assert pytree.tree_structure(pair("a")) == pytree.tree_structure(pair("a"))
    assert pytree.tree_structure(pair("a")) != pytree.tree_structure(pair("b"))


def test_leaves_have_paths():
    paths = [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(batch())]
    assert paths[:3] == [".images", ".targets.boxes", ".targets.labels"]
    assert ".targets.rings.points" in paths


def test_a_value_does_not_change():
    with pytest.raises(FrozenInstanceError):
        pair().word = "b"  # type: ignore[misc]
    changed = plan().replace(size=(1, 2))
    assert changed.size == (1, 2)
    assert changed.colors is not None


def test_values_compare_by_identity_since_tensors_have_no_answer():
    one = pair()
    assert one == one
    assert one != pair()
    assert len({one, pair()}) == 2


def test_values_travel():
    sent = pickle.loads(pickle.dumps(batch()))
    assert isinstance(sent, Batch)
    assert torch.equal(sent.ids, torch.tensor([0, 1]))


class Named(NamedTuple):
    tensor: Tensor
    text: str


def test_case_119_types_and_words_survive_a_walk_over_tensors(monkeypatch: pytest.MonkeyPatch):
    tree = {"a": [Named(torch.zeros(2), "keep"), (torch.ones(1), None)], "b": "word", "c": 3}
    moved = map_tensors(lambda t: t + 1, tree)
    assert isinstance(moved["a"][0], Named)
    assert moved["a"][0].text == "keep"
    assert isinstance(moved["a"][1], tuple)
    assert moved["a"][1][1] is None
    assert (moved["b"], moved["c"]) == ("word", 3)
    assert moved["a"][0].tensor.tolist() == [1, 1]


def test_case_119_pinning_keeps_a_batch_a_batch_and_pins_every_tensor(
    monkeypatch: pytest.MonkeyPatch,
):
    pinned: list[Tensor] = []

    def pin(t: Tensor) -> Tensor:
        pinned.append(t)
        return t.clone()

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    given = batch()
    made = given.pin_memory()
    assert isinstance(made, Batch)
    assert isinstance(made.targets.rings, Rings)
    assert made.masks is None
    assert len(pinned) == len([t for t in pytree.tree_leaves(given) if isinstance(t, Tensor)])


def test_moving_moves_every_tensor():
    moved = plan().to("meta")
    tensors = [t for t in pytree.tree_leaves(moved) if isinstance(t, Tensor)]
    assert {t.device.type for t in tensors} == {"meta"}
    assert moved.size == (480, 640)


def test_lengths_count_what_there_are_many_of():
    assert len(batch(5)) == 5
    assert len(plan()) == 1
    assert len(Targets.empty()) == 0
    offsets, sizes = torch.tensor([2, 14]), torch.ones(2, 2, dtype=torch.int32)
    words, strides = torch.zeros(26, dtype=torch.int32), torch.full((2,), 3, dtype=torch.int32)
    assert len(Sources(words, offsets, sizes, torch.zeros_like(sizes), strides)) == 2


def test_nothing_has_the_shape_of_something():
    empty = Targets.empty(keypoints=17, corners=4)
    assert empty.boxes.shape == (0, 4)
    assert empty.labels.shape == (0,)
    assert empty.keypoints.shape == (0, 17, 3)
    assert empty.quads.shape == (0, 4, 2)
    assert Rings.empty(3).instance_offsets.tolist() == [0, 0, 0, 0]


def test_a_batch_shows_its_targets():
    made = batch()
    for name in ("boxes", "labels", "owner", "keypoints", "quads", "rings"):
        assert getattr(made, name) is getattr(made.targets, name)
