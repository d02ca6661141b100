"""A host of several GPUs, of which a loader uses one: the others are left alone. None is needed."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fnpipe as fp
from fnpipe.data.dataset import Dataset
from fnpipe.feed.addresses import Address
from fnpipe.feed.locked import Locked
from fnpipe.feed.parcels import Left
from fnpipe.feed.pools import device_pool, map_pool
from fnpipe.feed.ranks import share
from fnpipe.feed.workers import Workers
from fnpipe.packing import Packed, packed
from fnpipe.types import ArgumentError


class Gpus:
    """Four GPUs as torch shows them; ``log`` has what was done, and which was current then."""

    def __init__(self) -> None:
        self.current, self.streams, self.log = 0, ["main 0", "main 1", "main 2", "main 3"], []

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before

    def current_device(self) -> int:
        return self.current

    def current_stream(self, index: int) -> Any:
        return SimpleNamespace(device_index=index, name=self.streams[index])

    def set_stream(self, stream: Any) -> None:
        self.current = stream.device_index  # torch's does that, too
        self.streams[stream.device_index] = stream.name

    def note(self, what: str) -> int:
        self.log.append((what, self.current, self.streams[self.current]))
        return 0

    def cudart(self) -> Any:
        return SimpleNamespace(
            cudaHostRegister=lambda *_: self.note("lock"),
            cudaHostUnregister=lambda *_: self.note("unlock"),
        )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    for name in ("device", "current_device", "current_stream", "set_stream", "cudart"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    return made


def test_case_121_a_copy_leaves_the_current_gpu_and_its_stream(gpus: Gpus, data: Dataset):
    class Buffer(Packed):
        def to(self, device: Any, *, non_blocking: bool = False) -> Packed:
            assert (device, non_blocking) == (torch.device("cuda:1"), True)
            gpus.note("copy")
            return self

    loader = fp.Loader(data, fp.pipe(), batch_size=2, seed=0)
    loader.device = torch.device("cuda:1")
    side: Any = SimpleNamespace(device_index=1, name="side", record_event=lambda: "copied")
    loader._side = side
    made = packed(loader.job.prepare(Address(0, 0)))
    parcel, event = loader._move(Buffer(made.buffer, made.slots, made.form))
    assert (len(parcel.plan), event) == (2, "copied")
    assert gpus.log == [("copy", 1, "side")]
    assert gpus.current == 0
    assert gpus.streams == ["main 0", "main 1", "main 2", "main 3"]


def test_pages_are_locked_and_unlocked_by_the_gpu_that_was_current(gpus: Gpus):
    with gpus.device(2):
        locked = Locked(torch.zeros(4))
    assert locked.error == ""
    del locked
    gc.collect()
    assert [(what, device) for what, device, _ in gpus.log] == [("lock", 2), ("unlock", 2)]
    assert gpus.current == 0


def test_a_pool_is_locked_by_the_loaders_gpu(gpus: Gpus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fnpipe.feed.pools.find_spec", lambda name: name)

    class Held:
        kind, held, sources = "ram", None, SimpleNamespace(words=torch.zeros(4))

    assert isinstance(map_pool(Held(), torch.device("cuda:3"), cut="source"), Locked)
    gc.collect()
    assert [(what, device) for what, device, _ in gpus.log] == [("lock", 3), ("unlock", 3)]
    assert gpus.current == 0


def test_places_are_locked_by_the_loaders_gpu(gpus: Gpus, data: Dataset):
    job = fp.Loader(data, fp.pipe(), batch_size=2, seed=0).job
    workers = Workers(
        job, count=1, start_method=None, prefetch=1, ahead=False, device=torch.device("cuda:2"),
        on_error="raise", timeout=60.0,
    )  # fmt: skip
    workers.begin(0, 0, share(0, 1))
    try:
        segment = torch.zeros(2**21, dtype=torch.uint8)
        left = Left(0, 0, 2**21, (), b"", (), segment)
        assert workers._find(left).place == (0, 0)
    finally:
        workers.close()
    gc.collect()
    assert [device for _, device, _ in gpus.log] == [2] * 4
    assert gpus.current == 0


def test_a_pool_on_a_gpu_is_refused_where_the_host_reads_it(data: Dataset):
    words = SimpleNamespace(device=torch.device("cuda:0"), is_cuda=True)
    pool: Any = SimpleNamespace(gather=print, sources=SimpleNamespace(words=words))
    wanted = (
        "pool wanted one that the host can read, came one on cuda:0: "
        "fnpipe.pool(data, 'ram'), or for a loader cut='plan'"
    )
    for cut in ("finished", "warped", "source"):
        with pytest.raises(ArgumentError) as caught:
            fp.Loader(data, fp.pipe(), batch_size=2, seed=0, pool=pool, cut=cut)
        assert str(caught.value) == wanted
    with pytest.raises(ArgumentError) as caught:
        fp.make_batch(data, fp.pipe(), [0], seed=0, pool=pool)
    assert str(caught.value) == wanted


@pytest.mark.parametrize("there", ["cpu", "cuda:0"])
def test_a_pool_on_another_gpu_is_refused_at_once(there: str):
    words = SimpleNamespace(device=torch.device(there))
    pool = SimpleNamespace(sources=SimpleNamespace(words=words))
    with pytest.raises(ArgumentError) as caught:
        device_pool(pool, torch.device("cuda:1"))
    assert str(caught.value) == (
        f"cut 'plan' wanted a pool on cuda:1, came one on {there}: "
        "pool=fnpipe.pool(data, 'device', device='cuda:1')"
    )
