"""Run lengths against pycocotools, and rings that fill a mask again."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fnpipe.data.rle import decode_rle, encode_rle
from fnpipe.ops.trace import bridge, trace_mask
from fnpipe.types import DataError


oracle = pytest.importorskip("pycocotools.mask")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # of pycocotools


def random_mask(seed: int) -> torch.Tensor:
    """Blots and speckles of all densities, some of them a single row or column."""
    random = np.random.default_rng(seed)
    height, width = random.integers(1, 40, 2)
    step = 1 + seed % 4
    coarse = random.random((height // step + 1, width // step + 1)) < random.random()
    return torch.from_numpy(np.kron(coarse, np.ones((step, step)))[:height, :width] > 0)


def crowds(shared_data: Path) -> list[dict]:
    files = sorted((shared_data / "coco" / "annotations").glob("instances_*.json"))
    annotations = [a for file in files for a in json.loads(file.read_text())["annotations"]]
    return [a["segmentation"] for a in annotations if isinstance(a["segmentation"], dict)]


def test_every_crowd_of_coco_decodes_as_pycocotools_does(shared_data: Path):
    found = crowds(shared_data)
    for rle in found:
        height, width = rle["size"]
        compressed = oracle.frPyObjects(rle, height, width)
        mask = torch.from_numpy(oracle.decode(compressed)).bool()
        assert torch.equal(decode_rle(rle["counts"], height, width), mask)
        assert torch.equal(decode_rle(compressed["counts"], height, width), mask)
    assert len(found) == 23


def test_every_crowd_of_coco_is_filled_by_its_rings(shared_data: Path, fill: Callable):
    for rle in crowds(shared_data):
        mask = decode_rle(rle["counts"], *rle["size"])
        assert torch.equal(fill(trace_mask(mask), *rle["size"])[0], mask)


@pytest.mark.parametrize("seed", range(60))
def test_random_masks_go_there_and_back(seed: int, fill: Callable):
    mask = random_mask(seed)
    height, width = mask.shape
    rle = oracle.encode(np.asfortranarray(mask.numpy().astype(np.uint8)))
    assert torch.equal(decode_rle(rle["counts"], height, width), mask)
    assert torch.equal(decode_rle(rle["counts"].decode(), height, width), mask)
    runs = encode_rle(mask)
    assert torch.equal(decode_rle(runs, height, width), mask)
    uncompressed = {"counts": runs, "size": [height, width]}
    assert oracle.frPyObjects(uncompressed, height, width)["counts"] == rle["counts"]
    assert torch.equal(fill(trace_mask(mask), height, width)[0], mask)


def test_case_34_runs_go_down_columns_and_begin_with_zeros():
    expected = torch.zeros(3, 4, dtype=torch.bool)
    expected[:, 0] = True
    assert torch.equal(decode_rle([0, 3, 9], 3, 4), expected)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([0, 3, 8], r"wanted 3 x 4 = 12 pixels in runs of at least 0, got 11"),
        ([0, 3, 10], r"got 13 in runs of at least 0"),
        ([5, -3, 10], r"got 12 in runs of at least -3"),
        ([], "got 0"),
        ("3?~", "wanted COCO's compressed runs, got b'3"),
        ("P", "wanted COCO's compressed runs"),
    ],
)
def test_runs_that_are_no_mask_are_refused(counts: list[int] | str, message: str):
    with pytest.raises(DataError, match=message):
        decode_rle(counts, 3, 4)


def test_pieces_are_rings_of_their_own_and_a_hole_joins_all():
    mask = torch.zeros(6, 8, dtype=torch.bool)
    mask[1:3, 1:3] = mask[1:5, 4:7] = True
    squares = [[[1, 1], [3, 1], [3, 3], [1, 3]], [[4, 1], [7, 1], [7, 5], [4, 5]]]
    assert [ring.tolist() for ring in trace_mask(mask)] == squares
    mask[2, 5] = False
    (ring,) = trace_mask(mask)
    assert len(ring) == 16  # three loops of four, closed, and one step back
    assert trace_mask(torch.zeros(3, 3, dtype=torch.bool)) == []


def test_a_bridge_goes_there_and_back_by_the_first_corners():
    assert bridge([(0, 4)]) == [(0, 4)]
    there = [(0, 4), (0, 1), (4, 6), (4, 1), (10, 4), (10, 1)]
    assert bridge([(0, 4), (4, 6), (10, 4)]) == [*there, (4, 1)]
