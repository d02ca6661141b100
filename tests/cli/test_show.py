"""The commands that draw: what they print, what they write, and how they refuse."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image as pillow

from fnpipe.cli import main

from .test_commands import refusal


DIGEST = "05293ffdab44a81a8d9bef181221b87b28d52f5257507414549dc89b8516afcc"
"""Of the demo's batches, on every machine. It changes with a change of bytes, which is breaking."""


@pytest.fixture
def coco(tmp_path: Path) -> list[str]:
    """One photo with one box, as arguments of ``preview``."""
    photo = pillow.new("RGB", (40, 30), (10, 200, 30))
    photo.save(tmp_path / "a.png")
    document = {
        "images": [{"id": 1, "file_name": "a.png", "width": 40, "height": 30}],
        "categories": [{"id": 7, "name": "leaf"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 7, "bbox": [5, 5, 20, 10], "iscrowd": 0}
        ],
    }
    (tmp_path / "a.json").write_text(json.dumps(document))
    out = str(tmp_path / "out.png")
    return ["--coco", str(tmp_path / "a.json"), "--images", str(tmp_path), "--out", out]


def test_the_demo_is_the_same_twice(tmp_path, capsys):
    pytest.importorskip("skimage")
    printed, written = [], []
    for run in ("a.png", "b.png"):
        assert main(["demo", "--out", str(tmp_path / run)]) == 0
        printed.append(capsys.readouterr().out)
        written.append((tmp_path / run).read_bytes())
    digests = [re.findall(r"sha256 ([0-9a-f]{64})", text) for text in printed]
    assert digests[0] == digests[1] == [DIGEST]
    assert written[0] == written[1]
    assert re.search(r"^\d+\.\d images / s: ", printed[0], flags=re.MULTILINE)


@pytest.mark.parametrize("how", [["--size", "64"], ["--plain"]], ids=["augmented", "plain"])
def test_a_preview_is_a_picture(coco, tmp_path, capsys, how):
    assert main(["preview", *coco, *how]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out.png'}: photos 0 to 0 of 1\n"
    with pillow.open(tmp_path / "out.png") as picture:
        assert picture.format == "PNG"
        assert max(picture.size) == 320


def test_a_preview_follows_seed_and_epoch(coco, tmp_path):
    seen = set()
    for where in (["--seed", "0"], ["--seed", "1"], ["--epoch", "1"], ["--seed", "0"]):
        main(["preview", *coco, *where, "--size", "64"])
        seen.add((tmp_path / "out.png").read_bytes())
    assert len(seen) == 3


def test_a_missing_file_is_one_line(capsys, tmp_path):
    missing = str(tmp_path / "none.json")
    assert missing in refusal(capsys, "preview", "--coco", missing, "--images", str(tmp_path))


def test_coco_needs_its_photos(coco, capsys):
    assert refusal(capsys, "preview", *coco[:2]) == (
        "fnpipe: --coco needs --images, the folder of its photos"
    )


def test_dota_is_texts_and_photos(capsys, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("gsd:0.1\n8 4 24 12 20 20 4 12 ship 0\n")
    pillow.new("RGB", (32, 24)).save(tmp_path / "a.png")
    source, out = ["--dota", str(tmp_path / "texts")], ["--out", str(tmp_path / "out.png")]
    assert main(["preview", *source, "--images", str(tmp_path), *out, "--size", "64"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out.png'}: photos 0 to 0 of 1\n"


def test_yolo_may_lie_elsewhere_than_its_file_says(capsys, tmp_path):
    for name in ("images", "labels"):
        (tmp_path / "set" / name).mkdir(parents=True)
    pillow.new("RGB", (32, 24)).save(tmp_path / "set" / "images" / "a.png")
    (tmp_path / "set" / "labels" / "a.txt").write_text("0 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5\n")
    (tmp_path / "a.yaml").write_text("path: nowhere\ntrain: images\nnames: [ship]\n")
    given = ["preview", "--yolo", str(tmp_path / "a.yaml"), "--task", "obb", "--plain"]
    given += ["--out", str(tmp_path / "out.png")]
    assert "pass root=" in refusal(capsys, *given)
    assert main([*given, "--root", str(tmp_path / "set")]) == 0


def test_a_pose_without_a_map_is_not_mirrored(capsys, tmp_path):
    instance = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [4, 4, 16, 16]}
    document = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "categories": [{"id": 1, "name": "hand", "keypoints": ["thumb", "wrist"]}],
        "annotations": [{**instance, "keypoints": [5, 5, 2, 15, 15, 1]}],
    }
    (tmp_path / "a.json").write_text(json.dumps(document))
    pillow.new("RGB", (32, 24)).save(tmp_path / "a.png")
    given = ["--coco", str(tmp_path / "a.json"), "--images", str(tmp_path), "--task", "pose"]
    for epoch in range(4):
        out = ["--out", str(tmp_path / "out.png"), "--epoch", str(epoch), "--size", "64"]
        assert main(["preview", *given, *out]) == 0
    said = "keypoints without a left/right map: photos are not mirrored\n"
    assert capsys.readouterr().out.count(said) == 4


def test_an_index_beyond_the_end_is_refused(coco, capsys):
    assert refusal(capsys, "preview", *coco, "--index", "1") == (
        "fnpipe: --index must be 0 to 0, got 1"
    )


def test_help_names_the_commands():
    shown = subprocess.run(
        [sys.executable, "-m", "fnpipe", "--help"], capture_output=True, text=True, check=True
    )
    assert "demo" in shown.stdout
    assert "preview" in shown.stdout
