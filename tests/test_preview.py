"""Pictures show what the targets say, and nothing is changed by looking at it."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from PIL import Image as pillow
from torch import Tensor

from fnpipe import preview
from fnpipe.testing import targets_of
from fnpipe.types import ArgumentError, Batch, Rings, Targets


GREY = 114


def photo(width: int = 64, height: int = 48) -> Tensor:
    return torch.full((3, height, width), GREY, dtype=torch.uint8)


def one(**changes: Tensor | Rings) -> Targets:
    """One instance with a box and no more, changed at will."""
    return targets_of([[10, 20, 40, 40]]).replace(**changes)


def square(x0: float, y0: float, x1: float, y1: float) -> Tensor:
    corners = [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]
    return torch.tensor(corners, dtype=torch.float32)


def changed(before: Tensor, after: Tensor) -> Tensor:
    return (before != after).any(dim=0)


def test_no_target_is_the_photo_itself_in_a_new_tensor():
    image = torch.randint(0, 256, (3, 48, 64), dtype=torch.uint8)
    drawn = preview.draw(image, Targets.empty())
    assert torch.equal(drawn, image)
    assert drawn.data_ptr() != image.data_ptr()


def test_a_sliver_of_a_box_is_a_line():
    """What is left of an object at the border may be thinner than a pixel of the picture."""
    image = photo()
    drawn = preview.draw(image, one(boxes=torch.tensor([[63.9, 20.0, 64.0, 40.0]])), names=[""])
    assert changed(image, drawn)[20:40, 63].all()


def test_inputs_are_only_read():
    image = photo()
    targets = one(rings=Rings(square(12, 22, 38, 38), torch.tensor([0, 4]), torch.tensor([0, 1])))
    before = [image.clone(), targets.boxes.clone(), targets.rings.points.clone()]
    preview.draw(image, targets)
    after = [image, targets.boxes, targets.rings.points]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_box_is_drawn_along_its_edge_and_nowhere_outside():
    image = photo()
    touched = changed(image, preview.draw(image, one(), names=[""]))
    rows, columns = touched.nonzero().unbind(1)
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (10, 20, 39, 39)
    assert not touched[36, 30]


def test_a_name_stands_inside_its_box_or_above_a_small_one():
    image = photo(200, 200)
    large, small = (
        changed(
            preview.draw(image, targets, names=[""]), preview.draw(image, targets, names=["ab"])
        )
        for targets in (
            one(boxes=torch.tensor([[20.0, 100.0, 180.0, 190.0]])),
            one(boxes=torch.tensor([[20.0, 100.0, 60.0, 110.0]])),
        )
    )
    assert large.nonzero()[:, 0].min() >= 100
    assert small.nonzero()[:, 0].max() <= 100


def test_of_names_that_would_cover_each_other_the_largest_objects_is_drawn():
    corners = [[20.0, 20, 120, 120], [22.0, 22, 80, 80], [200.0, 20, 260, 80]]
    drawn = [
        preview.draw(photo(300, 300), targets_of(corners), names=names)
        for names in (["large", "small", "far"], ["large", "", "far"], ["large", "", ""])
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_a_hole_between_two_rings_stays_clear():
    rings = Rings(
        torch.cat([square(12, 22, 20, 38), square(30, 22, 38, 38)]),
        torch.tensor([0, 4, 8]),
        torch.tensor([0, 2]),
    )
    image = photo()
    touched = changed(image, preview.draw(image, one(rings=rings)))
    assert touched[36, 16]
    assert touched[36, 34]
    assert not touched[36, 25]


def test_a_ring_without_an_edge_is_not_drawn():
    rings = Rings(torch.tensor([[9.0, 9.0]]), torch.tensor([0, 0, 1]), torch.tensor([0, 2]))
    bare = preview.draw(photo(), one())
    assert torch.equal(preview.draw(photo(), one(rings=rings)), bare)


@pytest.mark.parametrize(("flag", "drawn"), [(0, False), (1, True), (2, True)])
def test_a_missing_keypoint_is_not_drawn(flag: int, drawn: bool):
    image = photo()
    with_dot = one(keypoints=torch.tensor([[[30.0, 32.0, float(flag)]]]))
    plain = preview.draw(image, one())
    assert bool(changed(plain, preview.draw(image, with_dot)).any()) is drawn


def test_a_hidden_keypoint_is_hollow():
    image = photo()
    hidden, seen = (
        preview.draw(image, one(keypoints=torch.tensor([[[30.0, 32.0, flag]]])))
        for flag in (1.0, 2.0)
    )
    assert (hidden[:, 32, 30] == GREY).all()
    assert (seen[:, 32, 30] != GREY).any()


def test_an_oriented_box_is_drawn_where_it_is_not_upright():
    image = photo()
    plain = preview.draw(image, one())
    upright = preview.draw(image, one(quads=square(10, 20, 40, 40)[None]))
    tilted = torch.tensor([[[30.0, 5.0], [35.0, 10.0], [20.0, 25.0], [15.0, 20.0]]])
    assert torch.equal(plain, upright)
    assert changed(plain, preview.draw(image, one(quads=tilted)))[5:20].any()


@pytest.mark.parametrize("corners", [[], [[30.0, 5], [35, 10], [20, 25], [15, 20]]])
def test_what_is_ignored_is_grey(corners: list[list[float]]):
    quads = torch.tensor(corners).reshape(1, -1, 2)
    drawn = preview.draw(photo(), one(ignore=torch.tensor([True]), quads=quads), names=[""])
    r, g, b = drawn.int().unbind(0)
    assert not (drawn == 255).any()
    assert torch.equal(r, g)
    assert torch.equal(g, b)


def test_a_class_keeps_its_colour_and_neighbours_differ():
    inks = [torch.tensor(preview.color(label)) for label in range(80)]
    assert preview.color(3) == preview.color(3)
    assert min((a - b).abs().max() for a, b in pairwise(inks)) > 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_finished_float_image_shows_the_same_codes(dtype: torch.dtype):
    codes = torch.arange(256, dtype=torch.uint8).expand(3, 2, 256).contiguous()
    shown = preview.draw((codes.float() / 255).to(dtype), Targets.empty())
    exact = dtype != torch.bfloat16  # 8 bits of fraction cannot hold 256 codes / 255
    assert (shown.int() - codes.int()).abs().max() <= (0 if exact else 1)


def batch(count: int) -> Batch:
    images = torch.full((count, 3, 40, 40), GREY, dtype=torch.uint8)
    targets = one(owner=torch.tensor([1]), boxes=torch.tensor([[5.0, 5.0, 35.0, 35.0]]))
    return Batch(
        images=images,
        targets=targets,
        ids=torch.arange(count),
        epochs=torch.zeros(count, dtype=torch.int64),
    )


def test_a_grid_draws_each_target_on_its_owner():
    shown = preview.grid(batch(3), columns=2, cell=40)
    assert shown.shape == (3, 2 * 44 + 4, 2 * 44 + 4)
    cells = [shown[:, y : y + 40, x : x + 40] for y in (4, 48) for x in (4, 48)]
    touched = [bool((cell != GREY).any()) for cell in cells[:3]]
    assert touched == [False, True, False]
    assert (cells[3] == 255).all()


@pytest.mark.parametrize("argument", ["columns", "cell"])
def test_a_grid_of_nothing_is_refused(argument: str):
    options: dict[str, Any] = {argument: 0}
    with pytest.raises(ArgumentError, match=f"^{argument} wanted an integer >= 1, came 0$"):
        preview.grid(batch(1), **options)
    with pytest.raises(ArgumentError, match=r"^pictures wanted at least one, came none$"):
        preview.grid(batch(0))


def test_a_picture_is_saved_as_png(tmp_path):
    image = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    preview.save(image, tmp_path / "picture.out")
    with pillow.open(tmp_path / "picture.out") as saved:
        assert (saved.format, saved.size) == ("PNG", (7, 5))
        assert saved.getpixel((6, 4)) == tuple(image[:, 4, 6].tolist())
