"""The folder of what was built for this machine, and the lock that lets one process build it."""

import contextlib
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep, time

from fnpipe.types import NumericsError


try:
    import fcntl
except ImportError:  # no POSIX: nobody waits, and each builds its own
    fcntl = None

POLL = 0.2
"""Seconds between looks at a lock that another process holds."""
STALE = 86_400.0
"""Seconds after which half-made files count as abandoned."""


def cache_folder() -> Path:
    """Where packages are kept: ``$XDG_CACHE_HOME/fnpipe``, made private to the user.

    It holds code that workers load and run. Errors: NumericsError where there can be none, and
    where somebody else owns it or may write to it.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "fnpipe")
    try:
        folder = folder.expanduser()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # a container's user may have no home
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


@contextlib.contextmanager
def turn(path: Path, *, wait: float, tell: Callable[[str], None]) -> Iterator[None]:
    """Wait while another process makes ``path``, ``wait`` seconds at most; then it is ours to make.

    Whoever makes it holds a lock, which ends with its process, however that ends. Where there are
    none, as on some network file systems, nobody waits. Either way the file may be there by now.
    ``tell`` gets who is waited for, once.
    """
    name, end, held = path.with_name(f".{path.name}.lock"), monotonic() + wait, None
    told = False
    while held is None and not path.exists() and monotonic() < end:
        try:
            held = _lock(name)
        except OSError:
            break
        if held is None:
            sleep(POLL)  # by then the lock names its holder
            if not told:
                told = True
                tell(_holder(name))
    try:
        yield
    finally:
        if held is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
            os.close(held)


def _lock(name: Path) -> int | None:
    """A descriptor that holds the lock ``name``, or None where another does. Errors: OSError."""
    if fcntl is None:
        raise OSError("no locks")
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Of the file, not of the process as lockf's: threads wait for each other, too.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(name)):
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _holder(name: Path) -> str:
    with contextlib.suppress(OSError):
        return name.read_text() or "another process"
    return "another process"


def sweep(folder: Path, *patterns: str) -> None:
    """Remove what builders that were killed left behind, a day ago or longer."""
    for item in (item for pattern in patterns for item in folder.glob(pattern)):
        with contextlib.suppress(OSError):
            if item.lstat().st_mtime < time() - STALE:
                shutil.rmtree(item) if item.is_dir() else item.unlink()
