"""The page of sliders: what it shows, the code it gives, and the page itself in a browser."""

import io
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image as pillow

import fnpipe as fp
from fnpipe import explore, recipes
from fnpipe.types import ArgumentError


@pytest.fixture(scope="module")
def coco(shared_data) -> list[str]:
    folder = shared_data / "coco"
    names = folder / "annotations" / "instances_val2017.json"
    return ["--coco", str(names), "--images", str(folder / "val2017")]


@pytest.fixture(scope="module")
def data(coco) -> fp.Dataset:
    return fp.read_coco(coco[1], coco[3])


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_slider_begins_at_its_default_and_reaches_what_the_recipe_takes(recipe: str, data):
    for name, (low, high, step, value) in explore.sliders(recipe, data).items():
        assert value == recipes.defaults(recipe)[name]
        assert low <= value <= high
        assert step > 0
        for end in (low, high):
            recipes.from_dict({"recipe": recipe, "imgsz": 64, name: end})


def test_poses_that_cannot_be_mirrored_begin_unmirrored(data: fp.Dataset):
    pose = replace(data, task="pose")
    first = {name: value for name, (*_, value) in explore.sliders("obb", pose).items()}
    assert (first["fliplr"], first["flipud"]) == (0.0, 0.0)


def test_the_code_makes_the_picture(data: fp.Dataset):
    """What is copied out, run, gives the image that was seen."""
    values = recipes.defaults("yolo") | {"degrees": 10.0}
    chosen = explore.table("yolo", 64, values)
    assert chosen == {"recipe": "yolo", "imgsz": 64, "degrees": 10.0}
    text = explore.code(chosen, 3, seed=5, epoch=2)
    scope: dict[str, Any] = {"data": data}
    exec(text, scope)
    batch = fp.make_batch(data, recipes.yolo(64, degrees=10.0), [3], seed=5, epoch=2)
    assert torch.equal(scope["image"], batch.images[0])
    shown = explore.picture(data, chosen, 3, seed=5, epoch=2)
    with pillow.open(io.BytesIO(shown)) as picture:
        assert (picture.format, picture.size) == ("PNG", (640, 640))
    assert shown != explore.picture(data, chosen, 3, seed=5, epoch=3)


def test_without_marimo_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(explore, "find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"wants marimo: pip install 'fnpipe\[explore\]'$"):
        explore.serve([], port=0, open_browser=False)


def test_a_port_that_is_taken_is_answered_in_one_line():
    pytest.importorskip("marimo")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ArgumentError) as caught:
            explore.serve([], port=port, open_browser=False)
    assert str(caught.value) == (f"port {port}: Address already in use; --port 0 takes a free one")


@pytest.fixture
def page(coco):
    """The address of the page, served by the command itself."""
    pytest.importorskip("marimo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fnpipe", "explore", *coco, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(120):
            try:
                with urllib.request.urlopen(address, timeout=1):
                    break
            except OSError:
                assert server.poll() is None, "the server ended"
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(10)


@pytest.mark.slow
def test_the_page_in_a_browser(page: str):
    """A slider moved one step: another photo, another picture, other code to copy."""
    api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium (Debian: apt-get install chromium)")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(page)
        picture = tab.locator("img[alt=sample]")
        picture.wait_for(timeout=60_000)
        first = picture.get_attribute("src")
        tab.get_by_text("data[0])").wait_for()
        tab.get_by_role("slider").first.press("ArrowRight")
        tab.get_by_text("data[1])").wait_for(timeout=60_000)
        assert picture.get_attribute("src") != first
        browser.close()
