"""What every law may use. Laws compile code, so here the shapes of arguments are not checked."""

import os
import sys
from pathlib import Path

import pytest
import torch


# Laws that several files need lie beside them, in laws.py.
sys.path.append(str(Path(__file__).parent))
if not torch.cuda.is_available():
    # Triton reads this when it is imported; without a GPU its kernels run in its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where compiled code and kernels run: the GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def package_cache(request: pytest.FixtureRequest) -> None:
    """Packages go to pytest's cache: built in the first run, loaded in the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(request.config.cache.mkdir("packages")))
        yield
