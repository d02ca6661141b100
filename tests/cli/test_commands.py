"""The commands that tell: what they say, what a program reads, and the one line of a refusal."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image as pillow

import fnpipe as fp
from fnpipe import recipes
from fnpipe.cli import main, options, show, tell
from fnpipe.cli.show import digest


BAD_ROWS = {
    "a": "0 0.5 0.5 0.5 0.5\n7 0.5 0.5 0.5 0.5\n0 0.5 0.5\n",
    "b": "1 0.5 0.5 nan 0.5\n1 0.9 0.5 0.6 0.5\n1 0.9 0.5 0.6 0.5\n",
}


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    """Three photos, one of them broken, with rows that are wrong in many ways."""
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    for name in ("a", "b"):
        pillow.new("RGB", (40, 30), (10, 200, 30)).save(tmp_path / "images" / f"{name}.png")
        (tmp_path / "labels" / f"{name}.txt").write_text(BAD_ROWS[name])
    (tmp_path / "images" / "c.png").write_bytes(b"no picture")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [leaf, bark]\n")
    return tmp_path / "data.yaml"


@pytest.fixture
def coco(tmp_path: Path) -> list[str]:
    """Four photos with a box each, as arguments."""
    document = {"images": [], "annotations": [], "categories": [{"id": 7, "name": "leaf"}]}
    for i in range(4):
        pillow.new("RGB", (40, 30), (10, 60 * i, 30)).save(tmp_path / f"{i}.png")
        document["images"].append({"id": i, "file_name": f"{i}.png", "width": 40, "height": 30})
        document["annotations"].append(
            {"id": i, "image_id": i, "category_id": 7, "bbox": [5, 5, 20, 10], "iscrowd": 0}
        )
    (tmp_path / "a.json").write_text(json.dumps(document))
    return ["--coco", str(tmp_path / "a.json"), "--images", str(tmp_path)]


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    return json.loads(said(capsys, *arguments, "--json", code=code))


def test_check_finds_every_problem_with_its_file_and_row(yolo, capsys):
    found = told(capsys, "check", "--yolo", str(yolo), code=1)
    assert found["problems"] == {"row refused": 3, "photo dropped": 1, "duplicate row": 1}
    assert found["notes"] == {"clipped": 1}
    assert (found["photos"], found["instances"]) == (2, 2)
    assert found["classes"] == {"leaf": 1, "bark": 1}
    refused = [line for line in found["lines"] if line.startswith("row refused: ")]
    labels = yolo.parent / "labels"
    assert refused == [
        f"row refused: {labels / 'a.txt'}: row 2: class 7; wanted one of 2 ids, 0 to 1",
        f"row refused: {labels / 'a.txt'}: row 3: 3 columns; wanted 5 (class, box) or an odd "
        "number from 7 up (class, polygon)",
        f"row refused: {labels / 'b.txt'}: row 1: wanted finite numbers, got 1.0 0.5 0.5 nan 0.5",
    ]
    assert any(str(yolo.parent / "images" / "c.png") in line for line in found["lines"])


def test_a_row_that_cannot_be_understood_stops_a_command_unless_told(yolo, capsys, tmp_path: Path):
    out = str(tmp_path / "out.png")
    for command in (["preview", "--out", out], ["bill"], ["check", "--rows", "raise"]):
        assert main([*command, "--yolo", str(yolo)]) == 2
        assert capsys.readouterr().err == (
            f"fnpipe: {yolo.parent / 'labels' / 'a.txt'}: row 2: class 7; wanted one of 2 ids, "
            '0 to 1; rows="drop" (--rows drop) reports it and goes on\n'
        )
    said(capsys, "preview", "--yolo", str(yolo), "--plain", "--rows", "drop", "--out", out)
    assert Path(out).is_file()
    assert told(capsys, "bill", "--yolo", str(yolo), "--rows", "drop")["photos"] == 2


def test_the_page_is_told_of_rows(yolo):
    given = ["--yolo", str(yolo), "--rows", "drop"]
    assert options.source_arguments(options.parse_source(given)) == given


def test_labels_may_lie_in_a_folder_of_another_name(yolo, capsys):
    (yolo.parent / "labels").rename(yolo.parent / "boxes")
    found = told(capsys, "check", "--yolo", str(yolo), "--labels", "boxes", code=1)
    assert found["instances"] == 2


def test_check_tells_classes_of_one_name_apart(coco, capsys):
    """Roboflow's first category has the name of the project, as its only class may have."""
    file = Path(coco[1])
    document = json.loads(file.read_text())
    document["categories"] = [{"id": 0, "name": "leaf"}, {"id": 7, "name": "leaf"}]
    file.write_text(json.dumps(document))
    assert said(capsys, "check", *coco).startswith(
        "4 photos, 0 of them without instances; 4 instances of 1 classes, out of 2\n"
    )
    assert told(capsys, "check", *coco)["classes"] == {"leaf (0)": 0, "leaf (7)": 4}


def test_check_of_a_sound_data_set_is_0(coco, capsys):
    printed = said(capsys, "check", *coco)
    assert printed.splitlines()[0] == (
        "4 photos, 0 of them without instances; 4 instances of 1 classes, out of 1"
    )
    assert printed.splitlines()[-1] == "no problem found"


def test_check_of_coco_goes_on_after_a_wrong_annotation(coco, capsys):
    file = Path(coco[1])
    document = json.loads(file.read_text())
    document["annotations"][1]["category_id"] = 99
    document["annotations"][2]["bbox"] = [1, 2]
    del document["annotations"][3]["image_id"]
    file.write_text(json.dumps(document))
    found = told(capsys, "check", *coco, code=1)
    assert found["problems"] == {"row refused": 3}
    assert [line.removeprefix("row refused: ") for line in found["lines"]] == [
        "annotation 3: no 'image_id'",
        "annotation 1: category_id 99; wanted one of [7]",
        "annotation 2: bbox: wanted 4 numbers, got 2",
    ]
    assert found["instances"] == 1


def test_a_kind_of_report_is_either_a_problem_or_a_note():
    """The kinds are written where they are found; those that are no problem are listed here."""
    source = "".join(p.read_text() for p in (Path(fp.__file__).parent / "data").glob("*.py"))
    kinds = set(re.findall(r"(?:notes\.add|tell)\(\s*\"([a-z ]+)\"", source))
    assert tell.NOTES < kinds
    assert kinds - tell.NOTES >= {"photo dropped", "duplicate row", "degenerate", "outside"}


def test_colour_is_for_a_terminal(yolo, capsys, monkeypatch):
    assert "\x1b" not in said(capsys, "check", "--yolo", str(yolo), code=1)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m" in options.paint("wrong", options.RED)
    monkeypatch.setenv("NO_COLOR", "1")
    assert options.paint("wrong", options.RED) == "wrong"


def test_names_of_any_bytes_are_printed(tmp_path):
    """As on a terminal whose encoding refuses what is no text."""
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    name = os.fsdecode(b"a\xff")
    pillow.new("RGB", (40, 30)).save(tmp_path / "images" / f"{name}.png")
    (tmp_path / "labels" / f"{name}.txt").write_text("0 0.5\n")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [leaf]\n")
    done = subprocess.run(
        [sys.executable, "-m", "fnpipe", "check", "--yolo", str(tmp_path / "data.yaml")],
        capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    assert r"a\udcff.txt: row 1: 2 columns" in done.stdout


def test_a_reader_that_has_enough_is_no_error():
    command = f"{sys.executable} -m fnpipe explain | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_explain_prints_what_the_pipeline_says(capsys):
    assert said(capsys, "explain", "--recipe", "obb", "--size", "320") == (
        recipes.obb(320).explain() + "\n"
    )
    found = told(capsys, "explain", "--size", "320")
    assert found["stages"][0] == "mosaic(320)"
    assert found["bytes_an_image"]["plan"] < 1000


def test_a_recipe_may_be_a_toml_file(tmp_path, capsys):
    (tmp_path / "a.toml").write_text('recipe = "validation"\nimgsz = 96\n')
    found = told(capsys, "explain", "--recipe", str(tmp_path / "a.toml"))
    assert found["stages"] == ["letterbox(96)", "finish()"]


def test_replay_makes_a_sample_of_a_run_anew(coco, tmp_path, capsys):
    out = tmp_path / "again.png"
    found = told(capsys, "replay", "5", "3", "2", *coco, "--size", "64", "--out", str(out))
    data = fp.read_coco(coco[1], coco[3])
    batch = fp.make_batch(data, recipes.yolo(64), [2], seed=5, epoch=3)
    assert found["sha256"] == digest([batch])
    assert found["photos"][0] == f"2 {data.path(2)}"
    assert len(found["photos"]) == 4
    assert set(found["colors"]) == {"hsv"}
    with pillow.open(out) as picture:
        assert picture.size == (640, 640)
    assert said(capsys, "replay", "5", "3", "2", *coco, "--size", "64").endswith(
        f"sha256       {found['sha256']}\n"
    )


def test_replay_of_another_epoch_is_another_sample(coco, capsys):
    digests = {
        told(capsys, "replay", seed, epoch, "2", *coco, "--size", "64")["sha256"]
        for seed, epoch in (("5", "3"), ("5", "4"), ("6", "3"), ("5", "3"))
    }
    assert len(digests) == 3


def test_bench_measures_each_part(coco, capsys, monkeypatch):
    monkeypatch.setattr("fnpipe.cli.measure.best", lambda device, recipe: ("eager", "fast to try"))
    found = told(capsys, "bench", *coco, "--size", "64", "--count", "2", "--seconds", "0.05")
    assert [row["what"] for row in found["rows"]] == [
        *("decode one photo", "draw", "annotate", "render, eager"),
    ]
    assert all(row["value"] > 0 and row["unit"] == "images/s" for row in found["rows"])
    assert torch.get_num_threads() >= 1


def test_bill_for_a_program(coco, capsys):
    found = told(capsys, "bill", *coco)
    assert found["photos"] == 4
    assert found["bytes"] > found["rgb_bytes"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--plain --recipe pose", "--recipe is not for --plain; leave it out"),
        ("--plain --size 64", "--size is not for --plain; leave it out"),
        ("--plain --seed 3", "--seed is not for --plain; leave it out"),
        ("--plain --epoch 1", "--epoch is not for --plain; leave it out"),
        ("--sheet stages --count 3", "--count is not for --sheet stages; leave it out"),
    ],
)
def test_what_a_picture_would_ignore_is_refused(coco, capsys, given, message):
    assert refusal(capsys, "preview", *coco, *given.split()) == f"fnpipe: {message}"


@pytest.mark.parametrize(
    ("bbox", "what"),
    [
        (
            [15, 12, 38, 28],
            "4 of 4 instances leave their photo, as where x0, y0, x1, y1 stands for x, y, width, "
            "height",
        ),
        (
            [0.1, 0.2, 0.5, 0.4],
            "4 of 4 boxes have no side of 2 pixels, as where fractions stand for pixels",
        ),
    ],
)
def test_boxes_that_are_hardly_meant_are_a_problem(coco, capsys, bbox, what):
    file = Path(coco[1])
    document = json.loads(file.read_text())
    document["annotations"] = [a | {"bbox": bbox} for a in document["annotations"]]
    file.write_text(json.dumps(document))
    found = told(capsys, "check", *coco, code=1)
    assert found["problems"] == {"unlikely": 1}
    assert found["lines"][-1] == f"unlikely: {what}"


@pytest.mark.parametrize("sheet", ["pairs", "seeds", "stages", "counts"])
def test_a_sheet_is_a_picture(coco, tmp_path, capsys, sheet):
    if sheet == "counts":
        pytest.importorskip("matplotlib")
    out = tmp_path / "sheet.png"
    said(capsys, "preview", *coco, "--sheet", sheet, "--size", "64", "--out", str(out))
    with pillow.open(out) as picture:
        assert min(picture.size) > 300


def test_histograms_are_of_the_whole_data_set_unless_told(coco, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    asked = (
        "preview",
        *coco,
        "--sheet",
        "counts",
        "--size",
        "64",
        "--out",
        str(tmp_path / "a.png"),
    )
    assert said(capsys, *asked, "--count", "2").endswith("photos 0 to 1 of 4\n")
    monkeypatch.setattr(show, "PHOTOS", 2)
    assert said(capsys, *asked).endswith("photos 0 to 3 of 4\n")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a command refuses, by itself or by its parser."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.rstrip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "fnpipe check: one of the arguments --coco --yolo --dota is required; see "),
        ([], "fnpipe: the following arguments are required: COMMAND; see fnpipe --help"),
        (["chek"], "invalid choice: 'chek'"),
        (["check", "--dota", "x"], "fnpipe: --dota needs --images, the folder of its photos"),
        (["check", "--yolo", "none.yaml"], "fnpipe: none.yaml: No such file or directory"),
        (["explain", "--recipe", "yollo"], "no file or recipe 'yollo'; the nearest is 'yolo'"),
        (["explain", "--size", "0"], "argument --size: must be at least 1, got 0"),
        (["explain", "--size", "x"], "argument --size: must be a whole number, got 'x'"),
        (["bench", "--seconds", "-1"], "argument --seconds: must be a number above 0, got '-1'"),
        (["bench", "--seconds", "nan"], "argument --seconds: must be a number above 0, got 'nan'"),
        (["explore", "--port", "65536"], "argument --port: must be 0 to 65535, got '65536'"),
        (["demo", "--out", "a.jpg"], "argument --out: must end in .png, got 'a.jpg'"),
        (["demo", "--out", "."], "argument --out: must be a file, got the folder ."),
        (["demo", "--out", "no/a.png"], "argument --out: no folder no"),
        (["check", "--yolo", "a.yaml", "--images", "b"], "--images is not for --yolo; leave it"),
        (["check", "--coco", "a", "--images", "b", "--split", "val"], "--split is not for --coco"),
        (["check", "--dota", "a", "--images", "b", "--root", "c"], "--root is not for --dota"),
        (
            ["check", "--dota", "a", "--images", "b", "--task", "pose"],
            "--dota has --task obb alone, got pose",
        ),
        (["replay", "0", "0"], "the following arguments are required: INDEX"),
        (["replay", "0", "x", "1"], "argument EPOCH: invalid int value: 'x'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_wrong_input_is_answered_in_one_line(arguments, message, capsys):
    assert message in refusal(capsys, *arguments)


SCHEDULE = 'recipe = "yolo"\nimgsz = 64\nclose_mosaic = 2\nepochs = 5\n'


def test_a_recipe_may_change_with_the_epoch(coco, tmp_path, capsys):
    """A closed mosaic: every command takes what belongs to its epoch."""
    file = tmp_path / "a.toml"
    file.write_text(SCHEDULE)
    asked = ("--recipe", str(file))
    early, late = recipes.from_toml(file).values
    assert said(capsys, "explain", *asked) == (
        f"from epoch 0 on\n{early.explain()}\n\nfrom epoch 3 on\n{late.explain()}\n"
    )
    tables = told(capsys, "explain", *asked)["from_epoch"]
    assert [tables[epoch]["stages"][0] for epoch in ("0", "3")] == ["mosaic(64)", "letterbox(64)"]
    for epoch, pipeline in (("2", early), ("3", late)):
        found = told(capsys, "replay", "0", epoch, "1", *coco, *asked)
        assert found["pipeline"] == repr(pipeline)
    said(capsys, "preview", *coco, *asked, "--epoch", "4", "--out", str(tmp_path / "a.png"))


def test_the_bytes_that_cross_are_those_of_the_files_size(tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_text('recipe = "validation"\nimgsz = 96\n')
    crossing = told(capsys, "explain", "--recipe", str(file))["bytes_an_image"]
    assert crossing["finished"] - crossing["plan"] == 4 * 3 * 96 * 96


def test_a_size_beside_a_file_is_refused(tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_text(SCHEDULE)
    assert refusal(capsys, "explain", "--recipe", str(file), "--size", "320") == (
        f"fnpipe: --size is not for a file; write it into {file}"
    )


def test_a_recipe_that_is_no_text_is_answered_in_one_line(tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xff\xfe")
    assert refusal(capsys, "explain", "--recipe", str(file)).startswith(
        f"fnpipe: {file}: not TOML: 'utf-8' codec"
    )


@pytest.mark.parametrize("command", ["check", "preview", "bill", "bench", "replay"])
def test_a_data_set_without_photos_is_answered_in_one_line(coco, tmp_path, capsys, command):
    Path(coco[1]).write_text('{"images": [], "annotations": [], "categories": []}')
    address = ["0", "0", "0"] if command == "replay" else []
    assert refusal(capsys, command, *address, *coco) == f"fnpipe: {coco[1]}: no photos"


def test_an_index_beyond_the_end_is_answered_in_one_line(coco, capsys):
    assert refusal(capsys, "replay", "0", "0", "4", *coco) == (
        "fnpipe: INDEX must be 0 to 3, got 4"
    )


def test_a_seed_out_of_range_is_answered_in_one_line(coco, capsys):
    assert refusal(capsys, "replay", str(2**64), "0", "0", *coco) == (
        f"fnpipe: seed: wanted a 64-bit integer, came {2**64}"
    )


def test_a_toml_with_a_wrong_name_is_answered_in_one_line(tmp_path, capsys):
    (tmp_path / "a.toml").write_text('recipe = "yolo"\nimgsz = 64\ndegree = 3\n')
    assert refusal(capsys, "explain", "--recipe", str(tmp_path / "a.toml")) == (
        "fnpipe: yolo: no parameter 'degree'; the nearest is 'degrees'"
    )
