"""COCO files: real ones, and the rows of real failures."""

import gc
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from fnpipe.data import coco
from fnpipe.data.build import collect
from fnpipe.data.coco import read_coco
from fnpipe.data.rle import encode_rle
from fnpipe.types import ArgumentError, DataError


BOX = {"bbox": [10, 10, 20, 20]}
PARTS = [[10, 10, 30, 10, 30, 30, 10, 30], [60, 60, 80, 60, 80, 80, 60, 80]]
KINDS = [{"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]}]


@pytest.mark.parametrize(
    ("split", "photos", "instances", "crowds"), [("train", 128, 1182, 13), ("val", 64, 578, 10)]
)
def test_real_instances(shared_data: Path, split: str, photos: int, instances: int, crowds: int):
    folder = shared_data / "coco"
    source = folder / "annotations" / f"instances_{split}2017.json"
    document = json.loads(source.read_text())
    detect = read_coco(source, folder / f"{split}2017")
    segment = read_coco(source, folder / f"{split}2017", task="segment")
    for data in (detect, segment):
        assert (len(data), len(data.targets)) == (photos, instances)
        assert data.targets.ignore.sum() == crowds
        assert data.report.counts == {}
        assert len(data.names) == 80
        assert data.categories[-1] == 90
    assert (detect.targets.boxes - segment.targets.boxes).abs().max() < 1.5
    assert len(detect.targets.rings.points) == 0
    counts = Counter(a["image_id"] for a in document["annotations"])
    assert detect.offsets.diff().tolist() == [counts[id] for id in detect.image_ids.tolist()]
    pairs = Counter((a["image_id"], a["category_id"]) for a in document["annotations"])
    owner, labels = detect.targets.owner, detect.targets.labels
    ids = detect.image_ids[owner].tolist()
    assert Counter(zip(ids, (detect.categories[i] for i in labels), strict=True)) == pairs


def test_three_real_photos_are_background(shared_data: Path):
    folder = shared_data / "coco"
    empty = 0
    for split in ("train", "val"):
        source = folder / "annotations" / f"instances_{split}2017.json"
        data = read_coco(source, folder / f"{split}2017", scan="trust")
        empty += int((data.offsets.diff() == 0).sum())
    assert empty == 3


def test_sizes_by_trust_and_by_looking_agree_on_real_photos(shared_data: Path):
    folder = shared_data / "coco"
    source = folder / "annotations" / "instances_train2017.json"
    trusted = read_coco(source, folder / "train2017", scan="trust")
    assert trusted.fingerprint() == read_coco(source, folder / "train2017").fingerprint()


@pytest.mark.parametrize(
    ("source", "photos", "k", "flipped"),
    [
        ("coco/annotations/person_keypoints_train2017.json", "coco/train2017", 17, (0, 2, 1, 4, 3)),
        ("pose/crowdpose/test_crowdpose.json", "pose/crowdpose", 14, (1, 0, 3, 2, 5)),
        ("pose/onehand10k/test_onehand10k.json", "pose/onehand10k", 21, ()),
    ],
)
def test_real_poses(shared_data: Path, source: str, photos: str, k: int, flipped: tuple[int, ...]):
    data = read_coco(shared_data / source, shared_data / photos, task="pose")
    document = json.loads((shared_data / source).read_text())
    assert data.targets.keypoints.shape == (len(document["annotations"]), k, 3)
    assert data.keypoint_flip[:5] == flipped
    visible = sum(v > 0 for a in document["annotations"] for v in a["keypoints"][2::3])
    hidden = data.report.counts.get("keypoint outside", 0)
    assert visible - 2 * hidden <= (data.targets.keypoints[..., 2] > 0).sum() <= visible


def test_case_32_four_numbers_and_a_line_are_no_polygon(load_coco, fill):
    line = {"bbox": [10, 10, 20, 20], "segmentation": [[10, 10, 20, 20, 30, 30]]}
    data = load_coco(
        {"bbox": [10, 10, 10, 10], "segmentation": [[10, 10, 20, 20]]}, line, task="segment"
    )
    assert data.targets.boxes.tolist() == [[10, 10, 20, 20], [10, 10, 30, 30]]
    assert fill(data.targets.rings, 100, 100).sum() == 0
    assert data.report.counts == {"ring without area": 2}


def test_case_33_empty_segmentations_leave_the_box(load_coco):
    valid = [1, 1, 4, 1, 4, 4]
    segmentations = [{"segmentation": s} for s in ([], [[]], [[], valid])]
    data = load_coco(*({**BOX, **s} for s in (*segmentations, {})), task="segment")
    assert data.targets.boxes.tolist() == [
        [10, 10, 30, 30],
        [10, 10, 30, 30],
        [1, 1, 4, 4],
        [10, 10, 30, 30],
    ]
    assert data.targets.rings.instance_offsets.tolist() == [0, 0, 0, 1, 1]
    assert data.report.counts == {}


def test_case_34_a_list_of_runs_is_read_down_the_columns(load_coco, fill):
    runs = [0, 50, 50, 50, 9850]  # the upper halves of two columns
    data = load_coco({"segmentation": {"counts": runs, "size": [100, 100]}}, task="segment")
    mask = fill(data.targets.rings, 100, 100)[0]
    assert mask[:50, :2].all()
    assert mask.sum() == 100
    assert data.targets.boxes.tolist() == [[0, 0, 2, 50]]


@pytest.mark.parametrize("task", ["detect", "segment"])
def test_case_36_a_crowd_is_flagged_or_dropped_never_ordinary(load_coco, fill, task: str):
    right = torch.zeros(100, 100, dtype=torch.bool)
    right[:, 50:] = True
    crowd = {"iscrowd": 1, "segmentation": {"counts": encode_rle(right), "size": [100, 100]}}
    person = {**BOX, "segmentation": [PARTS[0]]}
    data = load_coco(person, crowd, task=task)
    assert data.targets.ignore.tolist() == [False, True]
    assert data.targets.boxes.tolist() == [[10, 10, 30, 30], [50, 0, 100, 100]]
    if task == "segment":
        assert torch.equal(fill(data.targets.rings, 100, 100)[1], right)
    data = load_coco(person, crowd, task=task, crowd="drop")
    assert data.targets.ignore.tolist() == [False]
    assert data.report.lines == ("crowd dropped: annotation 1",)


def test_case_37_multi_part_instance_is_one_object(load_coco, fill):
    data = load_coco({**BOX, "segmentation": PARTS}, task="segment")
    assert data.targets.boxes.tolist() == [[10, 10, 80, 80]]
    assert fill(data.targets.rings, 100, 100).sum() == 800


@pytest.mark.parametrize(("side", "area"), [(9, 81), (10, 100)])
def test_case_39_a_polygon_has_the_area_that_its_edges_say(load_coco, fill, side: int, area: int):
    square = [0, 0, side, 0, side, side, 0, side]
    data = load_coco({**BOX, "segmentation": [square]}, task="segment")
    assert fill(data.targets.rings, 100, 100).sum() == area


def test_case_41_a_donut_keeps_its_vertices_and_its_hole(load_coco, fill):
    """Outer square of 80, round hole of radius 20, a bridge, 1,500 vertices."""
    turns = torch.linspace(0, 2 * torch.pi, 1494, dtype=torch.float64)
    hole = torch.stack([50 + 20 * turns.cos(), 50 - 20 * turns.sin()], 1).flatten().tolist()
    donut = [90, 50, 90, 90, 10, 90, 10, 10, 90, 10, 90, 50, *hole]
    data = load_coco({**BOX, "segmentation": [donut]}, task="segment")
    assert data.targets.rings.points.flatten().tolist() == torch.tensor(donut).tolist()
    area = fill(data.targets.rings, 100, 100).sum().item()
    assert abs(area - (6400 - 400 * torch.pi)) < 320 + 40 * torch.pi
    assert not fill(data.targets.rings, 100, 100)[0, 31:69, 49:51].any()


def test_case_42_labels_count_category_ids_in_order(load_coco):
    kinds = [{"id": i, "name": f"kind {i}"} for i in (90, 1, 3)]
    data = load_coco(*({**BOX, "category_id": i} for i in (90, 3, 1)), categories=kinds)
    assert data.targets.labels.tolist() == [2, 1, 0]
    assert data.categories == (1, 3, 90)
    assert data.names == ("kind 1", "kind 3", "kind 90")


def test_case_44_what_is_missing_is_reported_once_at_read(load_coco, save_photo, tmp_path: Path):
    for name in ("1.png", "2.png"):
        save_photo(tmp_path / name, 100, 100)
    data = load_coco(
        {**BOX, "image_id": 1},
        {**BOX, "image_id": 3},
        {**BOX, "image_id": 999},
        images=[{"id": i, "file_name": f"{i}.png"} for i in (1, 2, 3)],
    )
    assert data.image_ids.tolist() == [1, 2]
    assert data.offsets.tolist() == [0, 1, 1]
    assert data.report.lines == (
        f"photo dropped: {tmp_path / '3.png'}: no such file",
        "annotation of a dropped photo: annotation 1: image 3",
        "orphan annotation: annotation 2: no image 999",
    )


def test_case_48_keypoints_gain_half_a_pixel_and_polygons_do_not(load_coco):
    corner = {**BOX, "keypoints": [10, 20, 2], "segmentation": [[10, 20, 30, 20, 30, 40]]}
    pose = load_coco(corner, task="pose")
    assert pose.targets.keypoints.tolist() == [[[10.5, 20.5, 2]]]
    assert load_coco(corner, task="segment").targets.rings.points[0].tolist() == [10, 20]


def test_missing_keypoints_stay_missing_and_flags_are_kept(load_coco):
    pose = [0, 0, 0, 5, 6, 1, 7, 8, 2]
    data = load_coco({**BOX, "keypoints": pose}, BOX, task="pose", categories=KINDS)
    assert data.targets.keypoints.tolist() == [
        [[0, 0, 0], [5.5, 6.5, 1], [7.5, 8.5, 2]],
        [[0, 0, 0]] * 3,
    ]


def test_left_and_right_change_places_by_name(load_coco):
    assert load_coco(BOX, task="pose", categories=KINDS).keypoint_flip == (0, 2, 1)
    assert load_coco(BOX, categories=KINDS).keypoint_flip == ()
    lame = [{**KINDS[0], "keypoints": ["nose", "left_eye", "other"]}]
    assert load_coco(BOX, task="pose", categories=lame).keypoint_flip == ()
    given = load_coco(BOX, task="pose", categories=KINDS, keypoint_flip=[1, 0, 2])
    assert given.keypoint_flip == (1, 0, 2)
    with pytest.raises(ArgumentError, match=r"keypoint_flip: .* got \(0, 2, 2\)"):
        load_coco(BOX, task="pose", categories=KINDS, keypoint_flip=[0, 2, 2])


def test_a_quad_comes_from_the_key_obb_or_the_box(load_coco):
    data = load_coco({"obb": [50, 10, 90, 50, 50, 90, 10, 50]}, BOX, task="obb")
    assert data.targets.boxes.tolist() == [[10, 10, 90, 90], [10, 10, 30, 30]]
    assert data.targets.quads[1].tolist() == [[10, 10], [30, 10], [30, 30], [10, 30]]


def test_a_size_that_the_file_has_wrong_is_reported(load_coco, tmp_path: Path):
    data = load_coco(BOX, images=[{"id": 1, "file_name": "a.png", "width": 40, "height": 100}])
    assert data.sizes.tolist() == [[100, 100]]
    assert data.report.lines == (f"size differs: {tmp_path / 'a.png'}: 100 x 100, not 40 x 100",)
    text = load_coco(BOX, images=[{"id": 1, "file_name": "a.png", "width": "100", "height": None}])
    assert text.report.lines[0].endswith("a.png: 100 x 100, not '100' x None")


def test_a_photo_that_exif_turns_under_its_labels_is_told_of(load_coco, save_photo, tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    save_photo(tmp_path / "b.jpg", 100, 40, exif=exif)
    data = load_coco(BOX, images=[{"id": 1, "file_name": "b.jpg", "width": 100, "height": 40}])
    assert data.sizes.tolist() == [[40, 100]]
    assert data.report.lines[0] == (
        f"size differs: {tmp_path / 'b.jpg'}: 40 x 100, not 100 x 40, its sides exchanged: do its "
        "labels lie as it is shown, turned by EXIF?"
    )


def test_equal_entries_of_a_photo_count_once(load_coco, tmp_path: Path):
    """As where files with the same photos were joined."""
    data = load_coco(BOX, images=[{"id": 1, "file_name": "a.png", "coco_url": url} for url in "xy"])
    assert (len(data), len(data.targets)) == (1, 1)
    assert data.report.lines == ("duplicate photo: image 1: a.png",)


def test_ids_of_photos_may_be_text(load_coco, save_photo, tmp_path: Path):
    """As in Open Images: they give way to the photos' places in the file."""
    save_photo(tmp_path / "c.png", 100, 100)
    files = {"0a": "gone.png", "3b": "c.png", "1c": "a.png"}
    images = [{"id": id, "file_name": file} for id, file in files.items()]
    boxes = {**BOX, "image_id": "1c"}, {**BOX, "image_id": "0a"}
    data = load_coco(*boxes, images=images)
    assert data.image_ids.tolist() == [1, 2]
    assert data.targets.owner.tolist() == [1]
    assert data.report.counts == {"photo dropped": 1, "annotation of a dropped photo": 1}


def test_each_annotation_is_read_once_where_wrong_ones_are_dropped(load_coco, monkeypatch):
    """Else the time grows with the square of their number: hours for COCO's 860,000."""
    sizes = []
    monkeypatch.setattr(
        coco, "collect", lambda *a, **k: sizes.append(len(a[0])) or collect(*a, **k)
    )
    data = load_coco(BOX, {**BOX, "bbox": [1]}, BOX, {**BOX, "category_id": 7}, rows="drop")
    assert sizes == [2]
    assert data.report.lines == (
        "row refused: annotation 1: bbox: wanted 4 numbers, got 1",
        "row refused: annotation 3: category_id 7; wanted one of [1]",
    )


def test_reading_leaves_pythons_collector_as_it_was(load_coco):
    gc.disable()
    try:
        load_coco(BOX)
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(DataError):
        load_coco({**BOX, "category_id": 7})
    assert gc.isenabled()


@pytest.mark.parametrize("name", ["../a.png", "x/../../a.png", "/etc/passwd"])
def test_a_name_that_leads_out_of_the_folder_is_refused(load_coco, name: str):
    with pytest.raises(DataError, match=r"image 1: file_name .* leads out of the image folder; pa"):
        load_coco(images=[{"id": 1, "file_name": name}])


def test_names_are_literal_and_may_lead_out_where_allowed(
    load_coco, save_photo: Callable[..., Path], tmp_path: Path
):
    save_photo(tmp_path / "a[0-9]*.png", 8, 8)
    data = load_coco(images=[{"id": 1, "file_name": "a[0-9]*.png"}])
    assert data.sizes.tolist() == [[8, 8]]
    (tmp_path / "x").mkdir()
    assert len(load_coco(images=[{"id": 1, "file_name": "x/../a.png"}])) == 1
    outside = [{"id": 1, "file_name": str(tmp_path / "a.png")}]
    assert load_coco(images=outside, stay_inside=False).path(0) == tmp_path / "a.png"


def test_windows_names_its_folders_with_backslashes(load_coco, save_photo, tmp_path: Path):
    save_photo(tmp_path / "x" / "b.png", 8, 8)
    named = [{"id": 1, "file_name": "x\\b.png"}]
    assert load_coco(images=named).path(0) == tmp_path / "x" / "b.png"
    save_photo(tmp_path / "x\\b.png", 8, 8)  # a name may have one
    assert load_coco(images=named).path(0) == tmp_path / "x\\b.png"
    with pytest.raises(DataError, match=re.escape("image 1: file_name '../a.png' leads out")):
        load_coco(images=[{"id": 1, "file_name": "..\\a.png"}])


@pytest.mark.parametrize(
    ("task", "annotation", "message"),
    [
        ("detect", {"category_id": 7}, "category_id 7; wanted one of [1]"),
        ("detect", {"category_id": [1]}, "category_id [1]; wanted one of [1]"),
        ("detect", {"image_id": [1]}, "image_id [1]; wanted an integer"),
        ("detect", {"bbox": [1, 2, 3]}, "bbox: wanted 4 numbers, got 3"),
        ("detect", {"bbox": ["1", 2, 3, 4]}, "bbox: wanted numbers, got ['1', 2, 3, 4]"),
        ("detect", {"bbox": 7}, "bbox: wanted numbers, got 7"),
        ("detect", {"bbox": [10**400, 2, 3, 4]}, "bbox: wanted numbers, got [1000"),
        ("detect", {"bbox": [1, 2, 3, float("nan")]}, "bbox: wanted finite numbers, got [1, 2, 3"),
        ("detect", {"iscrowd": "0"}, "iscrowd: wanted 0 or 1, got '0'"),
        ("segment", {"segmentation": [[1, 2, 3]]}, "segmentation: wanted lists of x, y, x, y, "),
        ("segment", {"segmentation": [1, 2, 3]}, "segmentation: wanted lists of x, y, x, y, "),
        ("segment", {"segmentation": [[1, 2, 3, float("inf")]]}, "segmentation: wanted finite"),
        (
            "segment",
            {"segmentation": {"counts": [1], "size": [100, 100]}},
            "RLE runs: wanted 100 x 100",
        ),
        (
            "segment",
            {"segmentation": {"counts": [0, 4], "size": [2, 2]}},
            "segmentation: RLE of size [2, 2]; wanted [100, 100], the photo's height and width",
        ),
        ("segment", {"segmentation": {"counts": [4]}}, "no 'size'"),
        ("pose", {"keypoints": [1, 2]}, "keypoints: wanted 9 numbers, got 2"),
        ("pose", {"keypoints": [1, 2, 3] * 3}, "keypoints: wanted flags 0, 1 or 2, got [3]"),
        ("obb", {"obb": [1, 2, 3]}, "obb: wanted 8 numbers, got 3"),
    ],
)
def test_what_cannot_be_understood_is_named(load_coco, task: str, annotation: dict, message: str):
    with pytest.raises(DataError, match=re.escape(f"coco.json: annotation 0: {message}")):
        load_coco({**BOX, **annotation}, task=task, categories=KINDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"not JSON \(Expecting property name"),
        ('{"images": ["a.png"], "annotations": [], "categories": []}', "images: wanted objects"),
        ('{"images": [], "annotations": [3], "categories": []}', "annotations: wanted objects, go"),
        (
            '{"images": [{"id": 1, "file_name": 5}], "annotations": [], "categories": []}',
            "image 1: no 'file_name' that is text",
        ),
        ("[]", "wanted an object with the lists images, annotations, categories"),
        ('{"images": [], "annotations": {}, "categories": []}', "wanted an object"),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}, {"id": 1, "file_name": "b.png"}],'
            '"annotations": [], "categories": []}',
            "image 1: two have this id",
        ),
        (
            '{"images": [{"file_name": "a.png"}], "annotations": [], "categories": []}',
            "images: no 'id",
        ),
        (
            '{"images": [{"id": "7", "file_name": "a.png"}], "categories": [],'
            '"annotations": [{"id": 5, "image_id": 7}]}',
            "none of 1 annotations is of a photo that the file lists; the first has image_id 7",
        ),
        (
            '{"images": [{"id": 1, "file_name": "gone.png"}, {"id": 1, "file_name": "a.png"}],'
            '"annotations": [], "categories": []}',
            "image 1: two have this id",
        ),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1}, {"id": 1}]}',
            "category 1: two have this id",
        ),
        ('{"images": [], "annotations": [], "categories": [{"id": "1"}]}', "wanted an integer id"),
        (
            f'{{"images": [{{"id": {2**63}, "file_name": "a.png"}}],'
            '"annotations": [], "categories": []}',
            "image 9223372036854775808: wanted an integer id of 64 bits",
        ),
        ('{"images": [], "annotations": [{"id": 5}], "categories": []}', "tation 5: no 'image_id'"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', "no 'file_name'"),
    ],
)
def test_a_file_that_is_no_coco_is_named(tmp_path: Path, save_photo, text: str, message: str):
    save_photo(tmp_path / "a.png", 8, 8)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(DataError, match=rf"bad\.json: .*{message}"):
        read_coco(tmp_path / "bad.json", tmp_path)


@pytest.mark.parametrize("size", [("100", "100"), (100.5, 100), (0, 100), (-100, 100)])
def test_what_is_no_size_cannot_be_trusted(load_coco, size: tuple):
    image = {"id": 1, "file_name": "a.png", "width": size[0], "height": size[1]}
    message = (
        f"image 1: wanted a width and a height in whole pixels, got {size[0]!r} and {size[1]!r}"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        load_coco(BOX, images=[image], scan="trust")
    image |= {"width": 100.0, "height": 100}  # as some tools write it
    assert load_coco(BOX, images=[image], scan="trust").sizes.tolist() == [[100, 100]]


def test_bytes_that_are_no_text_are_named(tmp_path: Path):
    (tmp_path / "bad.json").write_bytes(b"\x89PNG")
    with pytest.raises(DataError, match=r"bad\.json: not JSON \('utf-8' codec"):
        read_coco(tmp_path / "bad.json", tmp_path)


def test_poses_of_no_keypoint_are_refused(load_coco):
    with pytest.raises(
        DataError, match=r"coco\.json: no keypoints, of a category or an annotation"
    ):
        load_coco(BOX, task="pose")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"none\.json: No such file or directory"):
        read_coco(tmp_path / "none.json", tmp_path)


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("task", "detect, segment, pose, obb"),
        ("crowd", "ignore, drop"),
        ("unreadable", "drop, raise"),
        ("scan", "trust, header, decode"),
    ],
)
def test_an_unknown_option_names_what_is_wanted(load_coco, option: str, wanted: str):
    with pytest.raises(ArgumentError, match=f"{option} wanted one of {wanted}, came 'x'"):
        load_coco(**{option: "x"})


def test_panoptic_annotations_are_told_of(tmp_path: Path):
    document = {"images": [], "annotations": [{"segments_info": []}], "categories": []}
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"panoptic annotations; wanted those of instances"):
        read_coco(tmp_path / "a.json", tmp_path)
