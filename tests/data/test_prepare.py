"""Photos shrunk by area: exact means, targets to scale, sizes that never reach zero."""

from fractions import Fraction
from math import floor

import pytest
import torch
from torch import Tensor

from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import Dataset
from fnpipe.data.prepare import fit, prepare, shrink
from fnpipe.types import ArgumentError


def mean(image: Tensor, column: int, row: int, width: int, height: int) -> list[int]:
    """A pixel of ``image`` shrunk to width, height: the mean of what it covers, in fractions."""
    _, old_height, old_width = image.shape

    def inside(index: int, new: int, old: int, place: int) -> Fraction:
        low = max(Fraction(index), Fraction(place * old, new))
        return max(Fraction(0), min(Fraction(index + 1), Fraction((place + 1) * old, new)) - low)

    sums = [Fraction(0)] * 3
    for y in range(old_height):
        for x in range(old_width):
            area = inside(x, width, old_width, column) * inside(y, height, old_height, row)
            sums = [s + area * int(code) for s, code in zip(sums, image[:, y, x], strict=True)]
    covered = Fraction(old_width * old_height, width * height)
    return [floor(s / covered + Fraction(1, 2)) for s in sums]


@pytest.mark.parametrize(
    ("width", "height", "longest"),
    [(7, 5, 3), (9, 1, 4), (1, 9, 4), (10, 4, 5), (13, 11, 12), (12, 12, 1), (8, 3, 7)],
)
def test_a_pixel_is_the_mean_of_what_it_covers(width: int, height: int, longest: int):
    generator = torch.Generator().manual_seed(width)
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)
    small = shrink(image, longest)
    _, new_height, new_width = small.shape
    assert max(new_height, new_width) == longest
    for row in range(new_height):
        for column in range(new_width):
            expected = mean(image, column, row, new_width, new_height)
            assert small[:, row, column].tolist() == expected


def test_half_a_code_rounds_up_and_white_stays_white():
    image = torch.tensor([[0, 1], [254, 255]], dtype=torch.uint8).repeat(3, 1, 1)
    assert shrink(image, 1).flatten().tolist() == [128, 128, 128]
    assert shrink(image[:, :1], 1).flatten().tolist() == [1, 1, 1]
    white = torch.full((3, 100, 77), 255, dtype=torch.uint8)
    assert shrink(white, 31).unique().tolist() == [255]


def test_what_fits_is_left_alone():
    image = torch.randint(0, 256, (3, 4, 6), dtype=torch.uint8)
    assert shrink(image, 6) is image
    assert shrink(image, 640) is image


def test_case_12_a_long_photo_keeps_a_pixel_of_its_short_side():
    sizes = torch.tensor([[9000, 6], [6, 9000], [1, 1], [1, 500], [1280, 721], [3, 2], [5, 3]])
    fitted = [[640, 1], [1, 640], [1, 1], [1, 500], [640, 361], [3, 2], [5, 3]]
    assert fit(sizes, 640).tolist() == fitted
    assert fit(torch.tensor([3, 2]), 1).tolist() == [1, 1]
    assert shrink(torch.zeros(3, 6, 9000, dtype=torch.uint8), 640).shape == (3, 1, 640)


def test_targets_are_to_scale(load_coco, tmp_path, save_photo):
    save_photo(tmp_path / "b.png", 90, 30)
    data = load_coco(
        {
            "bbox": [10, 20, 50, 40],
            "segmentation": [[10, 20, 60, 20, 60, 60], [70, 70, 80, 70, 80, 90]],
        },
        {"bbox": [9, 6, 18, 12], "image_id": 2, "segmentation": [[9, 6, 27, 6, 27, 18, 9, 18]]},
        images=[{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        task="segment",
    )
    small = prepare(data, longest=45)
    assert small.sizes.tolist() == [[45, 45], [45, 15]]
    assert small.read(0).shape == (3, 45, 45)
    assert small[1].image.shape == (3, 15, 45)
    assert small.targets.boxes[1].tolist() == [4.5, 3, 13.5, 9]
    assert torch.equal(small.targets.boxes[0], (data.targets.boxes[0].double() * 0.45).float())
    assert small.targets.rings.points[6:].tolist() == [[4.5, 3], [13.5, 3], [13.5, 9], [4.5, 9]]
    assert torch.equal(small.targets.labels, data.targets.labels)
    assert small.fingerprint() != data.fingerprint()
    assert small.subset([1]).read(0).shape == (3, 15, 45)


@pytest.mark.parametrize("task", ["pose", "obb"])
def test_poses_and_quads_are_to_scale(load_coco, task: str):
    data = load_coco(
        {"bbox": [10, 20, 50, 40], "keypoints": [9.5, 19.5, 2, 0, 0, 0, 29.5, 39.5, 1]},
        categories=[{"id": 1, "name": "one", "keypoints": ["a", "b", "c"]}],
        task=task,
    )
    targets = prepare(data, longest=50).targets
    if task == "pose":
        assert targets.keypoints.tolist() == [[[5, 10, 2], [0, 0, 0], [15, 20, 1]]]
    else:
        assert torch.equal(targets.quads, data.targets.quads / 2)


def test_real_photos_stay_in_the_picture(shared_data):
    folder = shared_data / "coco"
    annotations = folder / "annotations" / "instances_val2017.json"
    data = read_coco(annotations, folder / "val2017", task="segment")
    small = prepare(data, longest=320)
    assert int(small.sizes.max()) == 320
    limits = small.sizes[small.targets.owner].repeat(1, 2)
    assert bool(((small.targets.boxes >= 0) & (small.targets.boxes <= limits)).all())
    for photo in (0, 17, 42):
        assert list(small.read(photo).shape[:0:-1]) == small.sizes[photo].tolist()


def test_it_is_done_once(load_coco):
    data = load_coco()
    with pytest.raises(ArgumentError, match="longest wanted at least 1 pixel, came 0"):
        prepare(data, longest=0)
    with pytest.raises(ArgumentError, match=r"prepared already \(longest=64\); prepare the first"):
        prepare(prepare(data, longest=64), longest=32)


def test_what_a_subclass_reads_is_not_lost(load_coco):
    class Inverted(Dataset):
        def read(self, index: int) -> Tensor:
            return 255 - super().read(index)

    data = Inverted(**vars(load_coco()))
    with pytest.raises(ArgumentError, match=r"data reads photos in a way of its own \(Inverted\)"):
        prepare(data, longest=64)
