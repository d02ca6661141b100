"""Recipes as tables and TOML: there and back, and what is said of a wrong one."""

import inspect
from pathlib import Path

import pytest
import torch

import fnpipe as fp
from fnpipe import recipes
from fnpipe.recipes import tasks
from fnpipe.types import ArgumentError


CALLS = {
    "yolo": recipes.yolo(64, degrees=10.0, shear=2.0, perspective=0.0005, flipud=0.1, mosaic=0.5),
    "plain": recipes.yolo(64, mosaic=0.0, dtype=torch.uint8),
    "detr": recipes.detr(64, dtype=torch.bfloat16, channels_last=True),
    "segment": recipes.segment(64),
    "pose": recipes.pose(64, fliplr=0.0),
    "obb": recipes.obb(64),
    "validation": recipes.validation(64, stretch=True),
    "mixed": recipes.yolo(64, copy_paste=0.3, mixup=0.1, cutmix=0.2),
    "pasted": recipes.segment(64, copy_paste=0.5, copy_paste_mode="mixup"),
    "by hand": fp.pipe(
        fp.crop((48, 64), name="window"),
        fp.solarize(128.0),
        fp.posterize(3),
        fp.erase(p=0.5, side=(0.1, 0.2)),
    ),
    "nothing": fp.pipe(),
}


@fp.pointwise
def warmer(r, g, b, gain):
    return r * gain, g, b


def refusal(table) -> str:
    with pytest.raises(ArgumentError) as refused:
        recipes.from_dict(table)
    return str(refused.value)


@pytest.mark.parametrize("pipeline", CALLS.values(), ids=CALLS)
def test_a_pipeline_comes_back_from_its_table(pipeline: fp.Pipeline):
    assert recipes.from_dict(recipes.to_dict(pipeline)) == pipeline


@pytest.mark.parametrize("pipeline", CALLS.values(), ids=CALLS)
def test_a_pipeline_comes_back_from_toml(pipeline: fp.Pipeline, tmp_path: Path):
    pytest.importorskip("tomli_w")
    text = recipes.to_toml(pipeline)
    assert recipes.from_toml(text) == pipeline
    (tmp_path / "a.toml").write_text(text)
    assert recipes.from_toml(tmp_path / "a.toml") == pipeline


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_defaults_make_what_the_bare_call_makes(name: str):
    """What ``defaults`` says can be edited and read back, through TOML too."""
    table = {"recipe": name, "imgsz": 64, **recipes.defaults(name)}
    bare = recipes.RECIPES[name](64)
    assert recipes.from_dict(table) == bare
    if pytest.importorskip("tomli_w"):
        assert recipes.from_toml(recipes.to_toml(table)) == bare


def test_the_typed_table_has_the_parameters_of_the_recipe():
    assert set(recipes.Hyper.__annotations__) == set(recipes.defaults("yolo"))
    for changes in tasks.VARIANTS.values():
        assert set(changes) <= set(inspect.signature(recipes.yolo).parameters)


def test_a_table_names_a_recipe():
    table = {"recipe": "yolo", "imgsz": 640, "hsv_h": 0.02, "dtype": "bfloat16"}
    assert recipes.from_dict(table) == recipes.yolo(640, hsv_h=0.02, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"recipe": "yolo", "imgsz": 64, "degree": 1},
            "yolo: no parameter 'degree'; the nearest is 'degrees'",
        ),
        (
            {"recipe": "obb", "imgsz": 64, "fliplrr": 1},
            "obb: no parameter 'fliplrr'; the nearest is 'fliplr'",
        ),
        ({"recipe": "yollo", "imgsz": 64}, "no recipe 'yollo'; the nearest is 'yolo'"),
        (
            {"recipe": "x", "imgsz": 64},
            "no recipe 'x'; there are yolo, detr, segment, pose, obb, validation",
        ),
        (
            {"recipe": "yolo"},
            "yolo: wanted the key 'imgsz', the side of the images in pixels",
        ),
        ({"imgsz": 64}, "wanted the key 'recipe' or 'stages', came imgsz"),
        ({"stages": [], "imgsz": 64}, "a pipeline: no parameter 'imgsz'; there are stages"),
        ({"stages": [{"size": 64}]}, "a stage wanted the key 'stage', came {'size': 64}"),
        (
            {"stages": [{"stage": "mosiac", "size": 64}]},
            "no stage 'mosiac'; the nearest is 'mosaic'",
        ),
        ({"stages": [{"stage": "mosaic"}]}, "mosaic: wanted the key 'size'"),
        (
            {"stages": [{"stage": "hsv", "hues": 0.1}]},
            "hsv: no parameter 'hues'; the nearest is 'hue'",
        ),
        (
            {"stages": [{"stage": "finish", "dtype": "float8"}]},
            "no dtype 'float8'; the nearest is 'float32'",
        ),
        (
            {"recipe": "yolo", "imgsz": 64, "hsv_h": 3.0},
            "hsv: hue wanted a number in [0, 0.5], came 3.0",
        ),
        (
            {"recipe": "yolo", "imgsz": 64, "copy_paste_mode": "self"},
            "copy_paste_mode wanted one of flip, mixup, came 'self'",
        ),
        (
            {"recipe": "yolo", "imgsz": 64, "close_mosaic": 10},
            "close_mosaic wanted epochs=, the length of the run, at least 10, came None",
        ),
        (
            {"recipe": "yolo", "imgsz": 64, "close_mosaic": 10, "epochs": 9},
            "close_mosaic wanted epochs=, the length of the run, at least 10, came 9",
        ),
    ],
)
def test_a_wrong_table_is_refused_with_what_was_meant(table, message: str):
    assert refusal(table) == message


def test_toml_that_is_none_is_refused(tmp_path: Path):
    (tmp_path / "a.toml").write_text("imgsz = = 3")
    with pytest.raises(ArgumentError, match=r"a\.toml: not TOML: Invalid value"):
        recipes.from_toml(tmp_path / "a.toml")


def test_a_function_is_kept_by_code_alone():
    pipeline = fp.pipe(warmer.drawn(gain=1.1))
    with pytest.raises(ArgumentError, match=r"^warmer\.drawn\(.*\) holds a function, which no"):
        recipes.to_dict(pipeline)


def test_a_closed_mosaic_is_a_schedule_of_two():
    """Its last epochs mix no photos, and are otherwise the same."""
    opened, closed = recipes.yolo(64), recipes.yolo(64, mosaic=0.0)
    assert recipes.yolo(64, close_mosaic=10, epochs=100) == fp.schedule({0: opened, 90: closed})
    assert recipes.yolo(64, close_mosaic=10, epochs=10) == fp.schedule({0: closed})
