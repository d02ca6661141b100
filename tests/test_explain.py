"""The table of what runs where."""

import re

import torch

import fnpipe as fp
from fnpipe.backends import Chosen
from fnpipe.explain import bytes_of, explain


PIPELINE = fp.pipe(
    fp.mosaic(640),
    fp.hsv(hue=0.015),
    fp.flip(horizontal=0.5),
    fp.keep(side=2.0),
    fp.finish(torch.bfloat16),
)


def rows(text: str) -> dict[str, list[str]]:
    """What stands behind each stage, columns apart by two spaces or more."""
    return {
        (parts := re.split(r"\s{2,}", line))[0]: parts[1:]
        for line in text.splitlines()
        if "(" in line and "  " in line
    }


def test_each_stage_says_what_it_does_and_where_by_cut():
    found = rows(explain(PIPELINE))
    assert [*found] == [
        "mosaic(640)",
        "flip(horizontal=0.5)",
        "hsv(hue=0.015)",
        "keep(side=2.0)",
        "finish(dtype=torch.bfloat16)",
    ]
    assert found["mosaic(640)"] == [
        "layout: one tile a pixel", "worker", "worker", "device", "device",
    ]  # fmt: skip
    assert found["hsv(hue=0.015)"][1:] == ["worker", "device", "device", "device"]
    assert found["keep(side=2.0)"] == ["targets only", *["worker"] * 4]


def test_one_cut_alone():
    text = explain(PIPELINE, cut="warped", backends=Chosen("package", "eager", "since so"))
    assert rows(text)["hsv(hue=0.015)"] == ["colour, pointwise", "device"]
    assert "backends: worker package, device eager\n          (since so)" in text
    assert "4.92 MB" in text
    assert "finished " not in text


def test_a_pool_that_the_device_reads():
    assert "copied by the device itself" in explain(PIPELINE, cut="source", mapped=True)
    assert "copied by the device itself" not in explain(PIPELINE, cut="source")


def test_bytes_that_cross():
    """Three planes of two bytes, of four, a word a pixel; a plan is a few hundred bytes."""
    crossing = bytes_of(PIPELINE, size=(640, 640))
    plan = crossing["plan"]
    assert plan < 1000
    assert crossing["finished"] == plan + 640 * 640 * 6
    assert crossing["warped"] == plan + 640 * 640 * 12
    assert crossing["source"] == plan + 640 * 640 * 4


def test_a_size_is_taken_from_the_last_stage_that_sets_one_or_as_told():
    assert "per 640 x 640 image" in explain(PIPELINE)
    assert "per 96 x 64 image" in explain(fp.pipe(fp.resize(8), fp.letterbox((64, 96))))
    assert "per 20 x 10 image" in explain(fp.pipe(fp.hsv()), size=(10, 20))


def test_a_pipeline_and_one_of_no_stage_explain_themselves():
    assert PIPELINE.explain() == explain(PIPELINE)
    assert "per 640 x 640 image" in fp.pipe().explain()


def test_no_line_ends_in_space():
    assert all(line == line.rstrip() for line in explain(PIPELINE).splitlines())


def test_a_layer_is_a_picture_more():
    """Of a plan and of sources; what is finished or warped crosses once."""
    bare = fp.pipe(fp.letterbox(64), fp.hsv(hue=0.1))
    layered = fp.pipe(fp.letterbox(64), fp.mixup(p=0.1), fp.copy_paste(p=0.1), fp.hsv(hue=0.1))
    one, three = (bytes_of(p, size=(64, 64)) for p in (bare, layered))
    assert three["finished"] == one["finished"]
    assert three["warped"] == one["warped"]
    assert three["source"] - three["plan"] == 3 * (one["source"] - one["plan"])
    assert one["plan"] < three["plan"] < 4 * one["plan"]
    (line,) = [line for line in layered.explain().splitlines() if line.startswith("mixup")]
    assert line.split() == [
        "mixup(p=0.1)", *"on top, a look more a pixel worker worker device device".split()
    ]  # fmt: skip


def test_windows_that_cross_beside_a_plan():
    """A quarter of what the cut "source" sends, where a quarter of the photos is not there."""
    text = explain(PIPELINE, lacking=0.25)
    *_, plan, windows = text.splitlines()
    assert plan.split() == ["plan", *f"{bytes_of(PIPELINE, size=(640, 640))['plan']} B".split()]
    assert windows == "    windows      0.41 MB, as the pool lacks 25.0% of photos"
    assert "windows" in explain(PIPELINE, cut="plan", lacking=0.25)
    assert "windows" not in explain(PIPELINE, cut="source", lacking=0.25)
    assert "windows" not in explain(PIPELINE, cut="plan")


def test_a_loader_says_what_its_pool_lacks(photos: fp.Dataset):
    whole = fp.pool(photos, "ram", progress=False)
    limit = whole.bytes // 2
    part = fp.pool(photos, "device", device="cpu", limit=limit, overflow="prefix", progress=False)
    given = {"batch_size": 2, "seed": 0, "cut": "plan", "backend": "eager"}
    assert part.rest is not None
    lacking = f"as the pool lacks {part.rest.lacking:.1%} of photos"
    assert 0 < part.rest.lacking < 1
    assert lacking in fp.Loader(photos, PIPELINE, pool=part, **given).explain()
    assert "lacks" not in fp.Loader(photos, PIPELINE, pool=whole, **given).explain()
