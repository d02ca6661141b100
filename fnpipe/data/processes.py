"""How to get on with other processes, a user's and those that are started here."""

import multiprocessing
import threading

from tqdm import tqdm

from fnpipe.types import ArgumentError


class Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument]
    """tqdm with a lock of its own process.

    Its usual one is shared with forks: a builder killed while it holds it would hang the others.
    And making it fixes how processes are started, which a script may want to choose later.
    """


Bar.set_lock(threading.RLock())


def check_main() -> None:
    """Errors: ArgumentError in a new process that is importing the script which started it.

    Python allows no process to be started then, since there would be no end of them; and a pool
    would wait for the one that its parent builds, which waits for this process.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ArgumentError(
            "a new process is importing the script that started it: begin what makes pools, or "
            "loops over a loader with workers, with if __name__ == '__main__':"
        )
