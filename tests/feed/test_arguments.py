"""Which device is meant: checked with GPUs that are only said to be there."""

import pytest
import torch

from fnpipe.feed.arguments import exactly
from fnpipe.types import ArgumentError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("cpu", torch.device("cpu")),
        ("cpu:0", torch.device("cpu")),
        ("cuda", torch.device("cuda", 1)),
        ("cuda:0", torch.device("cuda", 0)),
        (torch.device("cuda", 0), torch.device("cuda", 0)),
        (torch.device("cuda"), torch.device("cuda", 1)),
    ],
)
def test_cuda_alone_is_the_current_gpu(two_gpus: None, given: object, meant: torch.device):
    assert exactly(given) == meant


@pytest.mark.parametrize("given", ["mps", "meta", torch.device("xpu", 0), "gpu", None])
def test_a_device_of_another_kind_is_refused(given: object):
    """Nothing would go there: batches would stay on the host."""
    with pytest.raises(ArgumentError) as caught:
        exactly(given)
    assert str(caught.value) == f"device wanted 'cpu' or 'cuda', came {given!r}"


def test_a_gpu_that_is_not_there_is_refused(two_gpus: None):
    with pytest.raises(ArgumentError, match=r"^device 'cuda:2': there are 2 GPUs here$"):
        exactly("cuda:2")
