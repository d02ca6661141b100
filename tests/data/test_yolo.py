"""YOLO texts: real ones, and the rows of real failures."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fnpipe.data.yolo import read_yolo, read_yolo_folders
from fnpipe.types import ArgumentError, DataError


BOX = "0 0.5 0.5 0.4 0.2"
POSE = {"kpt_shape": [3, 2], "flip_idx": [0, 2, 1]}


def names(data) -> list[str]:
    return [str(data.path(i).relative_to(data.root)) for i in range(len(data))]


def test_real_boxes(shared_data: Path):
    data = read_yolo(shared_data / "yolo" / "detect.yaml", labels="labels_detect")
    assert (len(data), len(data.targets)) == (20, 85)
    counts = data.report.counts
    assert counts["photo without label file"] == 2
    assert counts["label file without photo"] == 2
    missing = [line for line in data.report.lines if line.startswith("photo without")]
    assert [Path(line).stem for line in missing] == ["000000000250", "000000000508"]
    gray = next(i for i in range(20) if "000000000086" in str(data.path(i)))
    red, green, blue = data.read(gray)
    assert torch.equal(red, green)
    assert torch.equal(green, blue)


def test_real_polygons_with_gaps_between_class_ids(shared_data: Path):
    data = read_yolo(shared_data / "yolo" / "segment.yaml", labels="labels_segment", task="segment")
    assert (len(data), len(data.targets)) == (20, 84)
    assert data.categories[-1] == 90
    assert len(data.names) == 80
    first = shared_data / "yolo/labels_segment/train2017/000000000009.txt"
    ids = [int(row.split()[0]) for row in first.read_text().splitlines()]
    assert [data.categories[label] for label in data.targets.labels[: len(ids)]] == ids


@pytest.mark.parametrize(("split", "instances"), [("train", 125), ("val", 8)])
def test_real_oriented_boxes(shared_data: Path, split: str, instances: int):
    root = shared_data / "dota8"
    data = read_yolo(root / "dota8.yaml", root=root, split=split, task="obb")
    assert data.targets.quads.shape == (instances, 4, 2)
    reaching = ((data.targets.quads < 0) | (data.targets.quads > 1024)).flatten(1).any(1)
    assert reaching.sum() == data.report.counts["clipped"] == {"train": 16, "val": 1}[split]
    assert data.targets.boxes.min() >= 0
    assert data.targets.boxes.max() <= 1024
    folders = read_yolo_folders(
        root / "images" / split, root / "labels" / split, data.names, task="obb"
    )
    assert torch.equal(folders.targets.quads, data.targets.quads)


def test_a_yaml_whose_path_is_elsewhere_says_so(shared_data: Path):
    with pytest.raises(
        DataError, match=r"dota8\.yaml: no folder or file .*; pass root= \(--root\) if"
    ):
        read_yolo(shared_data / "dota8" / "dota8.yaml", task="obb")


def test_case_15_suffixes_of_any_case_in_the_order_of_names(tmp_path: Path, save_photo):
    formats = {"b.PnG": "PNG", "A.JPG": "JPEG", "d.WebP": "WEBP", "c.jpeg": "JPEG"}
    for name, format in formats.items():
        save_photo(tmp_path / "images" / name, 8, 8, format=format)
    (tmp_path / "images" / "notes.TXT").write_text("no photo")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "A.txt").write_text(BOX)
    data = read_yolo_folders(tmp_path / "images", tmp_path / "labels", ["cat"])
    assert names(data) == ["A.JPG", "b.PnG", "c.jpeg", "d.WebP"]
    assert data.offsets.tolist() == [0, 1, 1, 1, 1]


def test_photos_of_telephones_that_cannot_be_read_are_told_of(load_yolo, tmp_path: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "IMG_1.HEIC").write_bytes(b"\0\0\0\x24ftypheic\0\0\0\0")
    report = load_yolo(BOX).report
    assert report.counts == {"photo dropped": 1}
    assert report.lines[-1].endswith("IMG_1.HEIC: HEIC, which is not read; save it as JPEG")


def test_case_13_labels_of_photos_with_any_name(tmp_path: Path, save_photo):
    for name in ("写真 é.jpg", "写真 e\u0301.jpg"):
        save_photo(tmp_path / "données" / "집 1" / "images" / name, 8, 8)
    label = tmp_path / "données" / "집 1" / "labels" / "写真 é.txt"
    label.parent.mkdir()
    label.write_text(BOX)
    (tmp_path / "data.yaml").write_text("train: données/집 1/images\nnames: [cat]", "utf-8")
    data = read_yolo(tmp_path / "data.yaml")
    assert len(data) == 2
    assert data.offsets.diff().tolist() == [0, 1]  # the combining accent sorts first


def test_case_17_the_last_part_called_images_is_replaced(tmp_path: Path, save_photo):
    root = tmp_path / "images" / "train"
    save_photo(root / "images" / "a.jpg", 8, 8)
    (root / "labels").mkdir()
    (root / "labels" / "a.txt").write_text(BOX)
    (tmp_path / "data.yaml").write_text("train: images/train/images\nnames: [cat]")
    assert len(read_yolo(tmp_path / "data.yaml").targets) == 1


def test_case_17_labels_beside_photos_need_a_word_and_none_at_all_raises(
    tmp_path: Path, save_photo
):
    save_photo(tmp_path / "images" / "a.jpg", 8, 8)
    (tmp_path / "images" / "a.txt").write_text(BOX)
    (tmp_path / "data.yaml").write_text("train: images\nnames: [cat]")
    with pytest.raises(
        DataError, match=r"none of 1 photos has a label file; .*labels/a\.txt; pass labels="
    ):
        read_yolo(tmp_path / "data.yaml")
    assert len(read_yolo(tmp_path / "data.yaml", labels="images").targets) == 1


def test_labels_lie_beside_photos_in_a_folder_of_another_name(tmp_path: Path, save_photo):
    save_photo(tmp_path / "photos" / "a.jpg", 8, 8)
    (tmp_path / "photos" / "a.txt").write_text(BOX)
    (tmp_path / "data.yaml").write_text("train: photos\nnames: [cat]")
    assert len(read_yolo(tmp_path / "data.yaml").targets) == 1


def test_case_18_only_the_last_suffix_is_swapped(tmp_path: Path, save_photo):
    photos = ["a.jpg.jpg", "x.webp.jpg", "v1.2.frame.png", ".hidden.jpg"]
    labels = ["a.jpg.txt", "x.webp.txt", "v1.2.frame.txt", ".hidden.txt"]
    (tmp_path / "labels").mkdir()
    for photo, label in zip(photos, labels, strict=True):
        save_photo(tmp_path / "images" / photo, 8, 8)
        (tmp_path / "labels" / label).write_text(BOX)
    data = read_yolo_folders(tmp_path / "images", tmp_path / "labels", ["cat"])
    assert sorted(names(data)) == sorted(photos)
    assert data.offsets.diff().tolist() == [1, 1, 1, 1]


def test_case_19_two_photos_of_one_label_file_are_an_error(tmp_path: Path, save_photo):
    for name in ("1.jpg", "1.png"):
        save_photo(tmp_path / "images" / name, 8, 8)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "1.txt").write_text(BOX)
    with pytest.raises(
        DataError, match=r"labels/1\.txt: the labels of two photos, .*/1\.jpg and .*/1\.png"
    ):
        read_yolo_folders(tmp_path / "images", tmp_path / "labels", ["cat"])


def test_case_20_missing_empty_and_blank_files_are_background(load_yolo):
    data = load_yolo(None, "", " \n\n\t\n", BOX)
    assert data.offsets.tolist() == [0, 0, 0, 0, 1]
    assert data.report.counts == {"photo without label file": 1, "empty label file": 2}
    for i in range(3):
        targets = data[i].targets
        assert targets.boxes.shape == (0, 4)
        assert targets.labels.shape == (0,)
        assert targets.keypoints.shape == (0, 0, 3)


def test_case_22_equal_rows_count_once_in_the_order_of_the_file(load_yolo):
    a, b, c = (f"{i % 2} 0.5 0.5 0.{2 + i} 0.2 0.{i} 0.1 0 0 0.3 0.3" for i in range(3))
    data = load_yolo("\n".join([a, b, a, c]), task="pose", config=POSE)
    assert data.targets.labels.tolist() == [0, 1, 0]
    assert data.targets.keypoints[:, 0, 0].tolist() == [0.0, 10.0, 20.0]
    assert data.report.counts == {"duplicate row": 1}
    assert data.report.lines[0].endswith("0.txt: row 3")


@pytest.mark.parametrize("id", [4, -1])
def test_case_27_an_unknown_class_names_file_row_id_and_range(load_yolo, id: int):
    with pytest.raises(
        DataError, match=rf"labels/0\.txt: row 2: class {id}; wanted one of 2 ids, 0 to 1"
    ):
        load_yolo(f"{BOX}\n{id} 0.5 0.5 0.1 0.1")


def test_case_28_a_class_may_be_written_as_a_float_but_must_be_whole(load_yolo):
    row = "1.000000000000000000e+00 5.0e-01 5.0e-01 2.0e-01 4.0e-01"
    assert load_yolo(row).targets.labels.tolist() == [1]
    with pytest.raises(DataError, match=r"row 1: class 1\.5; wanted one of 2 ids"):
        load_yolo("1.5 0.5 0.5 0.2 0.4")


def test_case_30_a_box_among_polygons(load_yolo):
    text = f"{BOX}\n0 .1 .1 .3 .1 .3 .3 .1 .3"
    assert load_yolo(text).targets.boxes.tolist() == [[30, 40, 70, 60], [10, 10, 30, 30]]
    with pytest.raises(DataError, match=r'row 1: a box among polygons; pass box_rows="rectangle"'):
        load_yolo(text, task="segment")
    whole = load_yolo(text, task="segment", box_rows="rectangle")
    assert whole.targets.boxes.tolist() == [[30, 40, 70, 60], [10, 10, 30, 30]]
    assert whole.targets.rings.points[:4].tolist() == [[30, 40], [70, 40], [70, 60], [30, 60]]
    part = load_yolo(text, task="segment", box_rows="drop")
    assert part.targets.boxes.tolist() == [[10, 10, 30, 30]]
    assert part.report.counts == {"box row dropped": 1}


def test_case_46_missing_keypoints_and_flags(load_yolo):
    two = load_yolo("0 .5 .5 .2 .2 .4 .4 0 0 .6 .6", task="pose", config=POSE)
    assert two.targets.keypoints.tolist() == [[[40, 40, 2], [0, 0, 0], [60, 60, 2]]]
    assert two.keypoint_flip == (0, 2, 1)
    three = load_yolo(
        "0 .5 .5 .2 .2 .4 .4 2 .7 .7 0 .6 .6 1", task="pose", config={"kpt_shape": [3, 3]}
    )
    assert three.targets.keypoints.tolist() == [[[40, 40, 2], [0, 0, 0], [60, 60, 1]]]


def test_a_keypoint_in_the_corner_is_there_if_its_flag_says_so(load_yolo):
    data = load_yolo("0 .5 .5 .2 .2 0 0 2", task="pose", config={"kpt_shape": [1, 3]})
    assert data.targets.keypoints.tolist() == [[[0, 0, 2]]]


@pytest.mark.parametrize(("shape", "columns"), [([17, 3], 39), ([17, 2], 56)])
def test_case_47_poses_of_another_shape_are_refused(load_yolo, shape: list[int], columns: int):
    k, d = shape
    row = BOX + " 0.5" * (columns - 5)
    with pytest.raises(
        DataError, match=rf"row 1: {columns} columns; wanted {5 + k * d} \(class, box, 17 keypoints"
    ):
        load_yolo(row, task="pose", config={"kpt_shape": shape})


def test_boxes_of_poses_are_not_taken_for_polygons(load_yolo):
    data = load_yolo(BOX + " 0.1" * 34, config={"kpt_shape": [17, 2]})
    assert data.targets.boxes.tolist() == [[30, 40, 70, 60]]


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ("0 nan 0.5 0.1 0.1", {}, "wanted finite numbers, got 0.0 nan 0.5 0.1 0.1"),
        ("nan 0.5 0.5 0.1 0.1", {}, "wanted finite numbers"),
        ("0 0.5 0.5 0.1 inf", {}, "wanted finite numbers"),
        ("0 0.5 0.5 0.1", {}, r"4 columns; wanted 5 \(class, box\) or an odd number from 7 up"),
        ("0 .1 .1 .2 .2 .3 .3 .4", {"task": "segment"}, "8 columns; wanted 5"),
        (BOX, {"task": "obb"}, r"5 columns; wanted 9 \(class, 4 corners\)"),
        ("0 320 240 64 48", {}, "position 320; wanted fractions of the photo"),
        ("cat 0.5 0.5 0.1 0.1", {}, "wanted numbers with blanks between, got cat 0.5 0.5 0.1 0.1"),
        (
            "0 .5 .5 .2 .2 .1 .1 3",
            {"task": "pose", "config": {"kpt_shape": [1, 3]}},
            "keypoint flag 3; wanted 0, 1 or 2",
        ),
    ],
)
def test_what_cannot_be_understood_is_named(load_yolo, row: str, options: dict, message: str):
    with pytest.raises(DataError, match=rf"labels/0\.txt: row 2: {message}"):
        load_yolo(f"\n{row}", **options)


def test_a_split_may_be_a_text_file_or_a_list(tmp_path: Path, save_photo: Callable[..., Path]):
    for name in ("a", "b", "c"):
        save_photo(tmp_path / "images" / f"{name}.png", 8, 8)
    save_photo(tmp_path / "more" / "images" / "d.png", 8, 8)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "b.txt").write_text(BOX)
    listed = f"./images/c.png\n\n{tmp_path}/images/b.png\nimages/none.png\n"
    (tmp_path / "list.txt").write_text(listed)
    (tmp_path / "data.yaml").write_text(
        "names: {7: dog, 0: cat}\ntrain: [list.txt, more/images]\nval: list.txt"
    )
    data = read_yolo(tmp_path / "data.yaml")
    assert names(data) == ["images/c.png", "images/b.png", "more/images/d.png"]
    assert data.report.counts["photo dropped"] == 1
    assert data.categories == (0, 7)
    assert data.names == ("cat", "dog")
    assert names(read_yolo(tmp_path / "data.yaml", split="val")) == names(data)[:2]
    (tmp_path / "list.txt").write_text(listed, encoding="utf-8-sig")  # as Windows' editor saves it
    assert names(read_yolo(tmp_path / "data.yaml")) == names(data)


def test_a_split_that_leads_out_of_its_folder_in_vain_lies_in_it(tmp_path: Path, save_photo):
    """Roboflow's exports say ``../train/images`` beside the folder ``train``."""
    save_photo(tmp_path / "export" / "train" / "images" / "a.png", 8, 8)
    (tmp_path / "export" / "train" / "labels").mkdir()
    (tmp_path / "export" / "train" / "labels" / "a.txt").write_text(BOX)
    source = tmp_path / "export" / "data.yaml"
    source.write_text("train: ../train/images\nval: [../train/images]\nnc: 1\nnames: ['cat']\n")
    assert names(read_yolo(source)) == names(read_yolo(source, split="val"))
    assert names(read_yolo(source)) == ["train/images/a.png"]
    save_photo(tmp_path / "train" / "images" / "b.png", 8, 8)
    (tmp_path / "train" / "labels").mkdir()
    (tmp_path / "train" / "labels" / "b.txt").write_text(BOX)
    assert read_yolo(source).path(0) == tmp_path / "train" / "images" / "b.png"
    source.write_text("train: ../test/images\nnames: ['cat']\n")
    with pytest.raises(DataError, match=f"no folder or file {tmp_path}/test/images; pass root="):
        read_yolo(source)


def test_windows_names_its_folders_with_backslashes(tmp_path: Path, save_photo):
    save_photo(tmp_path / "images" / "train" / "a.png", 8, 8)
    save_photo(tmp_path / "images" / "train" / "b\\c.png", 8, 8)
    (tmp_path / "labels" / "train").mkdir(parents=True)
    (tmp_path / "labels" / "train" / "a.txt").write_text(BOX)
    listed = ".\\images\\train\\a.png\r\nimages/train/b\\c.png\r\n"
    (tmp_path / "list.txt").write_text(listed, newline="")
    (tmp_path / "data.yaml").write_text("names: [cat]\ntrain: images\\train\nval: list.txt\n")
    data = read_yolo(tmp_path / "data.yaml", split="val")
    assert names(data) == ["images/train/a.png", "images/train/b\\c.png"]
    assert names(read_yolo(tmp_path / "data.yaml")) == names(data)
    assert len(data.targets) == 1


def test_a_list_of_photos_that_are_not_there_is_told_of(tmp_path: Path):
    (tmp_path / "list.txt").write_text("data/obj_train_data/a.jpg\ndata/obj_train_data/b.jpg\n")
    (tmp_path / "data.yaml").write_text("names: [cat]\ntrain: list.txt\n")
    with pytest.raises(
        DataError, match=rf"none of 2 photos is there; the first would be {tmp_path}/data/obj_"
    ):
        read_yolo(tmp_path / "data.yaml")


def test_photos_beyond_the_root_keep_their_whole_path(tmp_path: Path, save_photo):
    photo = save_photo(tmp_path / "far" / "images" / "a.png", 8, 8)
    (tmp_path / "far" / "labels").mkdir()
    (tmp_path / "far" / "labels" / "a.txt").write_text(BOX)
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "data.yaml").write_text("names: [cat]\ntrain: ../far/images")
    data = read_yolo(tmp_path / "near" / "data.yaml")
    assert data.path(0) == photo


def test_links_in_a_circle_end(tmp_path: Path, save_photo):
    save_photo(tmp_path / "images" / "real" / "a.png", 8, 8)
    (tmp_path / "images" / "again").symlink_to(tmp_path / "images")
    (tmp_path / "linked").symlink_to(tmp_path / "images" / "real")
    (tmp_path / "labels" / "real").mkdir(parents=True)
    (tmp_path / "labels" / "real" / "a.txt").write_text(BOX)
    data = read_yolo_folders(tmp_path / "images", tmp_path / "labels", ["cat"])
    assert names(data) == ["real/a.png"]
    assert len(data.targets) == 1
    shutil.copy(tmp_path / "labels" / "real" / "a.txt", tmp_path / "labels")
    assert len(read_yolo_folders(tmp_path / "linked", tmp_path / "labels", ["cat"]).targets) == 1


def test_a_split_that_is_not_there_is_told_of_with_those_that_are(load_yolo):
    with pytest.raises(DataError, match=r"no split 'val'; there are train, validation$"):
        load_yolo(BOX, config={"validation": "images"}, split="val")
    assert len(load_yolo(BOX, config={"validation": "images"}, split="validation")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: [cat]", "no split 'train'; there are none"),
        ("val: images\nnames: [cat]", "no split 'train'; there are val"),
        ("train: images\nnames: cat", "names: wanted a list, or names by their number, got 'cat'"),
        ("train: images\nnames: {cat: 0}", r"names: wanted a list, or .*, got \{'cat': 0\}"),
        ("train: images\nnc: many", "nc: wanted a whole number, got 'many'"),
        ("train: 3\nnames: [cat]", "wanted a folder, a text file, or a list of them, got 3"),
        ("train: {a: b}\nnames: [cat]", r"wanted a folder, a text .*, got \{'a': 'b'\}"),
        ("train: images\nnames: [cat]", "split 'train': no photos in images of "),
        ("train: a.png\nnames: [cat]", r"a\.png: wanted a folder, or a text file with a photo a "),
        ("train: images\nnames: [cat]\nkpt_shape: [3]", r"kpt_shape: wanted \[.*, got \[3\]"),
        ("path: 3\ntrain: images\nnames: [cat]", "no folder or file .*/3/images"),
        ("train: images", "names: wanted the classes, got none"),
        ("train: images\nnames: [cat]\nnc: 2", "nc is 2, but there are 1 names"),
        ("[1, 2]", "wanted keys and values"),
        ("a: [", "not YAML"),
        ("train: nowhere\nnames: [cat]", "no folder or file .*nowhere"),
    ],
)
def test_a_yaml_that_says_too_little_is_named(tmp_path: Path, text: str, message: str):
    (tmp_path / "images").mkdir()
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(DataError, match=rf"data\.yaml: .*{message}"):
        read_yolo(tmp_path / "data.yaml")


def test_nameless_classes_are_called_by_their_number(load_yolo):
    assert load_yolo(BOX, config={"names": None, "nc": 3}).names == ("0", "1", "2")


def test_options_are_checked(load_yolo, tmp_path: Path):
    with pytest.raises(ArgumentError, match="task wanted one of detect, segment, pose, obb, came"):
        load_yolo(BOX, task="boxes")
    with pytest.raises(ArgumentError, match="box_rows wanted one of raise, rectangle, drop, came"):
        load_yolo(BOX, box_rows="x")
    with pytest.raises(ArgumentError, match="scan wanted one of header, decode, came 'trust'"):
        load_yolo(BOX, scan="trust")
    with pytest.raises(DataError, match=r"kpt_shape: wanted \[keypoints, 2 or 3\] for poses"):
        load_yolo(BOX, task="pose")
    with pytest.raises(ArgumentError, match="keypoint_flip: wanted"):
        load_yolo(BOX, task="pose", config=POSE, keypoint_flip=[0, 1])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        read_yolo_folders(tmp_path / "nowhere", tmp_path, ["cat"])
    with pytest.raises(DataError, match=r"empty: no photos"):
        read_yolo_folders(tmp_path / "empty", tmp_path, ["cat"])


def test_a_folder_in_place_of_its_yaml_is_told_of(tmp_path: Path):
    with pytest.raises(DataError, match=r": a folder; wanted the file that names its splits, data"):
        read_yolo(tmp_path)


def test_poses_without_a_shape_are_told_of_with_the_file(tmp_path: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"")
    file = tmp_path / "data.yaml"
    file.write_text("train: images\nnames: [leaf]\n")
    with pytest.raises(DataError, match=r"data\.yaml: kpt_shape: wanted .* for poses, got none$"):
        read_yolo(file, task="pose")
