"""Masks: exact pictures, the rows of real failures, four spellings, and bugs that must be found."""

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fnpipe.ops import paint, raster
from fnpipe.testing import rings_of
from fnpipe.types import ArgumentError, Rings


HOST = ("dense", "window", "torch")
Ring = Sequence[Sequence[float]]


def square(x: float, y: float, side: float) -> Ring:
    return [(x, y), (x + side, y), (x + side, y + side), (x, y + side)]


def areas(
    rings: Rings, size: tuple[int, int], *, impl: str = "torch", stride: int = 1
) -> list[int]:
    return raster.masks(rings, size, stride=stride, impl=impl).flatten(1).sum(1).tolist()


def assert_same(r: Any, rings: Rings, size: tuple[int, int], stride: int) -> None:
    """Every spelling on the host makes the dense test's bits."""
    wanted = r.masks(rings, size, stride=stride, impl="dense")
    for impl in HOST:
        differ = (r.masks(rings, size, stride=stride, impl=impl) != wanted).nonzero()
        assert not len(differ), f"{impl}: {len(differ)} pixels differ, first {differ[0].tolist()}"


def random_rings(seed: int, instances: int, size: int) -> Rings:
    """Rings of 0 to 12 points, 0 to 3 an instance, on and next to centres and borders of pixels."""
    generator = np.random.default_rng(seed)
    rings = [int(n) for n in generator.integers(0, 4, instances)]
    points = [int(n) for n in generator.integers(0, 13, sum(rings))]
    where = generator.uniform(-0.4 * size, 1.4 * size, (sum(points), 2))
    snapped = np.round(where * 2) / 2
    kind = generator.integers(0, 4, where.shape)
    value = np.where(kind == 0, where, snapped).astype(np.float32)
    value = np.where(kind == 1, np.nextafter(value, np.float32(np.inf)), value)
    value = np.where(kind == 2, np.nextafter(value, np.float32(-np.inf)), value)
    return Rings(
        torch.from_numpy(value),
        torch.tensor([0, *points]).cumsum(0),
        torch.tensor([0, *rings]).cumsum(0),
    )


# Pictures that can be worked out by hand


@pytest.mark.parametrize("impl", HOST)
def test_a_triangle_drawn_by_hand(impl: str):
    """Its long side runs through a diagonal of centres, and right borders own none."""
    picture = raster.masks(rings_of([[(0, 0), (4, 4), (0, 4)]]), (4, 5), stride=1, impl=impl)[0]
    assert ["".join(".#"[int(pixel)] for pixel in row) for row in picture] == [
        ".....",
        "#....",
        "##...",
        "###..",
    ]


@pytest.mark.parametrize("impl", HOST)
def test_left_and_top_borders_own_a_centre_right_and_bottom_do_not(impl: str):
    picture = raster.masks(rings_of([square(0.5, 0.5, 2)]), (4, 4), stride=1, impl=impl)[0]
    assert picture.nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize("impl", HOST)
@pytest.mark.parametrize(
    ("ring", "area"),
    [
        ([], 0),
        ([(5, 5)], 0),
        ([(5, 5)] * 4, 0),
        ([(2, 2), (30, 20)], 0),
        ([(2, 2), (30, 20), (2, 2), (30, 20)], 0),
        ([(2, 4), (20, 4), (9, 4)], 0),
        ([(4, 2), (4, 20), (4, 9)], 0),
        ([(3, 3), (13, 3), (13, 13), (3, 13), (3, 3), (3, 3)], 100),
        ([(3, 3), (3, 3), (13, 3), (13, 3), (13, 13), (3, 13)], 100),
        ([(0, 0), (10, 10), (10, 0), (0, 10)], 50),
        ([(0, 0), (20, 0), (20, 20), (0, 20), (5, 5), (15, 5), (15, 15), (5, 15)], None),
    ],
)
def test_degenerate_rings(ring: Ring, area: int | None, impl: str):
    (found,) = areas(rings_of([ring]), (40, 40), impl=impl)
    assert found == (areas(rings_of([ring]), (40, 40), impl="dense")[0] if area is None else area)


@pytest.mark.parametrize("impl", HOST)
def test_a_ring_fills_by_even_odd_and_rings_unite(impl: str):
    outer, inner = square(0, 0, 20), square(5, 5, 10)
    bridged = [*outer, outer[0], *inner, inner[0]]
    assert areas(rings_of([bridged], [outer, inner], [inner, outer]), (32, 32), impl=impl) == [
        300,
        400,
        400,
    ]


@pytest.mark.parametrize("impl", HOST)
def test_far_ends_are_safe(impl: str):
    big = [[(-1e9, -1e9), (1e9, -1e9), (0, 1e9)]]
    outside = [[(1e6, 1e6), (1e9, 1e6), (1e9, 1e9)]]
    above = [[(-1e6, -1e9), (1e9, -1e9), (5, -1)]]
    half = [[(16, -1e9), (1e9, -1e9), (1e9, 1e9), (16, 1e9)]]
    rings = rings_of(big, outside, above, half)
    assert areas(rings, (32, 32), impl=impl) == [1024, 0, 0, 512]


def test_far_ends_are_cheap():
    """A window, and the crossings that are looked at, never exceed the mask."""
    rings = rings_of([[(-1e9, -1e9), (1e9, -1e9), (0, 1e9)]])
    _, _, rows, pitch, _ = raster._windows(rings, torch.arange(1), 32, 32, 1)
    assert (rows.tolist(), pitch.tolist()) == ([32], [4])


@pytest.mark.parametrize("impl", HOST)
def test_nothing_to_draw(impl: str):
    assert raster.masks(Rings.empty(0), (8, 12), impl=impl).shape == (0, 2, 3)
    assert areas(Rings.empty(2), (8, 8), impl=impl) == [0, 0]
    assert areas(rings_of([[]], [[], square(0, 0, 4), []], []), (8, 8), impl=impl) == [0, 16, 0]


def test_the_result_is_boolean_dense_and_0_or_1_inside():
    planes = raster.masks(rings_of([square(1, 1, 9)] * 300), (20, 20), stride=1)
    assert planes.dtype == torch.bool
    assert planes.is_contiguous()
    assert set(planes.view(torch.uint8).unique().tolist()) == {0, 1}
    assert planes.sum() == 81


@pytest.mark.parametrize("stride", range(1, 13))
def test_first_past_is_the_comparison_with_every_centre(stride: int):
    count = 50
    centres = raster.centre(torch.arange(count), stride)
    borders = torch.arange(-2.0, count + 2) * stride
    base = torch.cat([centres, borders, torch.tensor([1e9, -1e9, torch.inf, -torch.inf])])
    up, down = base.nextafter(torch.tensor(torch.inf)), base.nextafter(torch.tensor(-torch.inf))
    position = torch.cat([base, up, down, torch.rand(1000) * stride * count])
    wanted = (centres < position[:, None]).sum(1)
    assert torch.equal(raster.first_past(position, count, stride).long(), wanted)


# Real failures


@pytest.mark.parametrize("impl", HOST)
def test_case_32_four_numbers_are_two_points_without_area(impl: str):
    four_numbers, collinear = [(10, 10), (20, 20)], [(10, 10), (15, 15), (20, 20)]
    assert areas(rings_of([four_numbers], [collinear]), (40, 40), impl=impl) == [0, 0]


@pytest.mark.parametrize("impl", HOST)
def test_case_37_multi_part_instance_is_one_object(impl: str):
    near, far = square(10, 10, 20), square(60, 60, 20)
    united, concatenated = areas(rings_of([near, far], [[*near, *far]]), (100, 100), impl=impl)
    assert united == 800
    assert concatenated > 1000


@pytest.mark.parametrize("impl", HOST)
def test_case_39_a_polygon_is_continuous_not_pixel_indices(impl: str):
    assert areas(rings_of([square(0, 0, 9)], [square(0, 0, 10)]), (20, 20), impl=impl) == [81, 100]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_case_39_the_same_squares_in_pycocotools():
    mask = pytest.importorskip("pycocotools.mask")
    for side in (9, 10):
        polygon = np.asarray(square(0, 0, side), dtype=float).reshape(1, -1).tolist()
        theirs = mask.decode(mask.merge(mask.frPyObjects(polygon, 20, 20)))
        ours = raster.masks(rings_of([square(0, 0, side)]), (20, 20), stride=1)[0]
        assert np.array_equal(ours.numpy(), theirs)


def test_case_41_a_donut_keeps_its_hole_and_corners_stay():
    turn = np.linspace(0, 2 * np.pi, 1496, endpoint=False)
    hole = np.stack([50 + 20 * np.cos(turn), 50 - 20 * np.sin(turn)], 1)
    donut = [*square(10, 10, 80), (10, 10), *hole.tolist(), tuple(hole[0])]
    offset = square(10.3, 10.7, 33.9)
    found, cornered = areas(rings_of([donut], [offset]), (100, 100))
    perimeter = 4 * 80 + 2 * np.pi * 20
    assert abs(found - (80 * 80 - np.pi * 20**2)) < perimeter / 2
    assert cornered == 34 * 34
    picture = raster.masks(rings_of([donut]), (100, 100), stride=1)[0]
    assert not picture[32:68, 32:68][8:28, 8:28].any()
    assert picture[10, 10]
    assert picture[89, 89]


def test_case_79_more_instances_than_a_byte_counts():
    concentric = [[square(i, i, 320 - 2 * i)] for i in range(130)]
    apart = [[square(4 * (i % 20), 4 * (i // 20), 3)] for i in range(300)]
    owner = torch.tensor([0] * 130 + [1] * 300)
    numbers = paint.overlap_map(rings_of(*concentric, *apart), owner, 2, (320, 320), stride=1)
    assert numbers.dtype == torch.int32
    assert numbers[0].unique().tolist() == list(range(1, 131))
    assert numbers[0].diagonal()[:130].tolist() == list(range(1, 131))
    assert numbers[1].unique(return_counts=True)[1].tolist()[1:] == [9] * 300
    assert numbers[1, 57, 77] == 20 * 14 + 20


def test_case_81_normalised_rings_times_size_are_rings_in_pixels():
    pixels = random_rings(5, 40, 640)
    pixels = pixels.replace(points=torch.round(pixels.points * 4) / 4 + 0.125)
    normalised = pixels.points / torch.tensor([640, 480])
    again = pixels.replace(points=normalised * torch.tensor([640, 480]))
    assert torch.equal(raster.masks(again, (480, 640)), raster.masks(pixels, (480, 640)))
    assert raster.masks(pixels, (480, 640)).any()
    # The fault: shares of a picture taken for pixels.
    assert not raster.masks(pixels.replace(points=normalised), (480, 640)).any()


# On top


def test_overlap_map_paints_the_largest_first_and_keeps_numbers():
    small, large, hidden = square(2, 2, 4), square(0, 0, 12), square(2, 2, 3)
    rings = rings_of([hidden], [large], [small], [square(0, 0, 2)], [square(1, 0, 2)])
    owner = torch.tensor([1, 1, 1, 3, 3])
    numbers = paint.overlap_map(rings, owner, 5, (16, 16), stride=1)
    assert numbers.shape == (5, 16, 16)
    assert [n.unique().tolist() for n in numbers] == [[0], [0, 1, 2, 3], [0], [0, 1, 2], [0]]
    assert [numbers[1, 2, 2], numbers[1, 5, 5], numbers[1, 9, 9]] == [1, 3, 2]
    assert numbers[3, 0, :4].tolist() == [1, 2, 2, 0]  # equal areas: the later on top


def test_semantic_map_has_the_label_of_the_smallest():
    rings = rings_of([square(0, 0, 4)], [square(0, 0, 8)], [square(0, 0, 8)])
    labels, owner = torch.tensor([70_000, 3, 0]), torch.tensor([0, 0, 1])
    found = paint.semantic_map(rings, labels, owner, 2, (16, 16))
    assert found.tolist() == [
        [[70_000, 3, -1, -1], [3, 3, -1, -1], [-1] * 4, [-1] * 4],
        [[0, 0, -1, -1], [0, 0, -1, -1], [-1] * 4, [-1] * 4],
    ]
    found = paint.semantic_map(rings, labels, owner, 2, (16, 16), background=255)
    assert (found == 255).sum() == 24


def test_split_by_owner_gives_views_and_keeps_empty_images():
    planes = raster.masks(rings_of(*[[square(0, 0, 4)]] * 3), (8, 8))
    parts = paint.split_by_owner(planes, torch.tensor([0, 2, 2]), 4)
    assert [len(part) for part in parts] == [1, 0, 2, 0]
    assert parts[2].data_ptr() == planes[1].data_ptr()


SPELLINGS = "dense, window, torch, package, triton"


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        ((8, 8), {"impl": "cuda"}, f"impl wanted one of {SPELLINGS}, came 'cuda'"),
        ((8, 9), {}, "size: wanted positive multiples of stride 4; came (8, 9)"),
        ((0, 8), {}, "size: wanted positive multiples of stride 4; came (0, 8)"),
        ((8, 8), {"stride": 0}, "size: wanted positive multiples of stride 0; came (8, 8)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(size: Any, options: dict[str, Any], message: str):
    with pytest.raises(ArgumentError) as error:
        raster.masks(rings_of([square(0, 0, 4)]), size, **options)
    assert str(error.value) == message


# Equal bits


@pytest.mark.parametrize("stride", [1, 3, 4, 7])
def test_spellings_agree_where_ties_abound(stride: int):
    assert_same(raster, random_rings(stride, 120, 13 * stride), (12 * stride, 13 * stride), stride)


def test_spellings_agree_on_photos(shared_data: Path):
    rings, sizes = coco_rings(shared_data / "coco", "val2017")
    for photo in list(sizes)[:6]:
        height, width = (32 * (side // 32) for side in sizes[photo])
        assert_same(raster, rings[photo], (height, width), 4)


def in_fresh_interpreter(folder: Path, code: str, rings: Rings, **environment: str) -> Any:
    """What ``found`` is after ``code``. Triton cannot read functions that a test hook wraps."""
    pytest.importorskip("triton")
    torch.save((rings.points, rings.ring_offsets, rings.instance_offsets), folder / "rings.pt")
    lines = [
        "import torch",
        "from fnpipe.ops import raster",
        "from fnpipe.types import Rings",
        "rings = Rings(*torch.load('rings.pt'))",
        textwrap.dedent(code),
        "torch.save(found, 'found.pt')",
    ]
    paths = [str(Path(raster.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)},
        check=True,
        timeout=120,
    )
    return torch.load(folder / "found.pt")


def test_triton_agrees_in_its_interpreter(tmp_path: Path):
    rings = random_rings(11, 8, 40)
    code = "found = raster.masks(rings, (36, 40), stride=1, impl='triton')"
    found = in_fresh_interpreter(tmp_path, code, rings, TRITON_INTERPRET="1")
    assert torch.equal(found, raster.masks(rings, (36, 40), stride=1, impl="dense"))


def test_triton_without_a_device_is_refused(tmp_path: Path):
    code = """
        try:
            raster.masks(rings, (8, 8), impl="triton")
        except raster.ArgumentError as error:
            found = str(error)
    """
    found = in_fresh_interpreter(tmp_path, code, rings_of([square(0, 0, 4)]))
    assert found == "impl: 'triton' wants rings on a CUDA device; came cpu"


def test_the_kernel_rounds_every_operation(tmp_path: Path):
    """Its assembly for an H100, which takes no GPU to make, with fusion off and, to compare, on."""
    code = """
        from triton import compile
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from fnpipe.ops.raster_triton import kernel

        constants = {"STRIDE": 4, "ROWS": 16, "EDGES": 32}
        types = ["*fp32", "*i64", "*i64", "*i1", "i32", "i32", *["constexpr"] * 3]
        source = ASTSource(kernel, dict(zip(kernel.arg_names, types)), constants)
        target = GPUTarget("cuda", 90, 32)
        found = []
        for fusion in (False, True):
            options = {"enable_fp_fusion": fusion, "num_warps": 1}
            found.append(compile(source, target=target, options=options).asm["ptx"])
    """
    apart, fused = in_fresh_interpreter(tmp_path, code, Rings.empty(0))
    assert "div.rn.f32" in apart
    assert not re.findall(r"fma\.rn\S*|div\.full\S*|div\.approx\S*", apart)
    assert "fma.rn.f32" in fused


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("stride", [1, 3, 4])
def test_the_device_agrees(impl: str, stride: int):
    rings, size = random_rings(stride, 500, 70 * stride), (64 * stride, 70 * stride)
    found = raster.masks(rings.to("cuda"), size, stride=stride, impl=impl).cpu()
    assert torch.equal(found, raster.masks(rings, size, stride=stride))


# Against pycocotools


def coco_rings(root: Path, split: str) -> tuple[dict[int, Rings], dict[int, tuple[int, int]]]:
    """Polygons of every photo that has some, one instance an annotation; height and width."""
    found = json.loads((root / "annotations" / f"instances_{split}.json").read_text())
    polygons: dict[int, list[Any]] = {}
    for row in found["annotations"]:
        if isinstance(row["segmentation"], list):
            rings = [np.asarray(ring).reshape(-1, 2).tolist() for ring in row["segmentation"]]
            polygons.setdefault(row["image_id"], []).append(rings)
    sizes = {image["id"]: (image["height"], image["width"]) for image in found["images"]}
    return {i: rings_of(*p) for i, p in polygons.items()}, {i: sizes[i] for i in polygons}


def distance_to_edges(points: Tensor, centres: Tensor) -> Tensor:
    """From each centre to the nearest point of one closed ring's edges."""
    a, b = points.double(), points.roll(-1, 0).double()
    along = ((centres[:, None] - a) * (b - a)).sum(-1) / (b - a).square().sum(-1).clamp(min=1e-12)
    nearest = a + along.clamp(0, 1)[..., None] * (b - a)
    return (centres[:, None] - nearest).norm(dim=-1).amin(1)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(("split", "instances"), [("train2017", 1169), ("val2017", 568)])
def test_pycocotools_agrees_but_for_its_grid_of_fifths(
    shared_data: Path, split: str, instances: int
):
    """All 1,737 polygon instances at full size: mean IoU 0.991, median 0.995, least 0.889.

    pycocotools rounds vertices to fifths of a pixel and walks edges on that grid; a pixel that
    differs has its centre within 0.2 pixel of an edge, and small masks, all border, differ most. Of
    the two areas ours is the nearer to the polygon's own, by 14 % over all.
    """
    mask = pytest.importorskip("pycocotools.mask")
    rings, sizes = coco_rings(shared_data / "coco", split)
    ious = []
    for photo, packed in rings.items():
        height, width = sizes[photo]
        ours = raster.masks(packed, (height, width), stride=1)
        pieces = packed.points.split(packed.ring_offsets.diff().tolist())
        for i, (start, end) in enumerate(packed.instance_offsets.unfold(0, 2, 1).tolist()):
            flat = [ring.double().flatten().tolist() for ring in pieces[start:end]]
            code = mask.merge(mask.frPyObjects(flat, height, width))
            theirs = torch.from_numpy(mask.decode(code)).bool()
            ious.append(float((ours[i] & theirs).sum() / (ours[i] | theirs).sum()))
            centres = (ours[i] != theirs).nonzero().flip(1) + 0.5
            near = torch.stack([distance_to_edges(ring, centres) for ring in pieces[start:end]])
            assert (near.amin(0) < 0.2).all()
    found = torch.tensor(ious)
    assert len(found) == instances
    assert found.min() > 0.88
    assert found.quantile(0.05) > 0.96
    assert found.mean() > 0.99


# Bugs that the laws above must find


def mutant(of: ModuleType, old: str, new: str) -> ModuleType:
    """A module with a bug planted in its source."""
    source = inspect.getsource(of)
    assert source.count(old) == 1, f"the source has {source.count(old)} of {old!r}"
    module = ModuleType("mutant")
    exec(compile(source.replace(old, new), "mutant", "exec"), module.__dict__)
    return module


def law_of_ties(r: Any) -> None:
    assert_same(r, random_rings(3, 60, 20), (20, 20), 1)


def law_of_neighbours(r: Any) -> None:
    """Two triangles on one edge, which runs through a centre: it belongs to exactly one."""
    generator = np.random.default_rng(0)
    centre = generator.integers(8, 24, (2000, 2)) + 0.5
    step = generator.uniform(-1, 1, (2000, 2))
    a, b = centre - step * generator.uniform(1, 7, (2000, 1)), centre + step * 5
    side = step[:, ::-1] * (1, -1) * 8
    first = torch.from_numpy(np.stack([a, b, centre + side], 1).astype(np.float32))
    second = torch.from_numpy(np.stack([b, a, centre - side], 1).astype(np.float32))
    ring = torch.arange(0, 6001, 3)
    one, other = (
        r.masks(Rings(t.flatten(0, 1), ring, torch.arange(2001)), (32, 32), stride=1)
        for t in (first, second)
    )
    column, row = torch.from_numpy(centre).long().unbind(1)
    owned = one.int() + other.int()
    assert owned.max() == 1
    assert (owned[torch.arange(2000), row, column] == 1).all()


def law_of_boxes(r: Any) -> None:
    """No pixel outside a ring's box; the far end of a long edge is where rounding would put one."""
    turn = np.random.default_rng(1).uniform(0, 1, (400, 2)).astype(np.float32)
    rings = [
        [[(10.5, 10.5), (1e8 * (1 + x), -1e8 * (1 + y)), (1e8, 3e8)]] for x, y in turn.tolist()
    ]
    assert not r.masks(rings_of(*rings), (32, 32), stride=1, impl="dense")[:, :, :10].any()


def law_of_unions(r: Any) -> None:
    for impl in HOST:
        overlapping = rings_of([square(0, 0, 8), square(4, 4, 8)])
        assert r.masks(overlapping, (16, 16), stride=1, impl=impl).sum() == 64 + 64 - 16


def law_of_areas(r: Any) -> None:
    for impl in HOST:
        assert r.masks(rings_of([square(1, 2, 9)]), (16, 16), stride=1, impl=impl).sum() == 81


def law_of_numbers(p: Any) -> None:
    rings = rings_of([square(0, 0, 4)], [square(0, 0, 8)], [square(2, 2, 4)])
    numbers = p.overlap_map(rings, torch.tensor([0, 0, 1]), 2, (8, 8), stride=1)
    assert numbers[:, 2, 2].tolist() == [1, 1]
    assert numbers[:, 7, 7].tolist() == [2, 0]


HELD = "torch.minimum(torch.maximum(x + (y - top) * slope, left), right)"
LAWS = [law_of_ties, law_of_neighbours, law_of_boxes, law_of_unions, law_of_areas]


@pytest.mark.parametrize("law", [*LAWS, law_of_numbers])
def test_law(law: Any):
    law(paint if law is law_of_numbers else raster)


@pytest.mark.parametrize(
    ("law", "old", "new"),
    [
        (law_of_ties, "(columns >= some", "(columns > some"),
        (law_of_ties, "centre(index, stride) < held", "centre(index, stride) <= held"),
        (law_of_ties, "(rows < torch.maximum(ay, by))", "(rows <= torch.maximum(ay, by))"),
        (law_of_ties, "+ (centre(index, stride) < held)", ""),
        (law_of_ties, "+ 7) // 8 - left", ") // 8 - left"),
        (law_of_neighbours, "x = ax * down + bx * (1.0 - down)", "x = ax"),
        (law_of_neighbours, "torch.minimum(ay, by), slope", "ay, slope"),
        (law_of_boxes, HELD, "x + (y - top) * slope"),
        (law_of_unions, "planes[instance] |= ", "planes[instance] ^= "),
        (law_of_unions, "planes[instance, y, x] |= ", "planes[instance, y, x] ^= "),
        (law_of_unions, "planes[where] |= more", "planes[where] ^= more"),
        (law_of_areas, "points.roll(-1, 0)", "torch.cat([points[1:], points[-1:]])"),
(law_of_areas, "full = offsets.diff() > 0", "full = offsets.diff() > 99"),
        (law_of_numbers, "descending=True", "descending=False"),
        (law_of_numbers, " - torch.searchsorted(owner, owner)", ""),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(law: Any, old: str, new: str):
    with pytest.raises((AssertionError, IndexError)):
        law(mutant(paint if law is law_of_numbers else raster, old, new))


def test_masks_are_made_by_triton_on_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch):
    with FakeTensorMode():
        there = torch.empty(1, device="cuda")
    found = {"host": paint.fastest(torch.empty(1))}
    for name, module in (("with", ModuleType("triton")), ("without", None)):
        monkeypatch.setitem(sys.modules, "triton", module)
        found[name] = paint.fastest(there)
    assert found == {"host": "torch", "with": "triton", "without": "torch"}
