"""The demo's drawn-by-hand data set: every kind of target, and the photos it was drawn on."""

import hashlib
import json

import pytest
import torch

from fnpipe import demo
from fnpipe.types import DataError


DIGEST = "e8e0d6c945a3b5f3fa9b923f6449fe4c3f03b3341c9dbd9cae50d8bbe77053d9"


@pytest.fixture(scope="module")
def data():
    pytest.importorskip("skimage")
    return demo.load()


def test_nothing_had_to_be_mended(data):
    assert data.report.counts == {}
    assert len(data) == 5
    assert len(data.targets) == 10


def test_photos_are_the_ones_that_were_drawn_on(data):
    """PNG decodes to one result; another release of scikit-image might ship other pictures."""
    seen = hashlib.sha256()
    for index in range(len(data)):
        seen.update(data.read(index).numpy().tobytes())
    assert seen.hexdigest() == DIGEST


def test_every_instance_has_an_outline_in_its_photo(data):
    targets = data.targets
    assert (targets.rings.instance_offsets.diff() >= 1).all()
    limits = data.sizes[targets.owner].float()
    assert (targets.boxes[:, :2] >= 0).all()
    assert (targets.boxes[:, 2:] <= limits).all()
    assert targets.rings.instance_offsets.diff().max() == 2  # a cup hides the middle of a spoon


def test_the_file_says_what_its_outlines_say():
    """Boxes and areas are stored beside the outlines: hand-made numbers may not contradict."""
    for annotation in json.loads(demo.ANNOTATIONS.read_text())["annotations"]:
        rings = [torch.tensor(r).double().view(-1, 2) for r in annotation["segmentation"]]
        x, y = torch.cat(rings).T
        box = [x.min(), y.min(), x.max() - x.min(), y.max() - y.min()]
        assert torch.tensor(box).tolist() == annotation["bbox"]
        area = sum(
            abs(float((r[:, 0] * r[:, 1].roll(-1) - r[:, 0].roll(-1) * r[:, 1]).sum())) / 2
            for r in rings
        )
        assert area == pytest.approx(annotation["area"], abs=0.06)


def test_faces_have_five_points_that_mirror(data):
    assert data.keypoint_flip == (0, 2, 1, 4, 3)
    faces = data.targets.keypoints[:, :, 2].sum(dim=1) > 0
    assert [data.names[label] for label in data.targets.labels[faces]] == [
        "person",
        "cat",
        "person",
    ]


def test_only_the_spoon_is_tilted(data):
    sides = data.targets.quads.roll(-1, dims=1) - data.targets.quads
    tilted = sides.abs().amin(dim=2).amax(dim=1) > 1
    assert [data.names[label] for label in data.targets.labels[tilted]] == ["spoon"]


def test_without_scikit_image_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"photos come with scikit-image: pip install scikit-image$"
    ):
        demo.load()
