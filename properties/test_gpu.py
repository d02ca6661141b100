"""The laws again on a GPU: eager, compiled and Triton there against eager on the CPU, in bits."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import scenes
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import fnpipe as fp
from fnpipe import cuts, preview, recipes
from fnpipe.backends import painter, renderer, warper
from fnpipe.keys import key
from fnpipe.ops import pixel, windows
from fnpipe.ops.annotate import select
from fnpipe.ops.render import render
from fnpipe.ops.warp import pack_sources
from fnpipe.testing import assert_same_bits, hard_planes, prove
from fnpipe.types import Finish, Plan, Sources, map_tensors


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
CUDA = "cuda"
HSV = fp.hsv(hue=0.5, saturation=0.9, value=0.9)
FINISHES = [
    Finish(dtype, last)
    for dtype, last in itertools.product(
        (torch.uint8, torch.float16, torch.bfloat16, torch.float32), (True, False)
    )
]
PIPELINES = {
    "mosaic": fp.pipe(fp.mosaic(96, p=0.7), fp.affine(translate=0.1, scale=0.5), HSV),
    "nine": fp.pipe(fp.mosaic((80, 112), tiles=9), fp.affine(scale=0.7, degrees=180.0), HSV),
    "tilted": fp.pipe(fp.mosaic(96), fp.affine(perspective=0.003, shear=20.0, scale=0.5), HSV),
    "odd": fp.pipe(fp.letterbox((37, 53)), fp.affine(degrees=30.0), HSV, fp.posterize(5)),
    "plain": fp.pipe(fp.resize((33, 65)), fp.flip(horizontal=0.5, vertical=0.5)),
}


def sepia(r: Tensor, g: Tensor, b: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A user's own stage."""
    grey = (0.299 * r + 0.587 * g) + 0.114 * b
    return r + (grey * 1.07 - r) * strength, g + (grey / (b + 1.0) - g) * strength, b


POOLS = [*cuts.CUTS, "source of a pool", "plan of a part"]
"""Cuts, and what else may be held where."""


def hold(how: str, data: fp.Dataset) -> fp.Pool | None:
    """The pool of one of :data:`POOLS`."""
    if how == "plan of a part":
        limit = fp.pool(data, "ram", progress=False).bytes // 2
        return fp.pool(data, "device", device=CUDA, limit=limit, overflow="prefix", progress=False)
    if how == "plan":
        return fp.pool(data, "device", device=CUDA, progress=False)
    return fp.pool(data, "ram", progress=False) if how == "source of a pool" else None


def draw(pipeline: fp.Pipeline, count: int = 16) -> tuple[Plan, Sources]:
    """A plan over all of the odd photos, and their pixels."""
    ids = torch.arange(count) % len(scenes.ALBUM)
    plan = pipeline.draw(key(seed=5, epoch=2, sample=ids), scenes.ALBUM)
    return plan, pack_sources(scenes.ALBUM.images)


@pytest.mark.parametrize("name", PIPELINES)
def test_every_backend_gives_the_bytes_of_the_cpu(name: str) -> None:
    pipeline = PIPELINES[name]
    plan, sources = draw(pipeline)
    recipe = pipeline.recipe(plan.size)
    there, moved = sources.to(CUDA), plan.to(CUDA)
    for how in FINISHES if name in ("mosaic", "odd") else FINISHES[4:5]:
        expected = render(sources, plan, recipe.chain, how)
        own = type(recipe)(recipe.chain, how, recipe.size, recipe.projective)
        # A compilation takes 40 s; bfloat16 in channels-last layout is the one with two graphs.
        compiled = ("compiled",) if name == "mosaic" and how == FINISHES[4] else ()
        backends = ("eager", "triton", *compiled)
        for backend in backends:
            got = renderer(own, backend)(there, moved)
            assert got.stride() == expected.stride()
            assert_same_bits(expected, got.cpu(), what=f"{name}, {how}, {backend}")


def test_windows_and_the_colour_pass_give_the_same_bytes() -> None:
    pipeline = PIPELINES["mosaic"]
    plan, sources = draw(pipeline)
    recipe = pipeline.recipe(plan.size)
    expected = render(sources, plan, recipe.chain, recipe.finish)
    seen, local = windows.cut(sources, plan)
    got = renderer(recipe, "triton")(seen.to(CUDA), local.to(CUDA))
    assert_same_bits(expected, got.cpu(), what="windows")
    planes = warper(recipe, "eager")(sources.to(CUDA), plan.to(CUDA))
    assert_same_bits(warper(recipe, "eager")(sources, plan), planes.cpu(), what="planes, float32")
    for backend in ("eager", "compiled", "triton"):
        colors = tuple(c.to(CUDA) for c in plan.colors)
        for given in (planes, planes.to(memory_format=torch.channels_last)):
            got = painter(recipe, backend)(given, colors)
            assert_same_bits(expected, got.cpu(), what=f"painter, {backend}")


def test_a_users_stage_is_fused() -> None:
    stage = fp.pointwise(sepia).drawn(strength=fp.uniform(0.0, 1.0))
    pipeline = fp.pipe(fp.letterbox(64), stage, HSV)
    plan, sources = draw(pipeline)
    expected = pipeline.render(plan, sources)
    got = pipeline.render(plan.to(CUDA), sources.to(CUDA), backend="triton")
    assert_same_bits(expected, got.cpu())


def all_colors() -> Tensor:
    """Every 8-bit colour once, float32 planes [1, 3, 4096, 4096]."""
    code = torch.arange(2**24, dtype=torch.int32)
    planes = [(code >> s) & 255 for s in (0, 8, 16)]
    return torch.stack(planes).to(torch.float32).view(1, 3, 4096, 4096)


def test_all_colors_at_64_gains() -> None:
    planes = all_colors()
    chain = (pixel.shift_hsv,)
    recipe = fp.pipe(HSV, fp.finish(torch.float32)).recipe((4096, 4096))
    generator = torch.Generator().manual_seed(0)
    gains = torch.rand(64, 3, generator=generator) * torch.tensor([6.0, 2.0, 2.0])
    gains[0] = torch.tensor([0.0, 1.0, 1.0])
    there = planes.to(CUDA)
    compiled = painter(recipe, "compiled")
    for row in gains.split(1):
        moved = row.to(CUDA)
        sextants, saturation, value = row[0]
        # All on the CPU would take minutes: a slice there, and the GPU's backends in full.
        part = planes[..., :512]
        red, green, blue = part.unbind(1)
        some = pixel.shift_hsv(red, green, blue, sextants, saturation, value)
        gains_there = [g.to(CUDA) for g in row[0]]
        red, green, blue = there.unbind(1)
        full = pixel.shift_hsv(red, green, blue, *gains_there)
        for expected, got in zip(some, full, strict=True):
            assert_same_bits(expected, got[..., :512].cpu(), what=f"eager at {row.tolist()}")
        images = painter(recipe, "eager")(there, (moved,))
        for backend, run in (("compiled", compiled), ("triton", painter(recipe, "triton"))):
            got = run(there, (moved,))
            assert torch.equal(got, images), f"{backend} at {row.tolist()}"
    assert chain == recipe.chain


def test_hard_planes_before_quantising() -> None:
    planes = hard_planes()
    gains = [torch.tensor([x]) for x in (1.37, 1.7, 0.6)]
    expected = torch.stack(pixel.shift_hsv(*planes, *gains))
    moved = [t.to(CUDA) for t in (*planes, *gains)]
    assert_same_bits(expected, torch.stack(pixel.shift_hsv(*moved)).cpu())


def test_compilations_are_few() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    pipeline = fp.pipe(fp.mosaic(64), HSV, fp.finish(torch.bfloat16, channels_last=True))
    plan, sources = draw(pipeline, 64)
    run = renderer(pipeline.recipe(plan.size), "compiled")
    there = sources.to(CUDA)
    counters.clear()
    for count in (64, 64, 17, 1, 33):
        part = map_tensors(lambda t, n=count: t[:n].to(CUDA), plan)
        run(there, part)
    # Two graphs a rendering, once for any batch and once for a batch of one.
    assert counters["stats"]["unique_graphs"] <= 4
    assert not counters["graph_break"]


def test_the_fused_pass_needs_its_output_and_no_more() -> None:
    pipeline = fp.pipe(fp.mosaic(320), HSV, fp.finish(torch.bfloat16, channels_last=True))
    plan, sources = draw(pipeline, 64)
    there, moved = sources.to(CUDA), plan.to(CUDA)
    run = renderer(pipeline.recipe(plan.size), "triton")
    size = run(there, moved).nbytes
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    # What was asked for, since the allocator gives a block whole if less than 1 MiB would be left.
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    run(there, moved)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert size <= peak - before < size * 1.01


def test_more_than_two_to_the_31_elements() -> None:
    pipeline = fp.pipe(fp.resize(1536), fp.finish(torch.uint8))
    plan, sources = draw(pipeline, 320)
    run = renderer(pipeline.recipe(plan.size), "triton")
    images = run(sources.to(CUDA), plan.to(CUDA))
    assert images.numel() > 2**31
    last = map_tensors(lambda t: t[-2:], plan)
    assert_same_bits(pipeline.render(last, sources), images[-2:].cpu())


def test_a_cuda_graph_replays_it() -> None:
    pipeline = PIPELINES["mosaic"]
    plan, sources = draw(pipeline)
    there, moved = sources.to(CUDA), plan.to(CUDA)
    run = renderer(pipeline.recipe(plan.size), "triton")
    run(there, moved)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(there, moved)
    out.zero_()
    graph.replay()
    assert_same_bits(pipeline.render(plan, sources), out.cpu())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU here")
def test_case_121_another_device_than_the_current_one() -> None:
    pipeline = PIPELINES["mosaic"]
    plan, sources = draw(pipeline)
    got = pipeline.render(plan.to("cuda:1"), sources.to("cuda:1"), backend="triton")
    assert got.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    assert_same_bits(pipeline.render(plan, sources), got.cpu())


OTHER = """
import sys, torch
import fnpipe as fp
from fnpipe.testing import assert_same_bits
from pathlib import Path

if __name__ == "__main__":
    root = Path(sys.argv[1])
    file = root / "annotations" / "instances_train2017.json"
    data = fp.read_coco(file, root / "train2017", task="segment").subset(range(12))
    train = fp.pipe(fp.mosaic(96), fp.masks(), fp.finish(torch.float16))
    for cut in ("finished", "source", "plan"):
        kind = "device" if cut == "plan" else "ram"
        held = fp.pool(data, kind, device="cuda:1", progress=False)
        loader = fp.Loader(
            data, train, batch_size=4, seed=1, device="cuda:1", cut=cut, pool=held, workers=1,
            worker_backend="eager",
        )
        with loader:
            for batch in loader:
                assert torch.cuda.current_device() == 0
                expected = fp.make_batch(data, train, batch.ids.cpu(), seed=1)
                assert_same_bits(expected, batch.to("cpu"), what=cut)
                assert batch.images.device == batch.masks.device == torch.device("cuda:1")
        del loader, held, batch
    assert not torch._C._cuda_hasPrimaryContext(0), "half a gigabyte of a GPU that is not used"
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU here")
def test_case_121_a_loader_of_another_gpu_takes_nothing_of_the_current_one(
    shared_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text(OTHER)
    command = [sys.executable, str(tmp_path / "other.py"), str(shared_data / "coco")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("cut", cuts.CUTS)
@pytest.mark.parametrize("kind", ["instance", "overlap", "semantic"])
def test_completing_a_parcel_waits_for_nothing(cut: str, kind: str) -> None:
    """No number comes back to the host: torch raises for whatever would wait for one."""
    from test_overs import Album, scribbles

    corners = [torch.rand(5, 2, generator=torch.Generator().manual_seed(i)) * 60 for i in range(8)]
    photos = [scenes.photo(64, 48 + i, seed=i) for i in range(4)]
    album = Album(photos, scribbles([[ring] for ring in corners], sorted([*range(4)] * 2)))
    train = fp.pipe(
        fp.mosaic(96), fp.copy_paste(p=1.0, max_overlap=1.0), fp.mixup(p=0.5, alpha=1), HSV,
        fp.masks(kind=kind),
    )  # fmt: skip
    held = pack_sources(album.images).to(CUDA) if cut == "plan" else None
    for seed in range(2):  # of the first batch the canary looks at an image
        at = key(seed=seed, epoch=0, sample=torch.arange(4))
        drawn = cuts.draw(album, train, at)
        sent = cuts.add_pixels(drawn, train, cut, "eager", album, None).to(CUDA)
        torch.cuda.set_sync_debug_mode("error" if seed else "default")
        try:
            cuts.complete(sent, train, backend="triton", pool=held)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_pool_of_more_than_two_to_the_32_words() -> None:
    """Photos across and beyond every power of two at which an address could wrap: 17 GB."""
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("17 GB of the GPU's memory wanted")
    pipeline = PIPELINES["mosaic"]
    plan, sources = draw(pipeline)
    starts = sources.offsets - 2
    ends = torch.cat([starts[1:], torch.tensor([len(sources.words)])])
    last = 2**32 + len(sources.words)
    places = [0, 2**29 - 3, 2**30 - 5, 2**31 - 90, 2**31 + 3000, 2**31 + 9000, 2**32 - 400]
    places += [2**32 + 4000, last - int(ends[-1] - starts[-1])]
    words = torch.empty(last, dtype=torch.int32, device=CUDA)
    for place, start, end in zip(places, starts.tolist(), ends.tolist(), strict=True):
        words[place : place + end - start].copy_(sources.words[start:end])
    wide = sources.replace(offsets=torch.tensor(places) + 2).to(CUDA).replace(words=words)
    expected, moved = pipeline.render(plan, sources), plan.to(CUDA)
    for backend in ("eager", "triton", "compiled"):
        got = pipeline.render(moved, wide, backend=backend)
        assert_same_bits(expected, got.cpu(), what=backend)
    seen, local = windows.measure(sources.replace(offsets=torch.tensor(places) + 2), plan)
    fetched = windows.fetch(seen.to(CUDA), words)
    got = pipeline.render(local.to(CUDA), fetched, backend="triton")
    assert_same_bits(expected, got.cpu(), what="windows")


@pytest.mark.parametrize("kind", ["instance", "overlap", "semantic"])
@pytest.mark.parametrize("stride", [1, 4])
def test_masks_have_the_bits_of_the_worker(kind: str, stride: int) -> None:
    from test_masks import SIZE, blobs, parcel_of

    recipe = fp.pipe(fp.mosaic(SIZE), HSV, fp.masks(stride=stride, kind=kind))
    album = blobs(9, 0)
    wanted = cuts.complete(parcel_of(recipe, album, "finished", 0), recipe).masks
    for backend in ("eager", "triton"):
        there = parcel_of(recipe, album, "source", 0).to(CUDA)
        got = cuts.complete(there, recipe, backend=backend).masks
        assert got.is_cuda
        assert torch.equal(got.cpu(), wanted), f"{kind}, stride {stride}, {backend}"


def test_a_plan_and_sources_apart_are_refused() -> None:
    plan, sources = draw(PIPELINES["mosaic"])
    with pytest.raises(fp.ArgumentError, match=r"plan is on cpu, sources are on cuda"):
        PIPELINES["mosaic"].render(plan, sources.to(CUDA), backend="triton")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", POOLS)
def test_loaders_give_the_bytes_of_the_cpu(
    how: str, workers: int, gpu_photos: Callable[[], fp.Dataset]
) -> None:
    """Windows of a pool in memory are copied by the GPU, others by workers."""
    data = gpu_photos()
    held, cut = hold(how, data), how.split()[0]
    train = fp.pipe(
        fp.mosaic(96), fp.affine(scale=0.5), HSV, fp.finish(torch.bfloat16, channels_last=True)
    )

    loader, _ = [
        fp.Loader(
            data, train, batch_size=5, seed=1, device=CUDA, cut=cut, worker_backend="eager",
            pool=held, workers=workers,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert isinstance(loader.job.pool, cuts.Mapped) == (how == "source of a pool")
    with loader:  # all are kept, so that a place in which another lies by now would show
        epochs = [list(loader) for _ in range(3)]
    for epoch, batches in enumerate(epochs):
        for batch in batches:
            expected = fp.make_batch(data, train, batch.ids.cpu(), seed=1, epoch=epoch)
            assert_same_bits(expected.images, batch.images.cpu(), what=f"{cut}, epoch {epoch}")
            assert_same_bits(expected.targets, batch.targets.to("cpu"))


@pytest.fixture(scope="session")
def gpu_photos(shared_data: object) -> Callable[[], fp.Dataset]:
    """The first photos of the real data."""
    root = shared_data / "coco"  # type: ignore[operator]

    def read() -> fp.Dataset:
        file = root / "annotations" / "instances_train2017.json"
        return fp.read_coco(file, root / "train2017", task="segment").subset(range(12))

    return read


def test_bridges_draw_the_masks_of_the_cpu(gpu_photos: Callable[[], fp.Dataset]) -> None:
    """Of a batch there, as of the same batch here: for Ultralytics and for torchvision."""
    from fnpipe.adapters.huggingface import to_detr
    from fnpipe.adapters.torchvision import to_detection, to_tv_tensors
    from fnpipe.adapters.ultralytics import to_ultralytics

    data = gpu_photos()
    codes = fp.make_batch(data, recipes.segment(96, dtype=torch.uint8), range(6), seed=0)
    table = to_ultralytics(codes.to(CUDA), task="segment")
    for name, expected in to_ultralytics(codes, task="segment").items():
        if isinstance(expected, Tensor):
            assert_same_bits(expected, table[name].cpu(), what=name)
    floats = fp.make_batch(data, recipes.segment(96), range(6), seed=0)
    _, found = to_detection(floats.to(CUDA), masks=True)
    for expected, got in zip(to_detection(floats, masks=True)[1], found, strict=True):
        assert_same_bits(expected, {name: t.cpu() for name, t in got.items()})
    for bridge in (to_detr, to_tv_tensors):
        here, there = (pytree.tree_leaves(bridge(b)) for b in (floats, floats.to(CUDA)))
        assert len(here) > 6 * 3
        for expected, got in zip(here, there, strict=True):
            assert_same_bits(expected.as_subclass(Tensor), got.as_subclass(Tensor).cpu())
    assert_same_bits(preview.grid(floats), preview.grid(floats.to(CUDA)))


def test_rows_are_chosen_with_their_rings(gpu_photos: Callable[[], fp.Dataset]) -> None:
    targets = gpu_photos().targets
    keep = targets.labels < 40
    assert 0 < keep.sum() < len(targets)
    found = select(targets.to(CUDA), keep.to(CUDA))
    assert {t.device.type for t in pytree.tree_leaves(found)} == {"cuda"}
    assert_same_bits(select(targets, keep), found.to("cpu"))


def test_a_proof_tries_every_backend_that_is_there() -> None:
    assert prove(sepia, 0.3)[-3:] == [
        "eager on the GPU", "compiled on the GPU", "Triton on the GPU",
    ]  # fmt: skip


def test_layers_give_the_bytes_of_the_cpu() -> None:
    """What lies on top, by every backend; its cover is rasterised on the device."""
    from test_overs import Album, scribbles

    generator = torch.Generator().manual_seed(0)
    corners = [torch.rand(5, 2, generator=generator) * 60 for _ in range(12)]
    photos = [scenes.photo(64, 48 + i, seed=i) for i in range(4)]
    album = Album(photos, scribbles([[ring] for ring in corners], sorted([*range(4)] * 3)))
    pipeline = fp.pipe(
        fp.mosaic(96), fp.copy_paste(p=1.0, max_overlap=1.0), fp.affine(scale=0.5),
        fp.mixup(p=0.9, alpha=1), fp.cutmix(p=0.5), fp.erase(p=0.5), HSV, fp.finish(torch.float32),
    )  # fmt: skip
    plan = pipeline.draw(key(seed=5, epoch=2, sample=torch.arange(8) % 4), album)
    assert all(over.active.any() for over in plan.overs)
    sources = pack_sources(album.images)
    expected = pipeline.render(plan, sources)
    for backend in ("eager", "triton"):  # one compilation of three looks takes minutes
        got = pipeline.render(plan.to(CUDA), sources.to(CUDA), backend=backend)
        assert_same_bits(expected, got.cpu(), what=backend)


# Trees of CUDA graphs begin with one of nothing.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("cut", ["plan", "source", "warped"])
def test_a_compiled_step_makes_the_bytes_of_the_cpu(cut: str, mode: str) -> None:
    """Training steps round a small model: one graph, compiled once, whatever the batch holds."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    train = fp.pipe(PIPELINES["mosaic"], fp.finish(torch.bfloat16, channels_last=True))
    model = torch.nn.Conv2d(3, 8, 3).to(CUDA, memory_format=torch.channels_last)
    pool = pack_sources(scenes.ALBUM.images)
    there, ready = pool.to(CUDA), cuts.settler()

    @torch.compile(fullgraph=True, mode=mode)
    def step(parcel: cuts.Parcel) -> tuple[Tensor, Tensor]:
        images = fp.complete(parcel, train, backend="triton").images
        return images, model(images.float()).square().mean()

    for seed in range(6):
        at = key(seed=seed, epoch=seed, sample=(torch.arange(8) + seed) % len(scenes.ALBUM))
        drawn = cuts.draw(scenes.ALBUM, train, at)
        sent = cuts.add_pixels(drawn, train, cut, "eager", scenes.ALBUM, None)
        held = there if cut == "plan" else None
        parcel = ready(sent.to(CUDA), train, backend="triton", pool=held)
        torch.compiler.cudagraph_mark_step_begin()
        images, loss = step(parcel)
        loss.backward()
        expected = cuts.complete(sent, train, pool=pool if cut == "plan" else None).images
        assert images.stride() == expected.stride()
        assert_same_bits(expected, images.cpu(), what=f"{cut}, {mode}, batch {seed}")
        model.zero_grad(set_to_none=True)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    skipped = counters["inductor"]["cudagraph_skips"]
    assert mode == "default" or skipped == 0, f"{skipped} graphs were not captured"


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
def test_a_cuda_graph_of_a_step_copies_no_pool() -> None:
    """Its other inputs are copied to places of their own; a pool may be most of the memory."""
    torch._dynamo.reset()
    train = fp.pipe(fp.resize(64), fp.finish(torch.bfloat16, channels_last=True))
    pool = pack_sources(scenes.ALBUM.images)
    room = torch.zeros(2**26, dtype=torch.int32)  # 256 MB behind the photos
    pool = pool.replace(words=torch.cat([pool.words, room])).to(CUDA)
    ready = cuts.settler()

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def step(parcel: cuts.Parcel) -> Tensor:
        return fp.complete(parcel, train, backend="triton").images.float() + 1.0

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for seed in range(4):
        drawn = cuts.draw(scenes.ALBUM, train, key(seed=seed, epoch=0, sample=torch.arange(4)))
        parcel = ready(drawn.to(CUDA), train, backend="triton", pool=pool)
        torch.compiler.cudagraph_mark_step_begin()
        step(parcel)
    assert torch.cuda.max_memory_allocated() - before < 2**26


@pytest.mark.parametrize("how", POOLS)
def test_parcels_of_a_loader_are_finished_in_a_step(
    how: str, gpu_photos: Callable[[], fp.Dataset]
) -> None:
    """What is on its way on another stream has arrived when the step sees it."""
    data = gpu_photos()
    held, cut = hold(how, data), how.split()[0]
    train = fp.pipe(fp.mosaic(96), fp.copy_paste(p=0.5), HSV, fp.masks(), fp.finish(torch.float16))

    loader = fp.Loader(
        data, train, batch_size=4, seed=1, device=CUDA, cut=cut, worker_backend="eager",
        pool=held, drop_last=True,
    )  # fmt: skip
    backend = loader.backends[train].device

    @torch.compile(fullgraph=True, backend="eager")
    def step(parcel: cuts.Parcel) -> fp.Batch:
        return fp.complete(parcel, train, backend=backend)

    for epoch in range(2):
        for parcel in loader.parcels():
            batch = step(parcel)
            expected = fp.make_batch(data, train, batch.ids.cpu(), seed=1, epoch=epoch)
            assert_same_bits(expected.images, batch.images.cpu(), what=f"{cut}, epoch {epoch}")
            assert torch.equal(expected.masks, batch.masks.cpu())
