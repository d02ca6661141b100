"""Choosing a backend, refusing one, and the canary; nothing is compiled here."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fnpipe as fp
from fnpipe import backends, numerics
from fnpipe.backends import Recipe, best, check_backend, painter, renderer, warper
from fnpipe.cuts import choose_backends
from fnpipe.ops.windows import gather
from fnpipe.testing.strategies import Album
from fnpipe.types import ArgumentError, NumericsError, Plan, Sources


NOISE = torch.randint(0, 256, (2, 3, 7, 9), dtype=torch.uint8, generator=torch.Generator())
ALBUM = Album(NOISE.unbind())
"""Two photos of noise."""


@pytest.fixture
def scene() -> tuple[Recipe, Sources, Plan]:
    """What a small pipeline renders."""
    pipeline = fp.pipe(fp.hsv(hue=0.5, value=0.5), fp.finish(torch.float32))
    key = fp.key(seed=0, epoch=0, sample=torch.tensor([0, 1]))
    sources, plan = gather(pipeline.draw(key, ALBUM), ALBUM.read)
    return pipeline.recipe(plan.size), sources, plan


@pytest.fixture(autouse=True)
def forgets():
    """Renderers are kept by recipe."""
    backends._part.cache_clear()
    yield
    backends._part.cache_clear()


@pytest.mark.parametrize(
    ("part", "allowed"),
    [
        ("render", "eager, compiled, package, triton"),
        ("warp", "eager, compiled, package"),
        ("paint", "eager, compiled, triton"),
    ],
)
def test_an_unknown_backend_is_refused_with_those_that_are_known(part: str, allowed: str):
    for known in allowed.split(", "):
        check_backend(known, part=part)
    message = f"backend (to {part}) wanted one of {allowed}, came 'cuda'"
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        check_backend("cuda", part=part)


def test_a_pipeline_refuses_an_unknown_backend(scene: tuple[Recipe, Sources, Plan]):
    _, sources, plan = scene
    with pytest.raises(ArgumentError, match=r"came 'fast'$"):
        fp.pipe(fp.hsv(), fp.finish()).render(plan, sources, backend="fast")


def test_the_parts_make_the_whole(scene: tuple[Recipe, Sources, Plan]):
    recipe, sources, plan = scene
    planes = warper(recipe, "eager")(sources, plan)
    assert planes.shape == (2, 3, 7, 9)
    assert planes.dtype == torch.float32
    painted = painter(recipe, "eager")(planes, plan.colors)
    assert torch.equal(painted, renderer(recipe, "eager")(sources, plan))


def test_a_recipe_is_compiled_once(
    scene: tuple[Recipe, Sources, Plan], monkeypatch: pytest.MonkeyPatch
):
    recipe, sources, plan = scene
    made: list[Any] = []
    monkeypatch.setattr(numerics, "compiled", lambda fn: made.append(fn) or fn)
    for _ in range(2):
        renderer(recipe, "compiled")(sources, plan)
    count = len(made)
    equal = Recipe(recipe.chain, recipe.finish, recipe.size)
    assert renderer(equal, "compiled") is renderer(recipe, "compiled")
    assert len(made) == count


def spoil(fn: Callable[..., Tensor], image: int) -> Callable[..., Tensor]:
    """A compiler that changes the last bit of one word of one finished image."""

    def run(*tensors: Tensor) -> Tensor:
        out = fn(*tensors).clone()
        if out.dim() == 4 and len(out) > image:
            words = out[image].view(torch.int32)
            words[1, 2, 3] ^= 1
        return out

    return run


def test_the_canary_refuses_a_backend_that_differs_in_one_bit(
    scene: tuple[Recipe, Sources, Plan], monkeypatch: pytest.MonkeyPatch
):
    recipe, sources, plan = scene
    monkeypatch.setattr(numerics, "compiled", lambda fn: spoil(fn, 0))
    with pytest.raises(NumericsError) as caught:
        renderer(recipe, "compiled")(sources, plan)
    assert str(caught.value).startswith(
        f"backend 'compiled' (render) differs from eager in 1 of 189 words, first at {63 + 18 + 3}"
    )
    with pytest.raises(NumericsError, match=r"^backend 'compiled' \(paint\) differs"):
        painter(recipe, "compiled")(warper(recipe, "eager")(sources, plan), plan.colors)


def test_the_canary_looks_at_the_first_image_of_the_first_batch(
    scene: tuple[Recipe, Sources, Plan], monkeypatch: pytest.MonkeyPatch
):
    recipe, sources, plan = scene
    spoiled: list[int] = [1]
    monkeypatch.setattr(
        numerics, "compiled", lambda fn: lambda *tensors: spoil(fn, spoiled[0])(*tensors)
    )
    run = renderer(recipe, "compiled")
    run(sources, plan)
    spoiled[0] = 0
    run(sources, plan)


def test_the_fastest_on_a_cpu_is_a_package_where_there_is_a_compiler(
    scene: tuple[Recipe, Sources, Plan], monkeypatch: pytest.MonkeyPatch
):
    recipe, cpu = scene[0], torch.device("cpu")
    monkeypatch.setattr(numerics, "compiler", lambda: "/usr/bin/g++")
    assert best(cpu, recipe) == ("package", "built once for this processor")
    monkeypatch.setattr(numerics, "compiler", lambda: None)
    name, why = best(cpu, recipe)
    assert name == "eager"
    assert why == "no C++ compiler to build a package with (Debian: apt-get install g++)"


@pytest.mark.parametrize("cut", ["finished", "warped", "source"])
def test_who_gets_eager_images_unasked_is_warned(cut: str, monkeypatch: pytest.MonkeyPatch):
    pipeline, cpu = fp.pipe(fp.letterbox(8), fp.finish()), torch.device("cpu")
    monkeypatch.setattr(numerics, "compiler", lambda: None)
    with pytest.warns(UserWarning, match="^images take 30 times as long .*: no C"):
        assert choose_backends(pipeline, cut, cpu, None, None).worker == "eager"
    assert choose_backends(pipeline, cut, cpu, "eager", "eager").worker == "eager"
    monkeypatch.setattr(numerics, "compiler", lambda: "/usr/bin/g++")
    assert choose_backends(pipeline, cut, cpu, None, None).worker == "package"


def test_a_backend_that_was_asked_for_has_no_other_reason(monkeypatch: pytest.MonkeyPatch):
    pipeline, cpu = fp.pipe(fp.letterbox(8), fp.finish()), torch.device("cpu")
    monkeypatch.setattr(numerics, "compiler", lambda: "/usr/bin/g++")
    chosen = choose_backends(pipeline, "finished", cpu, "eager", None)
    assert (chosen.worker, chosen.device) == ("eager", "package")
    assert chosen.why == "workers: asked for; device: built once for this processor"
    chosen = choose_backends(pipeline, "finished", cpu, None, "eager")
    assert chosen.why == "workers: built once for this processor; device: asked for"


def test_a_warning_of_a_loader_names_the_line_that_made_it(tmp_path: Path):
    """In an interpreter of its own: the checks of shapes are frames, too."""
    (tmp_path / "script.py").write_text(
        "import fnpipe as fp\nfrom fnpipe import demo\n"
        "fp.Loader(demo.load(), fp.pipe(fp.letterbox(8)), batch_size=2, seed=0)\n"
    )
    package = {"PYTHONPATH": str(Path(fp.__file__).parents[1]), "CXX": "no-compiler"}
    command = [sys.executable, "script.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | package
    )
    assert "script.py:3: UserWarning: images take 30 times as long" in done.stderr


def test_the_fastest_on_a_gpu_is_triton_where_it_can_read_the_stages(
    scene: tuple[Recipe, Sources, Plan], monkeypatch: pytest.MonkeyPatch
):
    recipe, cuda = scene[0], torch.device("cuda")
    monkeypatch.setattr(backends, "unreadable", lambda recipe: None)
    assert best(cuda, recipe) == ("triton", "one kernel")
    monkeypatch.setattr(backends, "unreadable", lambda recipe: "a reason")
    assert best(cuda, recipe) == ("compiled", "a reason")


def loud(r: Tensor, g: Tensor, b: Tensor) -> Any:
    return torch.sigmoid(r), g, b


def test_a_stage_that_triton_cannot_read_is_named():
    pytest.importorskip("triton")
    plain = fp.finish(torch.uint8).finish
    assert backends.unreadable(Recipe((), plain, (8, 8))) is None
    reason = backends.unreadable(Recipe((loud,), plain, (8, 8)))
    line = loud.__code__.co_firstlineno + 1
    assert reason is not None
    assert reason.startswith(f"{__file__}:{line}: loud uses torch.sigmoid, which has no Triton")


def test_without_triton_the_reason_is_that(monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "fnpipe.ops.reread", None)
    recipe = Recipe((), fp.finish().finish, (8, 8))
    pipeline, gpu = fp.pipe(fp.letterbox(8)), torch.device("cuda")
    backend, reason = best(gpu, recipe)
    assert backend == "eager"  # Inductor writes Triton for a GPU
    assert reason.startswith("Triton cannot be imported (")
    with pytest.warns(UserWarning, match="^images take 30 times as long .*: Triton cannot be"):
        assert choose_backends(pipeline, "source", gpu, None, None).device == "eager"


def test_a_package_takes_one_image_at_a_time(
    scene: tuple[Recipe, Sources, Plan], monkeypatch: pytest.MonkeyPatch
):
    recipe, sources, plan = scene
    calls: list[list[int]] = []
    keys: list[str] = []

    def package(fn: Any, example: list[Tensor], *, key: str, dynamic_shapes: Any) -> Any:
        keys.append(key)

        def run(*tensors: Tensor) -> Tensor:
            calls.append([len(t) for t in tensors[1:]])
            return fn(*tensors)

        return run

    monkeypatch.setattr(numerics, "package", package)
    made = renderer(recipe, "package")(sources, plan)
    assert torch.equal(made, renderer(recipe, "eager")(sources, plan))
    assert len(calls) == 2
    assert {n for call in calls for n in call} == {1}
    renderer(recipe, "package")(sources, plan)
    assert len(keys) == 1
    assert str(recipe.size) in keys[0]


def test_a_package_is_for_the_cpu(scene: tuple[Recipe, Sources, Plan]):
    recipe, sources, plan = scene
    with pytest.raises(ArgumentError, match=r"^backend 'package' runs on the CPU, came meta$"):
        renderer(recipe, "package")(sources, plan.to("meta"))
