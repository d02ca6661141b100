"""Where what is built for a machine is kept."""

import os
import stat
from pathlib import Path

from fnpipe.types import NumericsError


def cache_folder() -> Path:
    """Where packages are kept: ``$XDG_CACHE_HOME/fnpipe``, made private to the user.

    It holds code that workers load and run. Errors: NumericsError where there can be none, and
    where somebody else owns it or may write to it.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "fnpipe"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NumericsError(
            f"no folder for packages at {folder} ({error}): set XDG_CACHE_HOME to one that you may "
            "write to, or use backend='eager'"
        ) from error
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NumericsError(
            f"{folder} holds code and must belong to you alone (owner {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):o}): run chmod 700 on it, or set XDG_CACHE_HOME"
        )
    return folder
