"""Loading: which batches, what is refused, and what may not disturb the order."""

import copy
import gc
import multiprocessing
import pickle
import re
import time
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe import backends, cuts
from fnpipe.data.dataset import Dataset
from fnpipe.feed.addresses import Address, Epochs
from fnpipe.feed.job import Job
from fnpipe.packing import Packed, packed
from fnpipe.types import ArgumentError, LoaderError


PLAIN = fp.pipe(fp.resize(8), fp.flip(horizontal=0.5))


def load(data: Dataset, **options: Any) -> fp.Loader:
    given: dict[str, Any] = {"batch_size": 4, "seed": 0, "worker_backend": "eager"}
    # A test's functions are found by no other process that does not begin as a copy of this one.
    given |= {"backend": "eager", "start_method": "fork", **options}
    return fp.Loader(data, given.pop("pipeline", PLAIN), **given)


def ids(loader: fp.Loader) -> list[list[int]]:
    return [batch.ids.tolist() for batch in loader]


def test_an_epoch_is_every_sample_once_in_an_order_of_its_own(data: Dataset):
    loader = load(data)
    first, second = ids(loader), ids(loader)
    assert [len(b) for b in first] == [4, 4, 2]
    assert len(loader) == 3
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == [*range(10)]  # noqa: RUF017
    assert first != second
    assert ids(load(data)) == first
    assert ids(load(data, seed=1)) != first


def test_without_shuffling_samples_come_in_order(data: Dataset):
    assert ids(load(data, shuffle=False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert ids(load(data, shuffle=False, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_epoch_follows_the_last_or_is_the_one_asked_for(data: Dataset):
    loader = load(data)
    epochs = [next(iter(load_epoch(loader, None))) for _ in range(2)]
    assert epochs == [0, 1]
    assert next(iter(load_epoch(loader, 7))) == 7
    assert next(iter(load_epoch(loader, None))) == 8
    assert next(iter(load_epoch(loader, 0))) == 0


def load_epoch(loader: fp.Loader, epoch: int | None) -> list[int]:
    """The epochs of an epoch's batches."""
    if epoch is not None:
        loader.set_epoch(epoch)
    found = [int(e) for batch in loader for e in batch.epochs]
    assert len(set(found)) == 1
    return found[:1]


def test_leaving_an_epoch_early_disturbs_no_other(data: Dataset):
    whole = load(data)
    wanted = [ids(whole), ids(whole)]
    loader = load(data)
    for batch in loader:
        assert batch.ids.tolist() == wanted[0][0]
        break
    assert ids(loader) == wanted[1]


def test_a_batch_is_images_and_targets(data: Dataset):
    (batch,) = load(data, batch_size=10, shuffle=False)
    assert batch.images.shape == (10, 3, 8, 8)
    assert batch.images[:, 0, 0, 0].tolist() == [20 * i for i in range(10)]
    assert batch.owner.tolist() == [*range(10)]
    assert isinstance(batch, fp.Batch)


def test_a_batch_by_hand_is_the_loaders(data: Dataset):
    for batch in load(data, seed=3):
        made = fp.make_batch(data, PLAIN, batch.ids, seed=3)
        assert torch.equal(made.images, batch.images)
        assert torch.equal(made.boxes, batch.boxes)


@pytest.mark.parametrize("given", [[10], [-1, 2], [], torch.tensor([3, 99])])
def test_ids_of_no_photo_are_refused(data: Dataset, given: Any):
    shown = given.tolist() if isinstance(given, Tensor) else given
    with pytest.raises(ArgumentError) as caught:
        fp.make_batch(data, PLAIN, given, seed=0)
    assert str(caught.value) == f"ids wanted samples in [0, 10), came {shown}"


def test_a_mask_is_no_ids(data: Dataset):
    mask = torch.arange(10) < 2
    with pytest.raises(
        ArgumentError, match=r"^ids wanted integers, came torch\.bool; of a mask take"
    ):
        fp.make_batch(data, PLAIN, mask, seed=0)
    with pytest.raises(ArgumentError, match=r"^ids wanted integers, came \[1\.5\]"):
        fp.make_batch(data, PLAIN, [1.5], seed=0)
    assert fp.make_batch(data, PLAIN, 3, seed=0).ids.tolist() == [3]


def double(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return r * 2.0, g * 2.0, b * 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cut": "half"},
            "cut wanted one of finished, warped, source, plan, came 'half'",
        ),
        (
            {"backend": "gpu"},
            "backend (to render) wanted one of eager, compiled, package, triton, came 'gpu'",
        ),
        (
            {"cut": "warped", "backend": "package"},
            "backend (to paint) wanted one of eager, compiled, triton, came 'package'",
        ),
        (
            {"cut": "warped", "worker_backend": "triton"},
            "backend (to warp) wanted one of eager, compiled, package, came 'triton'",
        ),
        ({"batch_size": 0}, "batch_size wanted an integer >= 1, came 0"),
        (
            {"batch_size": 11, "drop_last": True},
            "drop_last leaves no batch: 10 photos, batch_size 11",
        ),
        ({"seed": 2**64}, "seed: wanted a 64-bit integer, came 18446744073709551616"),
        ({"workers": -1}, "workers wanted an integer >= 0, came -1"),
        ({"workers": 1, "prefetch": 0}, "prefetch wanted an integer >= 1, came 0"),
        ({"workers": 1, "timeout": 0.0}, "timeout wanted seconds > 0, came 0.0"),
        ({"timeout": float("inf")}, "timeout wanted seconds > 0, came inf"),
    ],
    ids=[
        *("cut", "backend", "device backend", "worker backend", "batch size", "drop last"),
        *("seed", "workers", "prefetch", "no timeout", "endless"),
    ],
)
def test_an_option_that_cannot_be_is_refused(data: Dataset, options: Any, message: str):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
        load(data, **options)


def test_an_empty_set_is_refused(data: Dataset):
    empty = data.subset([])
    with pytest.raises(ArgumentError) as caught:
        load(empty)
    assert str(caught.value) == (f"data wanted at least one photo, came an empty set ({data.root})")


def test_case_106_a_function_that_cannot_travel_is_refused_before_a_worker_starts(data: Dataset):
    own = fp.pointwise(lambda r, g, b: (b, g, r)).drawn(name="swapped")
    pipeline = fp.pipe(fp.resize(8), own)
    assert len(ids(load(data, pipeline=pipeline))) == 3
    with pytest.raises(ArgumentError) as caught:
        load(data, pipeline=pipeline, workers=2)
    message = str(caught.value)
    assert message.startswith(f"stage {own!r} cannot be sent to workers: ")
    assert message.endswith("; define its function with def at the top level of a module")


# Other processes cannot import a test's function by name.
DOUBLE = lambda: fp.pointwise(double).drawn()  # noqa: E731
STAGES = [
    lambda: fp.mosaic(8),
    lambda: fp.affine(degrees=1.0),
    lambda: fp.letterbox(8),
    lambda: fp.resize(8),
    lambda: fp.crop(8),
    lambda: fp.flip(horizontal=0.5),
    lambda: fp.hsv(hue=0.1),
    lambda: fp.brightness(0.5, p=0.5),
    lambda: fp.contrast(0.5),
    lambda: fp.grayscale(p=0.5),
    lambda: fp.solarize(99.0),
    lambda: fp.posterize(3),
    DOUBLE,
    lambda: fp.keep(side=1.0),
    lambda: fp.finish(torch.float16),
]


def test_case_106_every_stage_travels_and_gives_equal_output(data: Dataset):
    first, *others = [make() for make in STAGES]
    pipeline = fp.pipe(first, *others)
    job = Job(data, pipeline, Epochs(10, 4, 0), "finished", "eager")
    sent: Job = pickle.loads(pickle.dumps(job))
    assert sent.recipe == pipeline
    here, there = job.prepare(Address(1, 2)), sent.prepare(Address(1, 2))
    assert here.images is not None
    assert there.images is not None
    assert torch.equal(here.images, there.images)
    assert torch.equal(here.targets.boxes, there.targets.boxes)


def test_steps_and_samples_follow_from_the_address(data: Dataset):
    job = Job(data, PLAIN, Epochs(10, 4, 0), "finished", "eager")
    assert job.epochs.steps(0) == 3
    found = torch.cat([job.ids(Address(5, step)) for step in range(3)])
    assert sorted(found.tolist()) == [*range(10)]
    assert job.ids(Address(5, 1)).tolist() == found[4:8].tolist()
    assert job.prepare(Address(5, 1)).plan.epochs.tolist() == [5] * 4


def test_what_runs_where_is_told(data: Dataset):
    text = load(data, cut="warped").explain()
    assert "resize(8)" in text
    assert "warped" in text
    assert "backends: worker eager, device eager" in text


def test_a_plan_alone_wants_a_pool(data: Dataset):
    with pytest.raises(ArgumentError) as caught:
        load(data, cut="plan")
    assert str(caught.value) == (
        "cut 'plan' wanted a pool on cpu, came none: pool=fnpipe.pool(data, 'device', device='cpu')"
    )


def test_a_tensor_that_is_kept_keeps_its_batch_and_its_clone_does_not(data: Dataset):
    batch = next(iter(load(data)))
    whole = batch.images.untyped_storage()
    assert batch.ids.untyped_storage().data_ptr() == whole.data_ptr()
    assert batch.ids.clone().untyped_storage().nbytes() < whole.nbytes()


def test_one_iterator_at_a_time(data: Dataset):
    loader = load(data)
    first, second = iter(loader), iter(loader)
    next(first)
    assert int(next(second).epochs[0]) == 1
    with pytest.raises(LoaderError) as caught:
        next(first)
    assert str(caught.value) == (
        "epoch 0 was left at step 1, when its loader was closed, resumed or iterated anew; "
        "run one iterator at a time"
    )


def test_an_epoch_named_again_begins_again_unless_it_was_resumed(data: Dataset):
    loader = load(data)
    wanted = ids(loader)
    next(iter(loader))
    loader.set_epoch(0)
    assert ids(loader) == wanted
    loader.load_state_dict(loader.state_dict() | {"epoch": 0, "step": 1})
    loader.set_epoch(0)
    assert ids(loader) == wanted[1:]
    assert loader.epoch == 1


def test_a_state_counts_what_was_handed_out(data: Dataset):
    with load(data, workers=2, prefetch=4) as loader:
        where = [position(loader)]
        for _ in range(2):
            for _ in loader:
                where.append(position(loader))
    assert where == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]


def position(loader: fp.Loader) -> tuple[int, int]:
    state = loader.state_dict()
    return state["epoch"], state["step"]


def test_an_epoch_left_early_is_resumed_where_it_was_left(data: Dataset):
    loader, after = load(data), load(data)
    wanted = ids(load(data))
    next(iter(loader))
    after.load_state_dict(loader.state_dict())
    assert ids(after) == wanted[1:]
    limited = load(data, limit=1)
    assert len(limited) == 1
    assert ids(limited) == wanted[:1]
    assert position(limited) == (1, 0)


def test_a_state_beyond_a_limit_is_the_next_epoch(data: Dataset):
    state = load(data).state_dict() | {"epoch": 4, "step": 2}
    limited = load(data, limit=2)
    limited.load_state_dict(state)
    assert position(limited) == (5, 0)


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "seed 0, this loader has 1"),
    ({"batch_size": 5}, "batch_size '4', this loader has '5'"),
    ({"shuffle": False}, "shuffle True, this loader has False"),
    (
        {"pipeline": fp.pipe(fp.resize(9))},
        "recipe 'pipe(resize(8), flip(horizontal=0.5))', this loader has 'pipe(resize(9))'",
    ),
]


@pytest.mark.parametrize(("options", "message"), OTHERS)
def test_a_state_of_another_run_is_refused(data: Dataset, options: dict[str, Any], message: str):
    state = load(data).state_dict() | {"epoch": 3, "step": 1}
    other = load(data, **options)
    with pytest.raises(ArgumentError, match=re.escape(f"state is of a run with {message}")):
        other.load_state_dict(state)
    assert other.epoch == 0
    if "batch_size" not in options:
        other.load_state_dict(state, strict=False)
        assert position(other) == (3, 1)


def test_a_state_of_other_data_or_functions_is_refused(data: Dataset):
    state = load(data).state_dict()
    with pytest.raises(ArgumentError, match=r"^state is of a run with data '"):
        load(data.subset(range(9))).load_state_dict(state)
    twice, thrice = (fp.pipe(fp.resize(8), gain(by).drawn()) for by in (2.0, 3.0))
    state = load(data, pipeline=twice).state_dict()
    with pytest.raises(ArgumentError, match=r"^state is of a run with functions '"):
        load(data, pipeline=thrice).load_state_dict(state)


def test_a_state_of_another_function_without_a_text_is_refused(data: Dataset):
    """As one that was typed into an interpreter: it has no file."""
    names: dict[str, Any] = {"__name__": "typed"}
    loaders = []
    for by in (0.5, 0.25):
        exec(f"def gained(r, g, b):\n    return r * {by}, g, b", names)
        pipeline = fp.pipe(fp.resize(8), fp.pointwise(names["gained"]).drawn())
        loaders.append(load(data, pipeline=pipeline))
    loaders[0].load_state_dict(loaders[0].state_dict())
    with pytest.raises(ArgumentError, match=r"^state is of a run with functions '"):
        loaders[1].load_state_dict(loaders[0].state_dict())


def test_what_a_function_closes_over_is_told_by_content_not_by_where_it_lies(data: Dataset):
    """A function that is closed over lies elsewhere in every process."""

    def made(table: Tensor) -> fp.Loader:
        def tone(plane: Tensor) -> Tensor:
            return plane * 0.5

        def toned(r: Tensor, g: Tensor, b: Tensor) -> Any:
            return tone(r), g * table[0], b

        return load(data, pipeline=fp.pipe(fp.resize(8), fp.pointwise(toned).drawn()))

    loader = made(torch.zeros(2000))
    loader.load_state_dict(made(torch.zeros(2000)).state_dict())
    with pytest.raises(ArgumentError, match=r"^state is of a run with functions '"):
        loader.load_state_dict(made((torch.arange(2000) == 1000).float()).state_dict())


def gain(by: float) -> fp.pointwise:
    """Functions of one name and text that do not compute the same."""

    def gained(r: Tensor, g: Tensor, b: Tensor) -> Any:
        return r * by, g * by, b * by

    return fp.pointwise(gained)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"version": 0}, "state wanted version 1, came 0"),
        ({"epoch": -1}, "state wanted epoch, step >= 0, came -1, 0"),
        ({"step": None}, "state wanted epoch, step >= 0, came 0, None"),
    ],
)
def test_what_is_no_state_is_refused(data: Dataset, state: Any, message: str):
    loader = load(data)
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        loader.load_state_dict(loader.state_dict() | state)


def colors(batch: fp.Batch) -> list[int]:
    """How many colours each image has, fill left out."""
    flat = batch.images.flatten(2).transpose(1, 2)
    return [len({tuple(p) for p in image.tolist()} - {(114, 114, 114)}) for image in flat]


def test_case_100_close_mosaic_reaches_workers_that_are_ahead_and_a_resumed_run(data: Dataset):
    """Photos of one colour each, mosaic until epoch 3; workers are up to twelve batches ahead."""
    recipe = fp.schedule({0: fp.pipe(fp.mosaic(16)), 3: fp.pipe(fp.resize(16))})
    options: dict[str, Any] = {"pipeline": recipe, "workers": 2, "prefetch": 6}
    with load(data, **options) as loader:
        counts = [[n for batch in loader for n in colors(batch)] for _ in range(4)]
        state = loader.state_dict()
        assert {*counts[3]} == {1}
        assert all(max(epoch) > 1 for epoch in counts[:3])
    with load(data, **options) as after:
        after.load_state_dict(state)
        assert after.epoch == 4
        assert {n for batch in after for n in colors(batch)} == {1}


def test_sizes_by_bucket_compile_once_a_size(data: Dataset):
    recipe = fp.buckets(8, 12, 20).map(lambda size: fp.pipe(fp.resize(size)))
    loader = load(data, pipeline=recipe, batch_size=1)
    known = backends._part.cache_info().currsize
    seen = [batch.images.shape[2] for _ in range(5) for batch in loader]
    assert {*seen} == {8, 12, 20}
    assert backends._part.cache_info().currsize - known <= 3
    again = load(data, pipeline=recipe, batch_size=1, workers=1)
    assert seen == [batch.images.shape[2] for _ in range(5) for batch in again]
    assert loader.explain().count("crosses to the device") == 3


def test_the_size_of_batches_may_follow_the_epoch(data: Dataset):
    loader = load(data, batch_size=fp.schedule({0: 2, 1: 5}), workers=1)
    with loader:
        assert len(loader) == 5
        assert [len(batch) for batch in loader] == [2] * 5
        assert len(loader) == 2
        assert [len(batch) for batch in loader] == [5] * 2


def test_a_state_is_of_all_ranks(data: Dataset):
    """Saved by one of two, loaded by one of one: the rest of the epoch, whole."""
    half, whole = load(data, rank=1, world_size=2), ids(load(data))
    next(iter(half))
    after = load(data)
    after.load_state_dict(half.state_dict())
    assert ids(after) == whole[1:]


def test_a_parcel_that_moves_ahead_changes_no_order(data: Dataset, monkeypatch: pytest.MonkeyPatch):
    """As on a GPU: while a batch is used, the next parcel is taken, if it is ready, and moved."""
    wanted = ids(load(data, batch_size=1, limit=6))
    with load(data, batch_size=1, limit=6, workers=2) as loader:
        moved: list[int] = []
        monkeypatch.setattr(loader, "_side", "a stream")

        def move(buffer: Packed) -> tuple[cuts.Parcel, None]:
            moved.append(len(moved))
            return buffer.unpack(), None

        monkeypatch.setattr(loader, "_move", move)
        ahead = []
        for count, batch in enumerate(loader):
            assert batch.ids.tolist() == wanted[count]
            ahead.append(len(moved) - count - 1)
            time.sleep(0.05)
        assert max(ahead) == 1
        assert ahead[-1] == 0
        for _ in loader:
            break  # with a parcel ahead, which is let go of
        assert {int(batch.epochs[0]) for batch in loader} == {2}


def test_an_empty_rank_gets_empty_batches_of_the_same_kind(data: Dataset):
    shares = [
        list(load(data, batch_size=9, rank=rank, world_size=4, shuffle=False)) for rank in range(4)
    ]
    assert [[len(batch) for batch in own] for own in shares] == [[3, 1], [2, 0], [2, 0], [2, 0]]
    empty, whole = shares[3][1], shares[3][0]
    assert empty.images.shape == (0, 3, 8, 8)
    assert empty.images.dtype == whole.images.dtype
    assert empty.ids.tolist() == empty.epochs.tolist() == empty.boxes.tolist() == []
    assert empty.targets.rings.instance_offsets.tolist() == [0]


def test_batches_that_lie_ready_fit_in_the_memory_given(data: Dataset):
    one = packed(load(data).job.prepare(Address(0, 0))).buffer.numel()
    with load(data, workers=2, prefetch=9, memory=8 * one) as loader:
        assert loader.stats().bound == 2 * 3
        assert len(ids(loader)) == 3
    with pytest.raises(ArgumentError) as caught:
        load(data, workers=2, memory=4 * one - 1)
    assert str(caught.value) == (
        f"memory wanted {4 * one:,} bytes at least, for 2 workers and batches of {one:,}, "
        f"came {4 * one - 1:,}"
    )


def test_figures_while_it_runs(data: Dataset):
    with load(data, workers=2) as loader:
        assert loader.stats().bottleneck == "No batch has been handed out yet."
        list(loader)
        made = loader.stats()
    assert made.batches == 3
    assert made.bytes > 3 * 2 * 3 * 8 * 8
    assert made.bound == 4
    assert {*made.parts} == {"draw", "read", "render", "pack"}
    assert all(seconds > 0 for seconds in made.parts.values())
    assert made.waited > 0
    assert " are the bottleneck: " in made.bottleneck or " is the bottleneck: " in made.bottleneck


def children() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()}


def test_closed_it_leaves_no_process_and_can_go_on(data: Dataset):
    before, loader = children(), load(data, workers=2)
    with loader:
        first = next(iter(loader)).ids.tolist()
        assert len(children() - before) == 2
    assert children() == before
    loader.close()
    loader.set_epoch(0)
    assert next(iter(loader)).ids.tolist() == first
    loader.close()
    assert children() == before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_a_copy_goes_on_by_workers_of_its_own(data: Dataset, copied: Any, workers: int):
    """An unpickled one shared no memory with its workers: an epoch left early was the last."""
    options: dict[str, Any] = {"batch_size": 2, "start_method": "fork", "timeout": 5.0}
    loader = load(data, workers=workers, **options)
    whole = load(data, **options)
    wanted = [ids(whole), ids(whole)]
    batches = iter(loader)
    assert next(batches).ids.tolist() == wanted[0][0]
    other = copied(loader)
    with loader, other:
        assert other.state_dict() == loader.state_dict()
        assert next(iter(other)).ids.tolist() == wanted[1][0]
        other.set_epoch(0)
        assert ids(other) == wanted[0]
        assert [batch.ids.tolist() for batch in batches] == wanted[0][1:]


def test_forgotten_it_frees_its_batches_and_processes(data: Dataset):
    before, loader = children(), load(data, workers=2)
    batches = iter(loader)
    batch = next(batches)
    gone = weakref.ref(loader), weakref.ref(batch)
    del loader, batches, batch
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert children() == before


def test_a_loader_keeps_no_batch_that_it_handed_out(data: Dataset):
    loader = load(data)
    for batch in loader:
        last = weakref.ref(batch.images.untyped_storage())
        del batch
        gc.collect()
        assert last() is None


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_case_106_every_stage_runs_in_a_worker_started_anew(data: Dataset, start_method: str):
    first, *others = [make() for make in STAGES if make is not DOUBLE]
    pipeline = fp.pipe(first, *others)
    here = [batch.images for batch in load(data, pipeline=pipeline)]
    with load(data, pipeline=pipeline, workers=1, start_method=start_method) as loader:
        assert all(torch.equal(a, b.images) for a, b in zip(here, loader, strict=True))
