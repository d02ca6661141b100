"""What tests and laws share."""

import os
from pathlib import Path

import pytest
import torch


torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photos and labels; ``FNPIPE_DATA`` says where they lie."""
    beside = Path(__file__).resolve().parents[1] / "shared" / "data"
    root = Path(os.environ.get("FNPIPE_DATA", beside))
    if not root.is_dir():
        pytest.skip(f"real data not found at {root}; set FNPIPE_DATA")
    return root
