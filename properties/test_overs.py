"""Layers: equal to writing on the picture, the same by every cut and backend, targets and all."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from laws import mutant
from scenes import SIZE, Album, affines, flips, paints, photo, seeds
from test_moves import REACH, assert_together, cross, spotted
from torch import Tensor

import fnpipe as fp
from fnpipe import backends, cuts
from fnpipe.numerics import count_differences
from fnpipe.ops import layers, occlude, runs, trace
from fnpipe.ops import render as definitions
from fnpipe.ops.annotate import ROWS, select
from fnpipe.ops.layers import annotate_some, rasterized
from fnpipe.ops.points import bounds
from fnpipe.ops.raster import masks
from fnpipe.ops.windows import gather
from fnpipe.stages import erase, paste
from fnpipe.testing import assert_same_bits, rings_of, targets_of
from fnpipe.types import ArgumentError, Plan, Rings, Targets


some = settings(max_examples=40, deadline=None)


# Photos with instances


def scribbles(shapes: list[list[Tensor]], owner: list[int]) -> Targets:
    """Instances of rings; two keypoints each, at the corners of the box."""
    rings = rings_of(*shapes)
    boxes, n = bounds(rings), len(shapes)
    return targets_of(
        boxes,
        labels=torch.arange(n) % 7,
        owner=torch.tensor(owner, dtype=torch.int64),
        keypoints=torch.cat([boxes.view(-1, 2, 2), torch.full((n, 2, 1), 2.0)], 2),
        rings=rings,
    )


@st.composite
def albums(draw: st.DrawFn) -> Album:
    """A few photos of noise; polygons of a few corners anywhere on them, crossing as they like."""
    sizes = draw(st.lists(st.tuples(*[st.integers(8, 70)] * 2), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shapes, owner = [], []
    for i, (width, height) in enumerate(sizes):
        for _ in range(draw(st.integers(0, 4))):
            rings = []
            for _ in range(draw(st.integers(1, 2))):
                corners = torch.rand(draw(st.integers(3, 6)), 2, generator=generator)
                if draw(st.booleans()):  # corners where pixels have theirs, or their centres
                    corners = (corners * 16).round() / 16
                rings.append(corners * torch.tensor([width, height]))
            shapes.append(rings)
            owner.append(i)
    images = [photo(*size, seed=i) for i, size in enumerate(sizes)]
    return Album(images, scribbles(shapes, owner))


firsts = st.sampled_from(
    [fp.resize(SIZE), fp.letterbox(SIZE), fp.mosaic(SIZE), fp.mosaic(SIZE, p=0.5), fp.crop(SIZE)]
)
between = st.lists(st.one_of(affines, flips), max_size=2, unique_by=lambda s: s.name)
chance = st.sampled_from([0.0, 0.5, 1.0])
pastes = st.builds(
    fp.copy_paste,
    p=chance,
    source=st.sampled_from(["self", "other"]),
    max_overlap=st.sampled_from([0.0, 0.3, 1.0]),
)
mixups = st.builds(fp.mixup, p=chance, alpha=st.sampled_from([1, 32]))
cutmixes = st.builds(fp.cutmix, p=chance, alpha=st.sampled_from([1, 4]))
shares = st.sampled_from([(0.0, 0.0), (0.1, 0.5), (0.3, 1.0)])
erasures = st.builds(fp.erase, p=chance, count=st.integers(1, 3), side=shares)
tops = st.lists(
    st.one_of(pastes, mixups, cutmixes, erasures),
    min_size=1,
    max_size=3,
    unique_by=lambda s: s.name,
)


@st.composite
def layered(draw: st.DrawFn) -> fp.Pipeline:
    """Layers anywhere among the geometry, and colours."""
    middle = draw(st.permutations([*draw(tops), *draw(between)]))
    colors = draw(st.lists(paints, max_size=1))
    return fp.pipe(draw(firsts), *middle, *colors, fp.finish(torch.uint8))


def plan_of(pipeline: fp.Pipeline, album: Album, seed: int) -> Plan:
    key = fp.key(seed=seed, epoch=1, sample=torch.arange(len(album)))
    return pipeline.draw(key, album)


def picture(pipeline: fp.Pipeline, plan: Plan, album: Album) -> Tensor:
    sources, local = gather(plan, album.read)
    return pipeline.render(local, sources)


# Pixels


def write_pasted(pipeline: fp.Pipeline, plan: Plan, album: Album) -> Tensor:
    """Copy-paste by hand: one instance after another, its mask written on the finished picture."""
    (over,) = plan.overs
    sources, local = gather(plan, album.read)
    image = pipeline.render(local.replace(overs=()), sources).clone()
    above = pipeline.render(local.overs[0].plan.replace(colors=plan.colors), sources)
    flip = album.keypoint_flip
    pasted = annotate_some(over.plan, album.targets, over.instances, keypoint_flip=flip)
    for mask, owner in zip(masks(pasted.rings, SIZE, stride=1), pasted.owner, strict=True):
        image[owner][:, mask] = above[owner][:, mask]
    return image


def assert_written(album, first, after, paste, seed, stride) -> None:
    pipeline = fp.pipe(first, paste, *after)
    plan = plan_of(pipeline, album, seed)
    assert_same_bits(write_pasted(pipeline, plan, album), picture(pipeline, plan, album))


@some
@given(albums(), firsts, between, between, pastes, st.lists(paints, max_size=1), seeds)
def test_pasting_is_writing_one_after_another(album, first, before, after, paste, colors, seed):
    names = [s.name for s in before]
    after = [s for s in after if s.name not in names]
    pipeline = fp.pipe(first, *before, paste, *after, *colors)
    plan = plan_of(pipeline, album, seed)
    assert_same_bits(write_pasted(pipeline, plan, album), picture(pipeline, plan, album))


@some
@given(albums(), firsts, st.lists(affines, max_size=1), seeds)
def test_what_is_pasted_of_itself_comes_from_the_mirrored_picture(album, first, affine, seed):
    """The mirror stands where the stage stands: geometry after it moves both."""
    pipeline = fp.pipe(first, fp.copy_paste(p=1.0, max_overlap=1.0), *affine)
    mirrored = fp.pipe(first, fp.flip(horizontal=1.0), *affine)
    plan = plan_of(pipeline, album, seed)
    bits = rasterized(plan).overs[0].cover
    assert isinstance(bits, Tensor)
    below = picture(pipeline, plan.replace(overs=()), album)
    above = picture(mirrored, plan_of(mirrored, album, seed), album)
    made = torch.where(bits[:, None], above, below)
    assert_same_bits(made, picture(pipeline, plan, album))


@some
@given(albums(), firsts, between, mixups, seeds)
def test_mixup_is_a_weighted_sum_before_it_is_whole(album, first, after, mixup, seed):
    pipeline = fp.pipe(first, mixup, *after)
    plan = plan_of(pipeline, album, seed)
    (over,) = plan.overs
    sources, local = gather(plan, album.read)
    below = torch.stack(definitions.warp(sources, local.replace(overs=())), 1)
    above = torch.stack(definitions.warp(sources, local.overs[0].plan), 1)
    share = over.weight[:, None, None, None]
    wanted = (below * share + above * (1 - share)).round().to(torch.uint8)
    assert_same_bits(wanted, pipeline.render(local, sources))
    assert torch.equal(over.active, over.weight < 1)


def assert_erased(album, first, after, stage, seed, colors) -> None:
    pipeline = fp.pipe(first, stage, *after, *colors)
    plan = plan_of(pipeline, album, seed)
    sources, local = gather(plan, album.read)
    bits = rasterized(plan).overs[0].cover
    assert isinstance(bits, Tensor)
    nothing = local.replace(overs=(), sources=torch.full_like(local.sources, -1))
    fill = pipeline.render(nothing, sources)
    below = pipeline.render(local.replace(overs=()), sources)
    assert_same_bits(torch.where(bits[:, None], fill, below), pipeline.render(local, sources))
    assert torch.equal(bits.flatten(1).any(1), plan.overs[0].active)


@some
@given(albums(), firsts, between, erasures, seeds, st.lists(paints, max_size=1))
def test_erasing_is_writing_fill_before_colour(album, first, after, stage, seed, colors):
    assert_erased(album, first, after, stage, seed, colors)


@some
@given(albums(), layered(), seeds)
def test_an_image_with_nothing_on_top_is_what_it_is_without(album, pipeline, seed):
    plan = plan_of(pipeline, album, seed)
    bare = ~torch.stack([over.active for over in plan.overs]).any(0)
    for over in plan.overs:
        assert (over.plan.sources[~over.active] == -1).all()
    made = picture(pipeline, plan, album)[bare]
    assert_same_bits(picture(pipeline, plan.replace(overs=()), album)[bare], made)


@some
@given(albums(), layered(), seeds)
def test_every_cut_makes_the_same_bytes(album, pipeline, seed):
    """And sources cut down to windows, and a batch made one by one."""
    key = fp.key(seed=seed, epoch=1, sample=torch.arange(len(album)))
    parcel = cuts.draw(album, pipeline, key)
    whole, local = gather(parcel.plan, album.read)
    held = whole.words.clone()
    wanted = pipeline.render(local, whole)
    for where in ("finished", "warped", "source"):
        sent = cuts.add_pixels(parcel, pipeline, where, "eager", album, None)
        assert_same_bits(wanted, cuts.complete(sent, pipeline).images, what=where)
    sent = parcel.replace(plan=local)
    assert_same_bits(wanted, cuts.complete(sent, pipeline, pool=whole).images, what="plan")
    assert_same_bits(held, whole.words, what="the pool")
    for i in range(len(album)):
        one = pipeline.draw(fp.key(seed=seed, epoch=1, sample=torch.tensor([i])), album)
        assert_same_bits(wanted[i : i + 1], picture(pipeline, one, album), what=f"sample {i}")
        mine = pipeline.annotate(one, album)
        alone = select(parcel.targets, parcel.targets.owner == i)
        assert_same_bits(alone, mine.replace(owner=mine.owner + i), what=f"targets of {i}")


@settings(max_examples=25, deadline=None)
@given(albums(), layered(), seeds)
def test_triton_makes_eagers_bytes(device, album, pipeline, seed):
    pytest.importorskip("triton", reason="Triton is not installed")
    from fnpipe.ops.render_triton import render_fused

    sources, plan = gather(plan_of(pipeline, album, seed), album.read)
    recipe = pipeline.recipe(plan.size)
    got = render_fused(
        sources.to(device), plan.to(device), recipe.chain, recipe.finish, block=(32, 64, 1, 4)
    )
    assert_same_bits(pipeline.render(plan, sources), got.cpu())


TWO = fp.pipe(fp.letterbox((16, 24)), fp.mixup(p=0.5), fp.erase(p=0.5), fp.finish(torch.uint8))


@pytest.mark.parametrize("backend", ["compiled", "package"])
def test_backends_make_eagers_bytes(package_cache: None, device, backend: str):
    """A package looks once for images with nothing on top, twice for the others."""
    album = Album([photo(width, 20, seed=width) for width in range(10, 22)])
    sources, plan = gather(plan_of(TWO, album, 4), album.read)
    for over in plan.overs:
        assert over.active.any()
        assert not over.active.all()
    there = torch.device("cpu") if backend == "package" else device
    got = TWO.render(plan.to(there), sources.to(there), backend=backend)
    count, first = count_differences(TWO.render(plan, sources), got.cpu())
    assert count == 0, f"{count} words differ, first at {first}"


# Targets


def assert_left(album, first, after, paste, seed, stride) -> None:
    """Of every instance under what is pasted, the mask that is left is what is not covered."""
    pipeline = fp.pipe(first, paste, *after)
    plan = plan_of(pipeline, album, seed)
    (over,) = plan.overs
    below = pipeline.annotate(plan.replace(overs=()), album)
    assert isinstance(over.cover, Rings)
    left = occlude.occlude(below, over.cover)
    size = SIZE[0], SIZE[1]
    covers = masks(over.cover, size, stride=stride)[below.owner]
    before = masks(below.rings, size, stride=stride)
    alive = left.visible > 0
    after_masks = masks(left.rings, size, stride=stride)
    assert_same_bits((before & ~covers)[alive], after_masks[alive])
    if stride == 1:
        assert_shares(before, covers, below, left)


@some
@given(albums(), firsts, between, st.one_of(pastes, erasures), seeds, st.sampled_from([1, 2, 4, 8]))
def test_what_is_left_of_a_mask_is_what_is_not_covered(album, first, after, paste, seed, stride):
    """At every stride, bit for bit; boxes and visible shares are those of the pixels left."""
    assert_left(album, first, after, paste, seed, stride)


@some
@given(albums(), firsts, between, st.sampled_from([0.0, 0.3, 0.7]), seeds)
def test_case_78_pasting_loses_no_original(album, first, after, limit, seed):
    """Unless it is under a pixel: a centre can be hidden with all of its area but a little."""
    pipeline = fp.pipe(first, *after, fp.copy_paste(p=1.0, max_overlap=limit))
    plan = plan_of(pipeline, album, seed)
    below = pipeline.annotate(plan.replace(overs=()), album)
    made = pipeline.annotate(plan, album)
    sides = below.boxes[:, 2:] - below.boxes[:, :2]
    large = masks(below.rings, SIZE, stride=1).sum((1, 2)) > 4
    for i in range(len(album)):
        originals = below.ids[(below.owner == i) & large & (sides.amin(1) > 2)].tolist()
        stays = made.ids[made.owner == i].tolist()
        assert all(stays.count(x) >= originals.count(x) for x in originals)


def assert_shares(before: Tensor, covers: Tensor, below: Targets, left: Targets) -> None:
    for i, (mask, cover) in enumerate(zip(before, covers, strict=True)):
        count, rest = int(mask.sum()), mask & ~cover
        if not count:
            continue
        wanted = below.visible[i] * (int(rest.sum()) / count)
        assert left.visible[i] == wanted
        if not rest.any():
            continue
        sides = zip(below.boxes[i].tolist(), extent(mask), extent(rest), strict=True)
        assert left.boxes[i].tolist() == [side if a == b else b for side, a, b in sides]


def extent(mask: Tensor) -> list[int]:
    rows, columns = (mask.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@some
@given(albums(), layered(), seeds)
def test_every_field_of_what_stays_belongs_together(album, pipeline, seed):
    targets = pipeline.annotate(plan_of(pipeline, album, seed), album)
    n = len(targets)
    assert all(len(getattr(targets, name)) == n for name in ROWS)
    assert len(targets.rings.instance_offsets) == n + 1
    assert (targets.owner.diff() >= 0).all()
    assert (targets.boxes[:, 2:] > targets.boxes[:, :2]).all()
    assert (targets.boxes >= 0).all()
    assert (targets.boxes[:, 2:] <= torch.tensor([SIZE[1], SIZE[0]])).all()
    assert torch.equal(targets.labels, targets.ids % 7)


spots = st.tuples(st.integers(60, 90), st.integers(60, 90), *[st.floats(0.4, 0.6)] * 2).map(
    lambda s: (s[0], s[1], s[0] * s[2], s[1] * s[3])
)


@some
@given(st.lists(spots, min_size=2, max_size=4), seeds, st.sampled_from(["self", "other"]))
def test_a_pasted_spot_and_its_keypoint_move_together(drawn, seed, source):
    """A spot is pasted whole, by a ring that holds all of it."""
    square = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]]) * REACH
    centres = torch.tensor([spot[2:] for spot in drawn])
    targets = scribbles([[square + c] for c in centres], [*range(len(drawn))])
    targets = targets.replace(keypoints=cross(centres))
    images = [spotted(*spot) for spot in drawn]
    album = Album(images, targets)
    pipeline = fp.pipe(
        fp.letterbox(90),
        fp.copy_paste(p=1.0, source=source, max_overlap=0.0),
        fp.affine(translate=0.2, degrees=20),
        fp.flip(horizontal=0.5),
    )
    key = fp.key(seed=seed, epoch=0, sample=torch.tensor([0]))
    plan = pipeline.draw(key, album)
    made = pipeline.annotate(plan, album)
    batch = fp.Batch(picture(pipeline, plan, album), made, plan.ids, plan.epochs)
    if bool((made.visible == 1).all()):
        assert_together(batch, gain=90 / 60)


def test_another_source_is_refused():
    with pytest.raises(ArgumentError, match="source wanted 'self' or 'other', came 'flip'"):
        fp.copy_paste(p=1.0, source="flip")  # type: ignore[arg-type]


# Bugs


hunt = settings(
    max_examples=200, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
)


def assert_found(law: Callable[..., Any], patch: pytest.MonkeyPatch, module: Any, *bug: str):
    """``law`` fails of a function with a bug in its source: name, what was there, what is now."""
    name, old, new = bug
    patch.setattr(module, name, mutant(getattr(module, name), old, new))
    with pytest.raises((AssertionError, RuntimeError, IndexError, ValueError)):
        hunt(given(albums(), firsts, between, pastes, seeds, st.sampled_from([1, 2, 4]))(law))()


@pytest.mark.parametrize(
    ("module", "bug"),
    [
        (runs, ("_crossings", "(position * 2).ceil()", "(position * 2).floor()")),
        (runs, ("_crossings", "(y * 2).ceil()", "(y * 2).floor()")),
        (occlude, ("subtract", "mine & ~its & 1", "(mine ^ its) & 1")),
        (occlude, ("spread", "// grid.width + 1", "// grid.width")),
        (occlude, ("extents", "row & 1 == 1", "row & 1 == 0")),
        (occlude, ("extents", "row[last] + 1", "row[last] + 2")),
        (occlude, ("_lessen", "np.where(moved, after.boxes", "np.where(moved, before.boxes")),
        (occlude, ("_under", "x0 < right", "x1 < right")),
        (trace, ("_walk", "below != outer", "below == outer")),
    ],
    ids=[
        "a cell too many", "a row too many", "more than there is", "a row of the cover too few",
        "other pixels", "a side too far", "a box that stays", "instances that are not seen",
        "loops walked to the left",
    ],
)  # fmt: skip
def test_another_remainder_is_seen(monkeypatch: pytest.MonkeyPatch, module, bug):
    assert_found(assert_left, monkeypatch, module, *bug)


@pytest.mark.parametrize(
    ("module", "bug"),
    [
        (definitions, ("look_all", "over.cover, 0.0", "over.cover, 0.5")),
        (definitions, ("look_all", "tiles[1:]", "tiles[:-1]")),
        (layers, ("rasterized", "plan.size, stride", "plan.size[::-1], stride")),
        (layers, ("by_image", "rings.replace(", "rings.replace(points=rings.points + 0.5, ")),
    ],
    ids=["half covered", "the tiles beneath", "bits of another frame", "rings half a pixel off"],
)  # fmt: skip
def test_another_layer_is_seen(monkeypatch: pytest.MonkeyPatch, module, bug):
    if module is layers:
        name, old, new = bug
        bad = mutant(getattr(layers, name), old, new)
        for user in (definitions, backends, paste):
            monkeypatch.setattr(user, name, bad, raising=False)
    assert_found(assert_written, monkeypatch, module, *bug)


def test_a_photo_where_fill_should_be_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(erase, "only", lambda plan, images: plan)
    colors = st.lists(paints, max_size=1)
    with pytest.raises(AssertionError):
        hunt(given(albums(), firsts, between, erasures, seeds, colors)(assert_erased))()


# A whole loader, on real photos

REAL = fp.pipe(
    fp.mosaic(96, p=0.5),
    fp.copy_paste(p=0.5),
    fp.affine(scale=0.5, translate=0.1),
    fp.mixup(p=0.4),
    fp.cutmix(p=0.4),
    fp.erase(p=0.4),
    fp.flip(horizontal=0.5),
    fp.hsv(hue=0.015, saturation=0.7, value=0.4),
    fp.finish(torch.uint8),
)


def test_loaders_make_the_same_batches_and_the_pool_is_never_written(shared_data: Path):
    """Every cut, with workers and without; from the pool and from the files."""
    coco = shared_data / "coco"
    annotations = coco / "annotations" / "instances_val2017.json"
    whole = fp.read_coco(annotations, coco / "val2017", task="segment")
    data = whole.subset(range(12))
    pool = fp.pool(data, "device", device="cpu", progress=False)
    held = hashlib.sha256(pool.sources.words.numpy().tobytes()).hexdigest()

    def batches(cut: str, workers: int, **options: Any) -> list[fp.Batch]:
        loader = fp.Loader(
            data, REAL, batch_size=5, seed=3, cut=cut, workers=workers,
            backend="eager", worker_backend="eager", **options,
        )  # fmt: skip
        return list(loader)

    wanted = batches("finished", 0)
    for cut, workers in (("finished", 1), ("warped", 0), ("source", 1), ("plan", 0)):
        made = batches(cut, workers, pool=pool if cut == "plan" else None)
        for a, b in zip(wanted, made, strict=True):
            assert_same_bits(a, b, what=cut)
    assert hashlib.sha256(pool.sources.words.numpy().tobytes()).hexdigest() == held
