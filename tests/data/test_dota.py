"""DOTA texts: real ones, and the row of real failures."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from fnpipe.data.dota import read_dota
from fnpipe.types import ArgumentError, DataError


ROWS = "10 10 30 10 30 20 10 20 ship 0\n50 50 60 60 50 70 40 60 large-vehicle 1\n"


@pytest.fixture
def load(tmp_path: Path, save_photo):
    def read(text: str, **options):
        save_photo(tmp_path / "images" / "P1.png", 100, 100)
        (tmp_path / "labelTxt").mkdir(exist_ok=True)
        (tmp_path / "labelTxt" / "P1.txt").write_text(text)
        return read_dota(tmp_path / "images", tmp_path / "labelTxt", **options)

    return read


def test_real_tiles(shared_data: Path):
    data = read_dota(shared_data / "dota" / "images", shared_data / "dota" / "labelTxt")
    assert [data.path(i).name for i in range(2)] == ["P0706.png", "P1888.png"]
    assert data.sizes.tolist() == [[1111, 1182], [712, 557]]
    assert data.offsets.tolist() == [0, 536, 600]
    assert data.names == ("harbor", "large-vehicle", "ship", "small-vehicle")
    text = (shared_data / "dota" / "labelTxt" / "P0706.txt").read_text()
    assert data.targets.ignore[:536].sum() == sum(row.endswith(" 1") for row in text.splitlines())
    corners = {tuple(corner) for corner in data.targets.quads[0].tolist()}
    assert corners == {(1054, 1028), (1063, 1011), (1111, 1040), (1112, 1062)}
    assert data.targets.boxes[0, 2] == 1111


@pytest.mark.parametrize(
    "header",
    ["imagesource:GoogleEarth\ngsd:0.146\n", "", "gsd:null\n", "imagesource:GF\ngsd:\n\n"],
    ids=["both", "none", "null", "blank"],
)
def test_case_52_headers_or_none_there_are_two_objects(load, header: str):
    data = load(header + ROWS)
    assert data.names == ("large-vehicle", "ship")
    assert data.targets.labels.tolist() == [1, 0]
    assert data.targets.boxes.tolist() == [[10, 10, 30, 20], [40, 50, 60, 70]]
    assert data.report.counts == {}


@pytest.mark.parametrize(("threshold", "ignored"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_case_52_difficulty_has_a_threshold(load, threshold: int, ignored: int):
    rows = [f"{i} 10 30 10 30 20 10 20 ship {i}" for i in range(3)]
    data = load("\n".join(rows), difficult_threshold=threshold)
    assert data.targets.ignore.tolist() == [False] * (3 - ignored) + [True] * ignored


def test_a_row_without_difficulty_is_easy_and_an_equal_one_counts_once(load):
    data = load("10 10 30 10 30 20 10 20 ship\n" * 2)
    assert data.targets.ignore.tolist() == [False]
    assert data.report.counts == {"duplicate row": 1}


def test_names_given_are_the_labels(load):
    data = load(ROWS, names=["plane", "ship", "large-vehicle"])
    assert data.targets.labels.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"P1\.txt: row 2: class 'large-vehicle'; wanted one of sh"):
        load(ROWS, names=["ship"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1 2 3 4 5 6 7 8", "8 columns; wanted 4 corners, class, difficulty"),
        ("1 2 3 4 5 6 7 nan ship 0", "wanted finite numbers"),
        ("1 2 3 4 5 6 7 x ship 0", "could not convert"),
        ("1 2 3 4 5 6 7 8 ship hard", "invalid literal for int"),
        (
            "0 0.1 0.1 0.3 0.1 0.3 0.3 0.1 0.3",
            "class '0.3'; wanted a name: is this a row of YOLO\\?",
        ),
    ],
)
def test_a_row_that_cannot_be_understood_is_named(load, row: str, message: str):
    with pytest.raises(DataError, match=rf"P1\.txt: row 2: {message}"):
        load("gsd:1\n" + row)


def test_photos_and_texts_without_each_other_are_reported(shared_data: Path, tmp_path, save_photo):
    Image.new("L", (3000, 4000)).save(tmp_path / "P2709.png")
    save_photo(tmp_path / "P0.png", 8, 8)
    labels = shared_data / "dota" / "labelTxt_without_image"
    data = read_dota(tmp_path, labels)
    assert data.report.counts["photo without label file"] == 1
    assert data.report.counts["label file without photo"] == 4
    assert len(data.targets) > 0
    assert torch.equal(data.targets.owner, torch.ones(len(data.targets), dtype=torch.int64))
    with pytest.raises(DataError, match="none of 2 photos has a label file"):
        read_dota(tmp_path, tmp_path)


def test_a_size_cannot_be_trusted_where_none_is_written(load):
    with pytest.raises(ArgumentError, match="scan wanted one of header, decode, came 'trust'"):
        load(ROWS, scan="trust")


def test_what_is_no_folder_of_photos_is_named(tmp_path: Path, save_photo):
    photo = save_photo(tmp_path / "a.png", 8, 8)
    with pytest.raises(DataError, match=r"a\.png: no such folder"):
        read_dota(photo, tmp_path)
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        read_dota(tmp_path / "nowhere", tmp_path)
