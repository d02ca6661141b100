"""The operators that a compiled step calls; whole steps are compiled in properties/test_step.py."""

import gc
import pickle
import re
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fnpipe as fp
from fnpipe import cuts, step
from fnpipe.data.dataset import Dataset
from fnpipe.types import Rings, map_tensors


FINISHES = [fp.finish(torch.bfloat16, channels_last=True), fp.finish(torch.float32), fp.finish()]
STAGES = (fp.mosaic(16), fp.mixup(p=0.5), fp.hsv(hue=0.1))


def parcel_of(pipeline: fp.Pipeline, cut: str, data: Dataset) -> cuts.Parcel:
    drawn = cuts.draw(data, pipeline, fp.key(seed=0, epoch=0, sample=torch.arange(3)))
    return cuts.add_pixels(drawn, pipeline, cut, "eager", data, None)


class Calls(TorchDispatchMode):
    """Notes what operators of ours were given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "fnpipe":
            self.seen.append((func, args))
        return func(*args, **(kwargs or {}))


def call(pipeline: fp.Pipeline, cut: str, data: Dataset, **options: Any) -> tuple[Tensor, Any]:
    """What a step gets for a parcel, and the operator with its arguments."""
    backend = options.get("backend", "eager")
    parcel = cuts.settle(parcel_of(pipeline, cut, data), pipeline)
    bound = pipeline._bound
    with Calls() as calls:
        if parcel.planes is not None:
            made = step.paint(bound, parcel.planes, parcel.plan.colors, backend)
        else:
            assert parcel.sources is not None
            made = step.render(bound, parcel.plan, parcel.sources, backend)
    ((operator, given),) = calls.seen
    return made, (operator, given)


@pytest.mark.parametrize("cut", ["warped", "source"])
@pytest.mark.parametrize("finish", FINISHES, ids=["bfloat16 last", "float32 first", "uint8 first"])
def test_an_operator_makes_what_the_pipeline_makes(finish: Any, cut: str, photos: Dataset):
    """And torch's own check of an operator passes: schema, fake tensors, tracing, no gradient."""
    pipeline = fp.pipe(*STAGES, finish)
    expected = cuts.complete(parcel_of(pipeline, cut, photos), pipeline).images
    made, (operator, given) = call(pipeline, cut, photos)
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()
    torch.library.opcheck(operator, given)


def test_layers_stay_apart(photos: Dataset):
    pipeline = fp.pipe(fp.mosaic(16), fp.mixup(p=0.7, alpha=1), fp.cutmix(p=0.7), fp.hsv(hue=0.2))
    expected = cuts.complete(parcel_of(pipeline, "source", photos), pipeline).images
    assert torch.equal(call(pipeline, "source", photos)[0], expected)


def test_a_projective_plan_stays_one(photos: Dataset):
    pipeline = fp.pipe(fp.resize(16), fp.affine(perspective=0.01))
    expected = cuts.complete(parcel_of(pipeline, "source", photos), pipeline).images
    assert torch.equal(call(pipeline, "source", photos)[0], expected)


def test_an_operator_refuses_an_unknown_backend(photos: Dataset):
    with pytest.raises(fp.ArgumentError, match=r"^backend \(to render\) wanted .*, came 'fast'$"):
        call(fp.pipe(*STAGES), "source", photos, backend="fast")


def test_a_pipeline_is_known_by_name_for_as_long_as_it_lives(photos: Dataset):
    pipeline = fp.pipe(fp.resize(8))
    _, (operator, given) = call(pipeline, "source", photos)
    held = weakref.ref(pipeline)
    del pipeline
    gc.collect()
    assert held() is None
    message = "a compiled step calls a pipeline that is gone; keep it as long as the step"
    with pytest.raises(fp.ArgumentError, match=f"^{message}$"):
        operator(*given)


def test_a_pipeline_that_travelled_has_a_name_of_its_own():
    pipeline = fp.pipe(*STAGES)
    copy = pickle.loads(pickle.dumps(pipeline))
    assert copy == pipeline
    assert hash(copy) == hash(pipeline)
    assert copy._bound.name != pipeline._bound.name
    assert copy._bound[1:] == pipeline._bound[1:] == (torch.uint8, False)


def test_what_is_not_settled_is_named(photos: Dataset):
    pipeline = fp.pipe(*STAGES, fp.masks(stride=4))
    parcel = parcel_of(pipeline, "source", photos)
    assert isinstance(parcel.plan.overs[0].cover, Rings)
    half = parcel.replace(lacking=parcel.sources)
    call = "call fnpipe.cuts.settle before the step, or take Loader.parcels()"
    message = (
        "complete: a compiled step cannot do windows to land in the pool and rings of layers and "
        f"masks: {call}"
    )
    with pytest.raises(fp.ArgumentError, match=f"^{re.escape(message)}$"):
        cuts._check_settled(half, pipeline)
    assert parcel.sources is not None
    with pytest.raises(fp.ArgumentError, match=re.escape(call)):
        step.render(pipeline._bound, parcel.plan, parcel.sources, "eager")
    cuts._check_settled(cuts.settle(parcel, pipeline), pipeline)


@pytest.mark.parametrize("cut", cuts.CUTS)
def test_a_settled_parcel_is_finished_to_the_same_batch(cut: str, photos: Dataset):
    pipeline = fp.pipe(*STAGES, fp.masks(stride=4))
    parcel = parcel_of(pipeline, cut, photos)
    pool = None
    if cut == "plan":
        made = fp.pool(photos, "ram", progress=False)
        pool = made.sources
    expected = fp.complete(parcel, pipeline, pool=pool)
    settled = cuts.settle(parcel, pipeline, pool=pool)
    got = fp.complete(settled, pipeline)
    assert torch.equal(expected.images, got.images)
    assert expected.masks is not None
    assert got.masks is not None
    assert torch.equal(expected.masks, got.masks)
    again = cuts.settle(settled, pipeline)
    map_tensors(lambda t: t, again)
    assert torch.equal(fp.complete(again, pipeline).images, expected.images)


def test_a_plan_without_its_pool_is_refused(photos: Dataset):
    pipeline = fp.pipe(*STAGES)
    with pytest.raises(fp.ArgumentError, match=r"a plan alone wants the pool it counts in$"):
        cuts.settle(parcel_of(pipeline, "plan", photos), pipeline)


def test_a_rank_without_a_sample_is_told(photos: Dataset):
    loader = fp.Loader(
        photos, fp.pipe(fp.resize(8)), batch_size=3, seed=0, backend="eager",
        worker_backend="eager", rank=2, world_size=3,
    )  # fmt: skip
    message = "parcels: this rank has no sample of a batch; take drop_last=True"
    with pytest.raises(fp.ArgumentError, match=f"^{message}$"):
        list(loader.parcels())


def test_importing_the_package_imports_no_compiler():
    code = "import sys, fnpipe; print('torch._dynamo' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
