"""Masks, whatever the rings: spellings agree, neighbours share no pixel, nobody else matters."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fnpipe.ops import paint, raster
from fnpipe.testing import rings_of


HOST = ("dense", "window", "torch")


def neighbours(value: float) -> st.SearchStrategy[float]:
    """A number, and the next ones on both sides."""
    this = np.float32(value)
    ends = [np.nextafter(this, np.float32(end)) for end in (-np.inf, np.inf)]
    return st.sampled_from([float(x) for x in (this, *ends)])


# Centres, borders and what is next to them, anywhere near, far outside, and very far.
coordinates = st.one_of(
    st.integers(-8, 80).map(lambda half: half / 2).flatmap(neighbours),
    st.floats(-20, 60, width=32),
    st.sampled_from([-1e9, -1e6, 1e6, 1e9]),
)
points = st.tuples(coordinates, coordinates)
rings = st.lists(points, max_size=9)
instances = st.lists(rings, max_size=4)
strides = st.integers(1, 7)


def draw(
    batch: list[list[list[tuple[float, float]]]], stride: int, *, impl: str = "torch"
) -> Tensor:
    """Masks of 12 rows and 11 columns."""
    return raster.masks(rings_of(*batch), (12 * stride, 11 * stride), stride=stride, impl=impl)


@given(st.lists(instances, max_size=4), strides)
def test_spellings_have_equal_bits(batch, stride):
    wanted = draw(batch, stride, impl="dense")
    for impl in HOST:
        differ = (draw(batch, stride, impl=impl) != wanted).nonzero()
        assert not len(differ), f"{impl}: {len(differ)} pixels, first {differ[0].tolist()}"


@given(rings, strides, st.integers(0, 8))
def test_a_ring_has_no_first_point_and_no_direction(ring, stride, turn):
    turned = ring[turn:] + ring[:turn]
    forward, other, backward = draw([[ring], [turned], [turned[::-1]]], stride)
    assert torch.equal(forward, other)
    assert torch.equal(forward, backward)


@given(points, points, rings, rings, strides)
def test_two_rings_on_one_edge_differ_by_their_common_outline(a, b, left, right, stride):
    """What a shared edge adds to one ring it takes from the other: every bit, whatever the edge."""
    one, other, outline = draw([[[a, b, *left]], [[b, a, *right]], [[b, *left, a, *right]]], stride)
    assert torch.equal(one ^ other, outline)


@given(st.lists(st.integers(-20, 20), min_size=50, max_size=50), st.integers(1, 21), strides)
def test_tiles_cover_each_centre_exactly_once(shifts, least, stride):
    """A grid of 4 x 4 crooked cells, each cut along a diagonal, some on centres and borders."""
    shift = np.asarray(shifts).reshape(5, 5, 2) / 64
    shift = np.where(np.abs(shift) < least / 64, 0, shift)
    corner = ((np.stack(np.mgrid[:5, :5], -1) + shift) * (3.5, 3.25) - 1)[..., ::-1] * stride
    corner[0, :, 1], corner[-1, :, 1] = -stride, 13 * stride
    corner[:, 0, 0], corner[:, -1, 0] = -stride, 12 * stride
    triangles = []
    for i in range(4):
        for j in range(4):
            a, b, c, d = (
                tuple(p)
                for p in (corner[i, j], corner[i, j + 1], corner[i + 1, j + 1], corner[i + 1, j])
            )
            triangles += [[[a, b, c]], [[c, d, a]]]
    assert (draw(triangles, stride).sum(0) == 1).all()


@given(instances, strides)
def test_rings_unite(instance, stride):
    (united,) = draw([instance], stride)
    assert torch.equal(united, draw([[ring] for ring in instance], stride).any(0))


@given(st.lists(instances, min_size=1, max_size=5), strides)
def test_an_instance_is_drawn_the_same_in_any_batch(batch, stride):
    together = draw(batch, stride)
    for i, instance in enumerate(batch):
        assert torch.equal(together[i], draw([instance], stride)[0])


@given(rings.filter(len), strides)
def test_a_mask_stays_in_its_box(ring, stride):
    (mask,) = draw([[ring]], stride)
    low, high = (end(np.asarray(ring, np.float32), axis=0) for end in (np.min, np.max))
    centres = raster.centre(mask.nonzero().flip(1), stride).numpy()
    assert (centres >= low).all()
    assert (centres < high).all()


@given(st.lists(instances, max_size=5), strides, st.data())
def test_every_pixel_of_an_overlap_map_is_the_smallest_instance_there(batch, stride, data):
    images = data.draw(st.lists(st.integers(0, 2), min_size=len(batch), max_size=len(batch)))
    owner = torch.tensor(sorted(images), dtype=torch.int64)
    size = (12 * stride, 11 * stride)
    found = paint.overlap_map(rings_of(*batch), owner, 3, size, stride=stride)
    planes = draw(batch, stride)
    areas = planes.flatten(1).sum(1).tolist()
    wanted = torch.zeros_like(found)
    for image in range(3):
        rows = (owner == image).nonzero().flatten().tolist()
        for i in sorted(rows, key=lambda i: (-areas[i], i)):
            wanted[image][planes[i]] = rows.index(i) + 1
    assert torch.equal(found, wanted)


of_pycocotools = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@of_pycocotools
@given(st.lists(st.tuples(*[st.floats(0, 40, width=32)] * 2), min_size=3, max_size=8))
def test_pycocotools_differs_only_next_to_an_outline(ring):
    """It rounds vertices to fifths of a pixel, and steps from one to the next in fifths.

    So its outline is at most 0.1 * sqrt(2) + 0.1 pixels off; a centre further away is on one side.
    """
    assert_agreement(draw_at_size(ring), ring)


def draw_at_size(ring) -> Tensor:
    return raster.masks(rings_of([ring]), (40, 40), stride=1)[0]


def assert_agreement(ours: Tensor, ring) -> None:
    mask = pytest.importorskip("pycocotools.mask")
    (code,) = mask.frPyObjects([np.asarray(ring, np.float64).flatten().tolist()], 40, 40)
    apart = (ours != torch.from_numpy(mask.decode(code)).bool()).nonzero().flip(1) + 0.5
    a = torch.tensor(ring, dtype=torch.float64)
    edge = a.roll(-1, 0) - a
    along = ((apart[:, None] - a) * edge).sum(-1) / edge.square().sum(-1).clamp(min=1e-12)
    gap = (apart[:, None] - (a + along.clamp(0, 1)[..., None] * edge)).norm(dim=-1)
    assert not len(gap) or gap.amin(1).max() < 0.1 * 2**0.5 + 0.1


@of_pycocotools
def test_the_law_of_agreement_sees_half_a_pixel():
    ring = [(3.3, 4.1), (30.2, 9.7), (12.9, 33.3)]
    assert_agreement(draw_at_size(ring), ring)
    with pytest.raises(AssertionError):
        assert_agreement(draw_at_size([(x + 0.5, y) for x, y in ring]), ring)


TRITON = """
import sys
import torch
from fnpipe.ops import paint, raster
from fnpipe.types import Rings

*parts, stride = torch.load(sys.argv[1])
found = raster.masks(Rings(*parts), (12 * stride, 11 * stride), stride=stride, impl="triton")
torch.save(found, sys.argv[1])
"""


@pytest.mark.parametrize("stride", [1, 3, 4])
def test_triton_has_the_same_bits_in_its_interpreter(tmp_path, stride):
    pytest.importorskip("triton")
    generator = np.random.default_rng(stride)
    half = generator.integers(-4, 28, (20, 2, 5, 2)) * np.float32(stride / 2)
    near = np.nextafter(half, np.float32(np.inf) * generator.choice([-1, 1], half.shape))
    batch = np.where(generator.random(half.shape) < 0.5, half, near).tolist()
    packed, file = rings_of(*batch), tmp_path / "rings.pt"
    torch.save((packed.points, packed.ring_offsets, packed.instance_offsets, stride), file)
    path = os.pathsep.join(
        [str(Path(raster.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", TRITON, file], env=environment, check=True, timeout=120)
    wanted = draw(batch, stride, impl="dense")
    assert wanted.any()
    assert torch.equal(torch.load(file), wanted)
