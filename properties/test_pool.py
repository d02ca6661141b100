"""Law: a pool changes no byte: not its kind, what of it is held, or how often it is drawn from."""

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fnpipe as fp
from fnpipe import cuts
from fnpipe.data.dataset import Dataset
from fnpipe.data.pool import Pool, pool
from fnpipe.data.prepare import fit, prepare, shrink
from fnpipe.ops.warp import pack, unpack
from fnpipe.ops.windows import gather


KINDS = ("ram", "disk", "device")
DRAWS, BATCH = 100, 64
TRAIN = fp.pipe(
    fp.mosaic(32),
    fp.affine(degrees=10.0, translate=0.1, scale=0.5, shear=5.0),
    fp.hsv(hue=0.1, saturation=0.7, value=0.4),
    fp.flip(horizontal=0.5, vertical=0.5),
    fp.finish(torch.float32),
)
LAYERED = fp.pipe(fp.mosaic(32), fp.mixup(p=0.5), fp.cutmix(p=0.5), fp.hsv(hue=0.1))
STAGES = (
    *(fp.letterbox(24), fp.resize(24), fp.crop(24), fp.mosaic(24)),
    *(fp.affine(degrees=9.0, scale=0.5, perspective=0.0005), fp.flip(horizontal=0.5)),
    *(fp.hsv(hue=0.5, saturation=0.7, value=0.4), fp.brightness(0.5), fp.contrast(0.5)),
    *(fp.grayscale(p=0.5), fp.solarize(128), fp.posterize(4)),
)


def photos(shared_data: Path, name: str) -> Dataset:
    if name == "dota8":
        folder = shared_data / "dota8"
        return fp.read_yolo(folder / "dota8.yaml", root=folder, task="obb")
    folder = shared_data / "coco"
    annotations = folder / "annotations" / "instances_train2017.json"
    return fp.read_coco(annotations, folder / "train2017").subset(range(0, 128, 8))


@pytest.fixture(scope="module", params=["coco", "dota8"])
def data(request: pytest.FixtureRequest, shared_data: Path) -> Dataset:
    return photos(shared_data, request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pools")


@pytest.fixture(scope="module")
def small(shared_data: Path, folder: Path) -> Iterator[tuple[Dataset, int]]:
    """A prepared data set, and the bytes of its pool."""
    data = prepare(photos(shared_data, "coco"), longest=48)
    made = pool(data, "ram", folder=folder, progress=False)
    yield data, made.bytes
    made.close()


def digest(made: Pool) -> str:
    return sha256(made.sources.words.cpu().numpy().tobytes()).hexdigest()


def test_cached_is_uncached(data: Dataset, folder: Path):
    pools = [pool(data, kind, folder=folder, device="cpu", progress=False) for kind in KINDS]
    before = [digest(made) for made in pools]
    assert len({*before}) == 1
    read = cache(data.read)
    for draw in range(DRAWS):
        ids = torch.arange(draw * BATCH, (draw + 1) * BATCH) % len(data)
        plan = TRAIN.draw(fp.key(seed=1, epoch=draw, sample=ids), data)
        sources, local = gather(plan, read)
        expected = TRAIN.render(local, sources)
        # Kinds take turns, so that a hundred draws are enough for all of them.
        sources, local = pools[draw % len(pools)].gather(plan)
        assert torch.equal(TRAIN.render(local, sources), expected)
    assert [digest(made) for made in pools] == before


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_two_epochs_of_a_stage_leave_a_pool_as_it_was(stage, shared_data: Path, folder: Path):
    data = photos(shared_data, "coco")
    made = pool(data, "disk", folder=folder, progress=False)
    before = digest(made)
    first = () if stage in STAGES[:4] else (fp.letterbox(24),)
    for dtype in (torch.uint8, torch.bfloat16):
        train = fp.pipe(*first, stage, fp.finish(dtype, channels_last=dtype != torch.uint8))
        batches = fp.Loader(data, train, batch_size=8, seed=0, worker_backend="eager", pool=made)
        for _ in range(2):
            assert sum(len(batch) for batch in batches) == len(data)
    assert digest(made) == before


@given(share=st.floats(0.1, 1.2), ids=st.lists(st.integers(0, 15), min_size=1, max_size=8))
@settings(max_examples=15, deadline=None)
def test_any_prefix_gives_the_same_bytes(small, folder: Path, share: float, ids: list[int]):
    data, whole = small
    made = pool(
        data, "ram", limit=int(share * whole), overflow="prefix", folder=folder, progress=False
    )
    assert made.bytes <= share * whole
    assert (made.held is None) == (share * whole >= whole)
    plan = TRAIN.draw(fp.key(seed=0, epoch=0, sample=torch.tensor(ids)), data)
    images = []
    for sources, local in (made.gather(plan), gather(plan, data.read)):
        images.append(TRAIN.render(local, sources))
    assert torch.equal(*images)
    made.close()


@given(
    share=st.floats(0.15, 1.2),
    ids=st.lists(st.integers(0, 15), min_size=1, max_size=8),
    recipe=st.sampled_from([TRAIN, LAYERED]),
)
@settings(max_examples=20, deadline=None)
def test_any_part_on_a_device_gives_the_same_bytes(
    small, folder: Path, device: torch.device, share: float, ids: list[int], recipe: fp.Pipeline
):
    data, whole = small
    made = pool(
        data, "device", limit=int(share * whole), overflow="prefix", device=device, folder=folder,
        progress=False,
    )  # fmt: skip
    assert made.bytes <= max(1.0, share) * whole
    assert (made.rest is None) == (share * whole >= whole)
    drawn = cuts.draw(data, recipe, fp.key(seed=0, epoch=0, sample=torch.tensor(ids)))
    parcel = cuts.add_pixels(drawn, recipe, "plan", "eager", data, made.rest)
    batch = cuts.complete(parcel.to(device), recipe, pool=made.sources)
    sources, local = gather(drawn.plan, data.read)
    assert torch.equal(batch.images.cpu(), recipe.render(local, sources))
    made.close()


def test_the_law_sees_windows_that_did_not_land(small, folder: Path, monkeypatch):
    data, whole = small
    made = pool(
        data, "device", limit=3 * whole // 4, overflow="prefix", device="cpu", folder=folder,
        progress=False,
    )  # fmt: skip
    drawn = cuts.draw(data, TRAIN, fp.key(seed=0, epoch=0, sample=torch.arange(2)))
    parcel = cuts.add_pixels(drawn, TRAIN, "plan", "eager", data, made.rest)
    assert parcel.lacking is not None
    expected = cuts.complete(parcel, TRAIN, pool=made.sources).images
    empty = torch.zeros_like(parcel.lacking.words)
    late = parcel.replace(lacking=parcel.lacking.replace(words=empty))
    assert not torch.equal(cuts.complete(late, TRAIN, pool=made.sources).images, expected)
    made.close()


def area_mean(codes: Tensor, width: int, height: int) -> Tensor:
    """The same by whole weights of every pixel, int64: [3, height, width]."""

    def weights(new: int, old: int) -> Tensor:
        low, at = torch.arange(new)[:, None] * old, torch.arange(old) * new
        return (torch.minimum(low + old, at + new) - torch.maximum(low, at)).clamp(min=0)

    rows, columns = weights(height, codes.shape[1]), weights(width, codes.shape[2])
    sums = torch.einsum("yh,chw,xw->cyx", rows, codes.to(torch.int64), columns)
    area = codes.shape[1] * codes.shape[2]
    return ((2 * sums + area) // (2 * area)).to(torch.uint8)


@given(
    width=st.integers(1, 70), height=st.integers(1, 70), longest=st.integers(1, 70),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_shrinking_is_the_mean_by_area(width: int, height: int, longest: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)
    new_width, new_height = fit(torch.tensor([width, height]), longest).tolist()
    assert torch.equal(shrink(image, longest), area_mean(image, new_width, new_height))
    assert torch.equal(unpack(pack(image), width, height), image)


def test_the_law_sees_a_word_that_changed(small, folder: Path):
    data, _ = small
    made = pool(data, "device", device="cpu", folder=folder, progress=False)
    plan = TRAIN.draw(fp.key(seed=0, epoch=0, sample=torch.arange(8)), data)
    expected = TRAIN.render(plan, made.sources)
    words = made.sources.words.clone()
    assert torch.equal(TRAIN.render(plan, made.sources.replace(words=words)), expected)
    words ^= 1  # the last bit of every red
    assert not torch.equal(TRAIN.render(plan, made.sources.replace(words=words)), expected)
