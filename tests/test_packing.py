"""A value as one buffer: what comes out is what went in, in one piece of memory."""

import pickle

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fnpipe.packing import ALIGNMENT, _builder, packed
from fnpipe.types import ArgumentError, Batch, Targets


DTYPES = [torch.uint8, torch.bool, torch.int32, torch.int64, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (3, 5)])
def test_a_tensor_comes_back(dtype: torch.dtype, shape: tuple[int, ...]):
    given = (torch.randn(shape) * 100).to(dtype)
    (back,) = packed([given]).unpack()
    assert back.dtype == dtype
    assert back.shape == given.shape
    assert torch.equal(back, given)


def test_channels_last_stays_channels_last():
    given = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    (back,) = packed([given]).unpack()
    assert back.stride() == given.stride()
    assert torch.equal(back, given)


def test_a_view_with_gaps_is_copied_without_them():
    given = torch.arange(24).view(4, 6)[:, ::2]
    (back,) = packed([given]).unpack()
    assert torch.equal(back, given)
    assert back.is_contiguous()
    assert packed([given]).buffer.numel() == 4 * 3 * 8


def test_a_tensor_that_repeats_itself_comes_back():
    given = torch.arange(3).expand(2, 3)
    (back,) = packed([given]).unpack()
    assert torch.equal(back, given)


def test_all_lie_in_one_buffer_each_at_an_even_place():
    given = [torch.ones(n, dtype=torch.uint8) * n for n in (1, 17, 3)]
    made = packed(given)
    assert [slot.start for slot in made.slots if slot] == [0, 16, 48]
    assert made.buffer.numel() == 64
    assert ALIGNMENT == 16
    storage = made.buffer.untyped_storage().data_ptr()
    assert {t.untyped_storage().data_ptr() for t in made.unpack()} == {storage}


def test_unpacking_copies_nothing():
    made = packed({"a": torch.zeros(4)})
    made.unpack()["a"][2] = 7
    assert made.unpack()["a"].tolist() == [0, 0, 7, 0]


def batch() -> Batch:
    return Batch(
        images=torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        targets=Targets.empty(keypoints=3, corners=4),
        ids=torch.tensor([5, 7]),
        epochs=torch.tensor([0, 0]),
    )


def same(a: object, b: object) -> bool:
    left, shape = pytree.tree_flatten(a)
    right, other = pytree.tree_flatten(b)
    return shape == other and all(
        torch.equal(x, y) if isinstance(x, Tensor) else x is y
        for x, y in zip(left, right, strict=True)
    )


def test_a_batch_keeps_its_type_and_what_is_absent():
    back = packed(batch()).unpack()
    assert isinstance(back, Batch)
    assert isinstance(back.targets, Targets)
    assert back.masks is None
    given = batch()
    assert same(packed(given).unpack(), given)


def test_it_travels_and_its_buffer_may_move():
    given = batch()
    sent = pickle.loads(pickle.dumps(packed(given)))
    assert same(sent.unpack(), given)
    shifted = torch.cat([torch.zeros(16, dtype=torch.uint8), sent.buffer])[16:]
    assert same(sent.replace(buffer=shifted).unpack(), given)
    assert len(pytree.tree_leaves(packed(given))) == 1


def test_memory_may_be_ones_own():
    asked: list[int] = []

    def empty(count: int, *, dtype: torch.dtype) -> Tensor:
        asked.append(count)
        return torch.empty(count, dtype=dtype)

    packed([torch.zeros(5)], empty=empty)
    assert asked == [32]


def test_nothing_is_packed_as_nothing():
    assert packed([]).unpack() == []
    assert packed([None, torch.zeros(0)]).unpack()[0] is None


def test_a_leaf_that_is_no_tensor_is_refused():
    with pytest.raises(ArgumentError) as caught:
        packed({"a": torch.zeros(1), "b": 7})
    assert str(caught.value) == "packed: wanted tensors and None as leaves, came 7"


def test_a_form_is_read_once_a_process_and_says_nothing_of_torchs_own():
    first, second = (packed(batch()) for _ in range(2))
    assert first.form == second.form
    assert b"_pytree" not in first.form
    known = _builder.cache_info().currsize
    for each in (first, second):
        each.unpack()
    assert _builder.cache_info().currsize <= known + 1


def test_one_copy_moves_all_of_it():
    made = packed(batch())
    there = made.to("meta")
    assert there.buffer.device.type == "meta"
    assert there.form is made.form


def test_what_lies_at_the_beginning_of_its_ground_stays_there():
    ground = torch.zeros(1000, dtype=torch.uint8)
    here = ground[:40].view(torch.float32).copy_(torch.arange(10.0))
    made = packed([torch.arange(3), here], ground=ground)
    assert made.buffer.data_ptr() == ground.data_ptr()
    assert made.slots[1] is not None
    assert (made.slots[1].start, made.buffer.numel()) == (0, 48 + 32)
    assert [t.tolist() for t in made.unpack()] == [[0, 1, 2], list(range(10))]


@pytest.mark.parametrize("size", [40, 70])
def test_a_ground_that_is_too_small_is_left(size: int):
    ground = torch.zeros(size, dtype=torch.uint8)
    here = ground[:40].view(torch.float32).copy_(torch.arange(10.0))
    made = packed([torch.arange(3), here], ground=ground)
    assert made.buffer.data_ptr() != ground.data_ptr()
    assert [t.tolist() for t in made.unpack()] == [[0, 1, 2], list(range(10))]


def test_what_lies_elsewhere_is_copied_from_there():
    ground = torch.zeros(1000, dtype=torch.uint8)
    made = packed([ground[16:32], torch.zeros(0)], ground=ground)
    assert made.buffer.data_ptr() != ground.data_ptr()
