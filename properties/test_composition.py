"""A pipeline is a value: it composes, compares, hashes, pickles, and is written as it was built."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import affines, finishes, flips, geometries, paints

import fnpipe as fp


many = settings(max_examples=200, deadline=None)
keeps = st.builds(fp.keep, visible=st.sampled_from([0.0, 0.25]), side=st.sampled_from([0.0, 3.0]))


@fp.pointwise
def tint(r, g, b, strength):
    """Towards red."""
    return r + (255.0 - r) * strength, g, b


@fp.pointwise
def swap(r, g, b):
    """Red for blue."""
    return b, g, r


own = st.one_of(
    st.builds(
        lambda low, p: tint.drawn(strength=fp.sometimes(p, fp.uniform(low, 0.5), 0.0)),
        st.sampled_from([0.0, 0.25]),
        st.sampled_from([0.0, 0.5]),
    ),
    st.just(swap.drawn()),
    st.just(swap.drawn(name="swap back")),
)


@st.composite
def stages(draw: st.DrawFn) -> list:
    """A layout perhaps, then anything in any order, then a finish perhaps; no name twice."""
    middle = st.lists(
        st.one_of(affines, flips, paints, keeps, own), max_size=5, unique_by=lambda s: s.name
    )
    first = draw(st.lists(geometries, max_size=1))
    return [*first, *draw(middle), *draw(st.lists(finishes, max_size=1))]


@many
@given(stages(), st.data())
def test_brackets_do_not_matter(parts, data):
    whole = fp.pipe(*parts)
    i, j = sorted(data.draw(st.integers(0, len(parts))) for _ in range(2))
    a, b, c = fp.pipe(*parts[:i]), fp.pipe(*parts[i:j]), fp.pipe(*parts[j:])
    assert fp.pipe(fp.pipe(a, b), c) == fp.pipe(a, fp.pipe(b, c)) == whole
    assert fp.pipe(fp.pipe(), whole) == fp.pipe(whole, fp.pipe()) == fp.pipe(whole) == whole
    assert fp.pipe(*whole.stages) == whole


@many
@given(stages(), stages())
def test_equal_stages_make_equal_pipelines(parts, others):
    assert (fp.pipe(*parts) == fp.pipe(*others)) == (parts == others)
    assert hash(fp.pipe(*parts)) == hash(fp.pipe(*pickle.loads(pickle.dumps(parts))))
    assert len({fp.pipe(*parts), fp.pipe(*others)}) == 1 + (parts != others)


@many
@given(stages())
def test_it_is_written_as_it_was_built(parts):
    pipeline = fp.pipe(*parts)
    names = {**vars(fp), "torch": torch, "tint": tint, "swap": swap}
    again = eval(repr(pipeline), names)
    assert again == pipeline
    assert repr(again) == repr(pipeline)


@many
@given(stages())
def test_it_travels(parts):
    pipeline = fp.pipe(*parts)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(pipeline, protocol)) == pipeline


@many
@given(stages())
def test_it_cannot_be_changed(parts):
    pipeline = fp.pipe(*parts)
    for value in (pipeline, *pipeline.stages):
        with pytest.raises(AttributeError):
            value.name = "another"
