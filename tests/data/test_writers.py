"""What is written is read back, bit for bit where the format has words for it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import TASKS, Dataset
from fnpipe.data.dota import read_dota
from fnpipe.data.writers import join, write_coco, write_images, write_yolo
from fnpipe.data.yolo import read_yolo
from fnpipe.ops.annotate import select
from fnpipe.types import ArgumentError, Targets


FIELDS = ("boxes", "labels", "owner", "ignore", "keypoints", "quads")


def assert_same(one: Targets, other: Targets, fields: Sequence[str] = FIELDS) -> None:
    for field in fields:
        assert torch.equal(getattr(one, field), getattr(other, field)), field


def assert_same_rings(one: Targets, other: Targets) -> None:
    for field in ("points", "ring_offsets", "instance_offsets"):
        assert torch.equal(getattr(one.rings, field), getattr(other.rings, field)), field


def files(data: Dataset) -> list[str]:
    return [str(data.path(i)) for i in range(len(data))]


def real(shared_data: Path, task: str) -> Dataset:
    if task == "obb":
        return read_dota(shared_data / "dota" / "images", shared_data / "dota" / "labelTxt")
    kind = "person_keypoints" if task == "pose" else "instances"
    folder = shared_data / "coco"
    source = folder / "annotations" / f"{kind}_train2017.json"
    return read_coco(source, folder / "train2017", task=task)


@pytest.mark.parametrize("task", TASKS)
def test_coco_of_real_data_reads_back_to_the_same_bits(
    shared_data: Path, tmp_path: Path, task: str
):
    data = real(shared_data, task)
    write_coco(
        tmp_path / "out.json",
        data.targets,
        data.sizes,
        file_names=files(data),
        names=data.names,
        categories=data.categories,
        image_ids=data.image_ids.tolist(),
    )
    again = read_coco(tmp_path / "out.json", "/", task=task, stay_inside=False)
    assert_same(data.targets, again.targets)
    assert_same_rings(data.targets, again.targets)
    assert (again.names, again.categories) == (data.names, data.categories)
    assert torch.equal(again.image_ids, data.image_ids)
    assert torch.equal(again.sizes, data.sizes)


@pytest.mark.parametrize("task", TASKS)
def test_yolo_of_real_data_reads_back_to_the_same_bits(
    shared_data: Path, tmp_path: Path, task: str
):
    """All but rows flagged ignore; of several rings the box only."""
    data = real(shared_data, task)
    names = [f"{i:04}{data.path(i).suffix}" for i in range(len(data))]
    (tmp_path / "images").mkdir()
    for name, file in zip(names, files(data), strict=True):
        (tmp_path / "images" / name).symlink_to(file)
    write_yolo(
        tmp_path,
        data.targets,
        data.sizes,
        file_names=names,
        names=data.names,
        categories=data.categories,
        keypoint_flip=data.keypoint_flip,
        task=task,
    )
    again = read_yolo(tmp_path / "data.yaml", task=task)
    assert_same(select(data.targets, ~data.targets.ignore), again.targets)
    assert (again.names, again.categories) == (data.names, data.categories)
    assert again.keypoint_flip == data.keypoint_flip


def test_case_42_labels_go_back_to_category_ids(load_coco, tmp_path: Path):
    kinds = [{"id": i, "name": f"kind {i}"} for i in (90, 1, 3)]
    boxes = ({"bbox": [1, 1, 5, 5 + i], "category_id": i} for i in (90, 3, 1))
    data = load_coco(*boxes, categories=kinds)
    write_coco(
        tmp_path / "out.json",
        data.targets,
        data.sizes,
        file_names=["a.png"],
        names=data.names,
        categories=data.categories,
    )
    written = json.loads((tmp_path / "out.json").read_text())
    assert [a["category_id"] for a in written["annotations"]] == [90, 3, 1]
    assert [(c["id"], c["name"]) for c in written["categories"]] == [
        (1, "kind 1"),
        (3, "kind 3"),
        (90, "kind 90"),
    ]


def test_case_48_export_takes_the_half_pixel_back(load_coco, tmp_path: Path):
    pose = {"bbox": [5, 5, 20, 30], "keypoints": [10, 20, 2, 0, 0, 0], "segmentation": []}
    data = load_coco(pose, task="pose")
    doubled = data.targets.keypoints * torch.tensor([2.0, 2.0, 1.0])
    write_coco(
        tmp_path / "out.json",
        data.targets.replace(keypoints=doubled),
        data.sizes * 2,
        file_names=["a.png"],
        names=data.names,
        keypoint_names=["left", "right"],
    )
    (written,) = json.loads((tmp_path / "out.json").read_text())["annotations"]
    assert written["keypoints"] == [20.5, 40.5, 2, 0, 0, 0]  # (10 + 0.5) * 2 - 0.5
    assert written["num_keypoints"] == 1


def test_areas_are_of_rings_else_of_boxes(load_coco, tmp_path: Path):
    hole = [[0, 0, 8, 0, 8, 8, 0, 8, 0, 0, 2, 2, 2, 6, 6, 6, 6, 2, 2, 2]]
    data = load_coco({"segmentation": hole}, {"bbox": [1, 1, 3, 4]}, task="segment")
    write_coco(
        tmp_path / "out.json", data.targets, data.sizes, file_names=["a.png"], names=["thing"]
    )
    written = json.loads((tmp_path / "out.json").read_text())["annotations"]
    assert [a["area"] for a in written] == [48, 12]
    assert [a["iscrowd"] for a in written] == [0, 0]


def test_a_batch_goes_out_with_its_images(load_coco, tmp_path: Path):
    """Augmented images of no file: they are saved, and read back with their targets."""
    targets = load_coco({"bbox": [1, 2, 3, 4]}, {"bbox": [0, 0, 1 / 3, 0.7]}).targets
    targets = targets.replace(owner=torch.tensor([0, 1]))
    images = torch.arange(2 * 3 * 8 * 16, dtype=torch.int32).remainder(251).byte()
    images = images.view(2, 3, 8, 16)
    sizes = torch.tensor([[16, 8], [16, 8]])
    names = ["images/0.png", "images/1.png"]
    write_images(tmp_path / "out", images, file_names=names)
    write_coco(tmp_path / "out.json", targets, sizes, file_names=names, names=["thing"])
    data = read_coco(tmp_path / "out.json", tmp_path / "out")
    assert torch.equal(torch.stack([data.read(0), data.read(1)]), images)
    assert_same(targets, data.targets, ("boxes", "labels", "owner"))
    write_yolo(tmp_path / "out", targets, sizes, file_names=["0.png", "1.png"], names=["thing"])
    data = read_yolo(tmp_path / "out" / "data.yaml")
    assert torch.equal(torch.stack([data.read(0), data.read(1)]), images)
    assert_same(targets, data.targets, ("boxes", "labels", "owner"))


def test_yolo_joins_rings_and_writes_a_box_where_there_is_none(load_coco, tmp_path: Path, fill):
    parts = [[10, 10, 30, 10, 30, 30, 10, 30], [60, 60, 80, 60, 80, 80, 60, 80]]
    third = [10, 60, 20, 60, 20, 70]
    data = load_coco({"segmentation": [*parts, third]}, {"bbox": [1, 2, 3, 4]}, task="segment")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").symlink_to(tmp_path / "a.png")
    write_yolo(
        tmp_path, data.targets, data.sizes, file_names=["a.png"], names=["thing"], task="segment"
    )
    again = read_yolo(tmp_path / "data.yaml", task="segment", box_rows="rectangle")
    assert again.targets.rings.instance_offsets.tolist() == [0, 1, 2]
    assert torch.equal(
        fill(again.targets.rings, 100, 100)[0], fill(data.targets.rings, 100, 100)[0]
    )
    assert again.targets.boxes.tolist() == [[10, 10, 80, 80], [1, 2, 4, 6]]


def test_rings_are_joined_where_they_are_nearest():
    squares = [[0, 0, 4, 0, 4, 4, 0, 4], [16, 6, 12, 6, 12, 2, 16, 2], [4, 9, 7, 9, 7, 12]]
    rings = [torch.tensor(s, dtype=torch.float64).view(-1, 2) for s in squares]
    walked = [(0, 0), (4, 0), (4, 4)]  # the square's corner next to the third ring
    walked += [(4, 9), (7, 9), (7, 12), (4, 9), (4, 4), (0, 4)]
    assert join([rings[0], rings[2]]).tolist() == [[*point] for point in walked]
    assert join(rings[:1]) is rings[0]
    assert len(join(rings)) == 4 + 4 + 3 + 2 * 2
    across = join(rings[:2])
    step = (across - across.roll(1, 0)).norm(dim=1)
    assert step.amax() == 68**0.5  # (4, 4) to (12, 2), and no other line is longer


def test_lengths_that_do_not_fit_are_named(load_coco, tmp_path: Path):
    data = load_coco({"bbox": [1, 2, 3, 4]})
    arguments = (tmp_path / "out", data.targets, data.sizes)
    with pytest.raises(ArgumentError, match="file_names: wanted 1, got 2"):
        write_coco(*arguments, file_names=["a", "b"], names=["thing"])
    with pytest.raises(ArgumentError, match="categories: wanted 1, got 2"):
        write_yolo(*arguments, file_names=["a"], names=["thing"], categories=[1, 2])
    with pytest.raises(ArgumentError, match="image_ids: wanted 1, got 0"):
        write_coco(*arguments, file_names=["a"], names=["thing"], image_ids=[])
    for task in ("pose", "obb"):
        with pytest.raises(ArgumentError, match=f"targets: wanted those of task '{task}', got"):
            write_yolo(*arguments, file_names=["a"], names=["thing"], task=task)
    with pytest.raises(ArgumentError, match="task wanted one of detect, segment, pose, obb"):
        write_yolo(*arguments, file_names=["a"], names=["thing"], task="boxes")


@pytest.mark.parametrize("wrong", ["{}/a.png", "../photos/a.png", "b/../../photos/a.png"])
def test_nothing_is_written_over_photos_and_their_labels(load_coco, tmp_path: Path, wrong: str):
    data, photos = load_coco({"bbox": [10, 20, 30, 40]}), tmp_path / "photos"
    photos.mkdir()
    (photos / "a.png").write_bytes(data.path(0).read_bytes())
    (photos / "a.txt").write_text("a user's own")
    name, image = wrong.format(photos), torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    targets = data.targets, data.sizes
    with pytest.raises(ArgumentError, match=f"file_names: '{re.escape(name)}' leads out of"):
        write_images(tmp_path / "out", image, file_names=[name])
    with pytest.raises(ArgumentError, match=r"file_names: '.*/a.txt' leads out of"):
        write_yolo(tmp_path / "out", *targets, file_names=[name], names=["thing"])
    assert (photos / "a.png").read_bytes() == data.path(0).read_bytes()
    assert (photos / "a.txt").read_text() == "a user's own"


def test_as_many_names_as_images_are_wanted(tmp_path: Path):
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(ArgumentError, match="file_names: wanted 2, got 1"):
        write_images(tmp_path, images, file_names=["a.png"])
    assert list(tmp_path.iterdir()) == []


def test_two_photos_of_one_label_file_are_refused(write_photos, tmp_path: Path):
    data, out = write_photos(2), tmp_path / "out"
    names = ["b/../a.jpg", "a.png"]
    with pytest.raises(ArgumentError, match=f"two photos would be written to {out}/labels/a.txt"):
        write_yolo(out, data.targets, data.sizes, file_names=names, names=["thing"])
    with pytest.raises(ArgumentError, match=f"two photos would be written to {out}/a.png"):
        write_images(out, torch.zeros(2, 3, 4, 4, dtype=torch.uint8), file_names=["a.png"] * 2)
    assert not out.exists()
