"""Inside a user's compiled step: one graph, the bytes of outside, and no compilation too many."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scenes
import torch
from PIL import Image as pillow
from scenes import ALBUM
from test_masks import blobs
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import fnpipe as fp
from fnpipe import cuts, step
from fnpipe.adapters.foreign import foreign
from fnpipe.backends import CUTS
from fnpipe.ops.warp import pack_sources
from fnpipe.testing import assert_same_bits


REST = fp.pipe(
    fp.affine(scale=0.5, degrees=20.0),
    fp.hsv(hue=0.5, value=0.4),
    fp.flip(horizontal=0.5),
    fp.finish(torch.bfloat16, channels_last=True),
)
TRAIN = fp.pipe(fp.mosaic((16, 32)), REST)
LAYERED = fp.pipe(fp.mosaic((16, 32)), fp.mixup(p=0.5), REST)
POOL = pack_sources(ALBUM.images)


@pytest.fixture(autouse=True)
def forgets() -> Iterator[None]:
    """Dynamo remembers sizes by line of code."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def parcel_of(pipeline: fp.Pipeline, cut: str, ids: Any, album: Any = ALBUM, seed: int = 0) -> Any:
    """What a worker sends of samples."""
    at = fp.key(seed=seed, epoch=seed, sample=torch.as_tensor(ids))
    return cuts.add_pixels(cuts.draw(album, pipeline, at), pipeline, cut, "eager", album, None)


def compiled(
    pipeline: fp.Pipeline, backend: str, *, how: str = "aot_eager"
) -> tuple[Callable[[Any], fp.Batch], CompileCounterWithBackend]:
    """A step that finishes a parcel and lets a layer look at it, and how often it was compiled."""
    counter = CompileCounterWithBackend(how)
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 3)

    @torch.compile(fullgraph=True, backend=counter)
    def run(parcel: Any) -> tuple[fp.Batch, Tensor]:
        batch = fp.complete(parcel, pipeline, backend=backend)
        return batch, model(batch.images.float()).mean()

    def finish(parcel: Any) -> fp.Batch:
        batch, loss = run(parcel)
        assert torch.isfinite(loss)
        loss.backward()
        return batch

    return finish, counter


def album_on_disk(folder: Any) -> fp.Dataset:
    """Eight photos of noise."""
    document = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "leaf"}]}
    for i in range(8):
        codes = scenes.photo(24 + i, 20, seed=i).permute(1, 2, 0).numpy()
        pillow.fromarray(codes).save(folder / f"{i}.png")
        document["images"].append({"id": i, "file_name": f"{i}.png", "width": 24 + i, "height": 20})
        for j in range(3):
            box = {"id": 3 * i + j, "image_id": i, "category_id": 1, "bbox": [2, 2, 12 + j, 9]}
            document["annotations"].append(box | {"iscrowd": 0})
    (folder / "boxes.json").write_text(json.dumps(document))
    return fp.read_coco(folder / "boxes.json", folder)


def assert_same_batch(expected: fp.Batch, got: fp.Batch, what: str) -> None:
    assert type(got) is fp.Batch
    assert got.images.stride() == expected.images.stride()
    assert_same_bits(expected.images, got.images, what=what)
    assert_same_bits(expected.targets, got.targets)
    assert torch.equal(expected.ids, got.ids)


def assert_a_step_makes_the_same(
    pipeline: fp.Pipeline, cut: str, backend: str, *, batches: int, how: str = "aot_eager"
) -> None:
    """Batches each of other samples, draws, seed and epoch, in one compilation."""
    ready, (finish, counter) = cuts.settler(), compiled(pipeline, backend, how=how)
    pool = POOL if cut == "plan" else None
    for seed in range(batches):
        parcel = parcel_of(pipeline, cut, torch.arange(2) + seed, seed=seed)
        settled = ready(parcel, pipeline, backend=backend, pool=pool)
        expected = fp.complete(parcel, pipeline, pool=pool)
        assert_same_batch(expected, finish(settled), f"{cut}, {backend}, batch {seed}")
    assert counter.frame_count == 1


@pytest.mark.parametrize("cut", CUTS)
def test_a_step_makes_the_bytes_of_outside(cut: str):
    assert_a_step_makes_the_same(LAYERED, cut, "eager", batches=4)


@pytest.mark.parametrize("cut", ["warped", "source"])
def test_a_step_makes_them_by_triton(cut: str):
    """Without a GPU in its interpreter: 2 s a batch."""
    assert_a_step_makes_the_same(TRAIN, cut, "triton", batches=2)


@pytest.mark.slow
def test_a_step_makes_them_between_what_inductor_makes():
    assert_a_step_makes_the_same(LAYERED, "plan", "eager", batches=4, how="inductor")


@pytest.mark.parametrize("cut", CUTS)
def test_a_partial_batch_compiles_once_more_and_others_not_at_all(cut: str):
    finish, counter = compiled(TRAIN, "eager")
    pool = POOL if cut == "plan" else None
    for count in (4, 3, 2, 5, 4):
        parcel = parcel_of(TRAIN, cut, torch.arange(count))
        settled = cuts.settle(parcel, TRAIN, pool=pool)
        assert_same_batch(fp.complete(parcel, TRAIN, pool=pool), finish(settled), f"{count}, {cut}")
    assert counter.frame_count == 2


def test_pictures_on_top_and_masks_are_settled_before_a_step():
    album = blobs(6, 0)
    pipeline = fp.pipe(
        fp.letterbox((16, 32)), fp.copy_paste(p=0.9), fp.masks(stride=4), fp.hsv(hue=0.1)
    )
    pool = pack_sources(album.images)
    ready, (finish, counter) = cuts.settler(), compiled(pipeline, "eager")
    for seed in range(3):  # an instance or none would be compilations of their own
        parcel = parcel_of(pipeline, "plan", torch.arange(2) + seed, album, seed=seed)
        expected = fp.complete(parcel, pipeline, pool=pool)
        got = finish(ready(parcel, pipeline, backend="eager", pool=pool))
        assert_same_batch(expected, got, f"batch {seed}")
        assert torch.equal(expected.masks, got.masks)
    assert counter.frame_count == 1
    message = (
        "complete: a compiled step cannot do rings of layers and masks: call fnpipe.cuts.settle "
        "before the step, or take Loader.parcels()"
    )
    with pytest.raises(Exception, match=re.escape(message)):
        finish(parcel)


def tint(r: Tensor, g: Tensor, b: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return r * strength, g, b * strength


@pytest.mark.parametrize(
    "stage",
    [
        fp.affine(perspective=0.003),
        fp.pointwise(tint).drawn(strength=fp.uniform(0.5, 1.0)),
        foreign(lambda codes: 255 - codes, name="negative"),
    ],
    ids=["projective", "a user's", "of others"],
)
def test_any_stage_may_be_in_it(stage: Any):
    pipeline = fp.pipe(fp.letterbox((16, 24)), fp.hsv(hue=0.1), stage)
    run = torch.compile(pipeline.render, fullgraph=True, backend="eager")
    plan = pipeline.draw(fp.key(seed=0, epoch=0, sample=torch.arange(3)), ALBUM)
    assert_same_bits(pipeline.render(plan, POOL), run(plan, POOL))


def test_two_pipelines_in_one_step_are_kept_apart():
    """A name is all that a graph knows of a pipeline: the second is compiled, and is the second."""
    other = fp.pipe(fp.mosaic((16, 32)), fp.flip(horizontal=0.5), fp.finish(torch.float32))
    counter = CompileCounterWithBackend("eager")

    @torch.compile(fullgraph=True, backend=counter)
    def run(plan: fp.Plan, sources: fp.Sources, pipeline: fp.Pipeline) -> Tensor:
        return pipeline.render(plan, sources)

    for pipeline in (TRAIN, other, TRAIN, other):
        plan = parcel_of(pipeline, "plan", [0, 1]).plan
        assert_same_bits(pipeline.render(plan, POOL), run(plan, POOL, pipeline))
    assert counter.frame_count == 2


def test_an_unknown_backend_is_refused_when_the_step_runs():
    finish, _ = compiled(TRAIN, "fast")
    parcel = cuts.settle(parcel_of(TRAIN, "source", [0, 1]), TRAIN)
    with pytest.raises(fp.ArgumentError, match=r"came 'fast'$"):
        finish(parcel)


def test_the_law_sees_a_result_that_is_not_what_the_graph_was_told(monkeypatch):
    """Planted bug: one bit of one word."""
    right = step._PIPELINES[TRAIN._bound.name]

    class Wrong:
        def render(self, plan: fp.Plan, sources: fp.Sources, *, backend: str) -> Tensor:
            images = right.render(plan, sources, backend=backend)
            images[1, 2, 3, 4] += 1
            return images

    wrong = Wrong()
    monkeypatch.setitem(step._PIPELINES, TRAIN._bound.name, wrong)
    with pytest.raises(AssertionError, match="eager, batch 0: leaf 0: 1 of"):
        assert_a_step_makes_the_same(TRAIN, "source", "eager", batches=1)


@pytest.mark.parametrize("cut", CUTS)
def test_a_loader_hands_over_parcels(cut: str, tmp_path: Any):
    album = album_on_disk(tmp_path)
    pool = fp.pool(album, "ram", progress=False) if cut == "plan" else None
    options: dict[str, Any] = {"batch_size": 3, "seed": 1, "cut": cut, "pool": pool}
    options |= {"backend": "eager", "worker_backend": "eager"}
    ours, theirs = (fp.Loader(album, TRAIN, **options) for _ in range(2))
    finish, counter = compiled(TRAIN, "eager")
    for _ in range(2):
        for parcel, expected in zip(theirs.parcels(), ours, strict=True):
            assert_same_batch(expected, finish(parcel), cut)
    assert counter.frame_count == 2  # the last batch is smaller
    assert theirs.state_dict() == ours.state_dict()
