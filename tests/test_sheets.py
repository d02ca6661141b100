"""Sheets: what is beside what, and that nothing is changed on the way."""

import pytest
import torch

import fnpipe as fp
from fnpipe import demo, preview, sheets
from fnpipe.testing import assert_same_bits
from fnpipe.types import ArgumentError


TRAIN = fp.pipe(fp.letterbox(64), fp.flip(horizontal=1.0), fp.finish())
CELL = sheets.CELL + preview.GUTTER
TALL = CELL + sheets.CAPTION


@pytest.fixture(scope="module")
def data() -> fp.Dataset:
    pytest.importorskip("skimage")
    return demo.load()


def cell(sheet: torch.Tensor, row: int, column: int) -> torch.Tensor:
    """One picture of a sheet of captioned ones, without its caption."""
    top, left = preview.GUTTER + row * TALL + sheets.CAPTION, preview.GUTTER + column * CELL
    return sheet[:, top : top + sheets.CELL, left : left + sheets.CELL]


def sample(data: fp.Dataset, pipeline: fp.Pipeline, index: int, *, seed: int = 0) -> torch.Tensor:
    batch = fp.make_batch(data, pipeline, [index], seed=seed)
    zoom = sheets.CELL / max(batch.images.shape[2:])
    return preview.draw(batch.images[0], batch.targets, names=data.names, zoom=zoom)


def test_before_stands_beside_after(data: fp.Dataset):
    sheet = sheets.pairs(data, TRAIN, [0, 1])
    assert_same_bits(sample(data, TRAIN, 0), cell(sheet, 0, 1))
    assert_same_bits(sample(data, TRAIN, 1), cell(sheet, 0, 3))
    assert sheet.shape[2] == 4 * CELL + preview.GUTTER


def test_one_sample_across_seeds(data: fp.Dataset):
    turned = fp.pipe(fp.letterbox(64), fp.affine(degrees=90.0))
    sheet = sheets.seeds(data, turned, 2, count=5, seed=7)
    for place in range(5):
        expected = sample(data, turned, 2, seed=7 + place)
        assert_same_bits(expected, cell(sheet, place // 4, place % 4))


def test_stage_by_stage_ends_with_the_whole(data: fp.Dataset):
    sheet = sheets.stages(data, TRAIN, 0)
    assert sheet.shape[2] == 3 * CELL + preview.GUTTER  # the photo, letterbox, flip
    codes = fp.pipe(fp.letterbox(64), fp.flip(horizontal=1.0))
    assert_same_bits(sample(data, codes, 0), cell(sheet, 0, 2))


def test_sizes_before_and_after(data: fp.Dataset):
    """A letterbox keeps every label; of a square photo every share of the image, too."""
    before, after = sheets.samples_before_and_after(data, TRAIN, range(len(data)))
    assert_same_bits(before[0], after[0])
    first = data.offsets[0:2].tolist()
    assert torch.allclose(before[1][slice(*first)], after[1][slice(*first)], atol=1e-6)
    assert bool((after[1] > 0).all() and (after[1] <= 1).all())


def test_histograms_are_a_picture(data: fp.Dataset):
    pytest.importorskip("matplotlib")
    assert sheets.counts(data, TRAIN, range(len(data))).shape == (3, 800, 1200)


def test_no_photo_is_refused(data: fp.Dataset):
    with pytest.raises(ArgumentError, match=r"^draw: wanted at least one sample, came none$"):
        sheets.counts(data, TRAIN, [])
    with pytest.raises(ArgumentError, match=r"^pictures wanted at least one, came none$"):
        sheets.plain(data, [])


def test_without_matplotlib_one_line_says_what_to_install(data, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ArgumentError, match=r"want Matplotlib: pip install 'fnpipe\[preview\]'$"):
        sheets.counts(data, TRAIN, [0])
