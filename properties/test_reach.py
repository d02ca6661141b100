"""Kernels touch no memory but that of their arguments: addresses are watched in the interpreter."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scenes import ALBUM, Album, draw, photo
from torch import Tensor

import fnpipe as fp
from fnpipe.ops import windows
from fnpipe.ops.raster import masks
from fnpipe.ops.render import warp
from fnpipe.ops.warp import pack_sources
from fnpipe.types import Finish, Rings, Sources, map_tensors


interpreter = pytest.importorskip("triton.runtime.interpreter")
language = pytest.importorskip("triton.language")

from fnpipe.ops import render_triton  # noqa: E402
from fnpipe.ops.paint import overlap_map  # noqa: E402
from fnpipe.ops.pixel_triton import paint_fused  # noqa: E402
from fnpipe.ops.reread import define  # noqa: E402
from fnpipe.ops.windows_triton import fetch_words  # noqa: E402


pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU interprets nothing")
SIZES = [(1, 1), (20, 70), (33, 63), (16, 64)]
"""Height, width: a part of a block, one and parts of its neighbours, a whole one."""


class Watched:
    """The interpreter's memory, where it is an error to touch any that is no argument's."""

    def __init__(self, real: Any) -> None:
        self._real, self.held = real, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def load(self, at: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._check(at[mask], other.itemsize)
        return self._real.load(at, mask, other, dtype)

    def store(self, at: Any, value: Any, mask: Any) -> Any:
        self._check(at[mask], value.itemsize)
        return self._real.store(at, value, mask)

    def _check(self, at: Any, size: int) -> None:
        known = at < 0
        for first, last in self.held:
            known |= (at >= first) & (at + size <= last)
        if not known.all():
            raise LookupError(f"{(~known).sum()} addresses of {len(known)} lie in no argument")


@pytest.fixture(scope="module", autouse=True)
def watched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        memory = Watched(interpreter._interpreter)
        patch.setattr(interpreter, "_interpreter", memory)
        begin = interpreter.GridExecutor._init_args_hst

        def learn(self: Any, given: Any, named: Any) -> Any:
            tensors = [t for t in given if isinstance(t, Tensor)]
            memory.held = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors]
            return begin(self, given, named)

        patch.setattr(interpreter.GridExecutor, "_init_args_hst", learn)
        yield


def look(pipeline: fp.Pipeline, album: Album) -> None:
    """Images of all photos, of a buffer that ends with the last one."""
    plan = pipeline.draw(fp.key(seed=0, epoch=0, sample=torch.arange(len(album.images))), album)
    sources, recipe = pack_sources(album.images), pipeline.recipe(plan.size)
    got = render_triton.render_fused(sources, plan, recipe.chain, recipe.finish)
    assert torch.equal(got, pipeline.render(plan, sources))


EDGE_TO_EDGE = Album([photo(50, 40), photo(33, 47, seed=1)])
"""Photos that a resize shows whole: every point of the frame is inside."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flipped", [0.0, 1.0])
def test_of_frames_of_any_size(size: tuple[int, int], flipped: float) -> None:
    look(fp.pipe(fp.resize(size), fp.flip(horizontal=flipped, vertical=flipped)), EDGE_TO_EDGE)


@pytest.mark.parametrize("size", SIZES[:2])
def test_of_mosaics_and_windows(size: tuple[int, int]) -> None:
    pipeline = fp.pipe(fp.mosaic(size), fp.affine(scale=0.7, degrees=9.0), fp.flip(horizontal=0.5))
    plan = pipeline.draw(fp.key(seed=0, epoch=0, sample=torch.arange(2)), ALBUM)
    pool, recipe = pack_sources(ALBUM.images), pipeline.recipe(plan.size)
    seen, local = windows.measure(pool, plan)
    fetched = seen.sources.replace(words=fetch_words(seen, pool.words))
    assert _same_windows(fetched, windows.cut(pool, plan)[0])
    images = pipeline.render(plan, pool)
    got = render_triton.render_fused(fetched, local, recipe.chain, recipe.finish)
    assert torch.equal(got, images)
    planes = torch.stack(warp(pool, plan), 1)
    assert torch.equal(paint_fused(planes, plan.colors, recipe.chain, recipe.finish), images)


def _same_windows(one: Sources, other: Sources) -> bool:
    starts = other.offsets - 2
    return all(
        torch.equal(one.words[a:b], other.words[a:b])
        for a, b in zip(starts.tolist(), [*starts[1:].tolist(), len(other.words)], strict=True)
    )


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # level edges
@pytest.mark.parametrize("size", [(1, 1), (20, 35)])
@pytest.mark.parametrize("lengths", [[], [0, 3, 40], [5, 0]])
def test_of_masks_and_maps(size: tuple[int, int], lengths: list[int]) -> None:
    points = torch.rand(sum(lengths), 2, generator=torch.Generator().manual_seed(0)) * 60 - 15
    ends, owner = torch.tensor([0, *lengths]).cumsum(0), torch.arange(len(lengths)) // 2
    rings = Rings(points, ends, torch.arange(len(lengths) + 1))
    made, wanted = (masks(rings, size, stride=1, impl=impl) for impl in ("triton", "torch"))
    assert torch.equal(made, wanted)
    maps = (overlap_map(rings, owner, 3, size, stride=1, impl=i) for i in ("triton", "torch"))
    assert torch.equal(*maps)


def test_a_batch_is_refused_that_no_grid_counts() -> None:
    """A grid has 65,535 places on all axes but its first."""
    planes = torch.zeros(65_536, 3, 1, 1)
    sources, plan = draw(fp.pipe(fp.resize(1)), [0])
    many = map_tensors(lambda t: t.expand(65_536, *t.shape[1:]), plan)
    for render in (
        lambda: paint_fused(planes, (), (), Finish()),
        lambda: render_triton.render_fused(sources, many, (), Finish()),
    ):
        with pytest.raises(fp.ArgumentError) as caught:
            render()
        assert str(caught.value) == "backend 'triton' wanted 65,535 images at most, came 65,536"


def test_a_kernel_that_looks_past_the_frame_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    free = define("held", "def held(x, near, far, EVEN):\n    return x\n", {"tl": language})
    monkeypatch.setattr(render_triton, "held", free)
    render_triton.build.cache_clear()
    try:
        with pytest.raises(Exception, match=r"\d+ addresses of \d+ lie in no argument"):
            look(fp.pipe(fp.resize((20, 70))), EDGE_TO_EDGE)
    finally:
        render_triton.build.cache_clear()
