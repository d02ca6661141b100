"""Examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import fnpipe


ROOT = Path(fnpipe.__file__).parent
WITH_EXAMPLES = [
    ".".join(("fnpipe", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text()
]


def test_examples_in_docstrings():
    counts = [doctest.testmod(importlib.import_module(name)) for name in WITH_EXAMPLES]
    assert sum(c.attempted for c in counts) >= 3
    assert sum(c.failed for c in counts) == 0
