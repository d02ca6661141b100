"""The commands: ``demo``, ``preview``, ``explore``, ``check``, ``explain``, ``replay``, ``bench``,
``bill``. A command that is asked wrongly says in one line what to do, and exits with 2.
"""

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from fnpipe.cli import measure, show, tell
from fnpipe.types import ArgumentError, DataError, NumericsError


class OneLine(argparse.ArgumentParser):
    """A parser that refuses in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    top = OneLine("fnpipe", description="Training input with equal bytes anywhere.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (show, tell, measure):
        module.add_commands(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code: 0; 1 where ``check`` found problems; 2, after one
    line on stderr, for a fault of the user's or the data's; a shell's for one that is cut short."""
    options = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files and classes may be of any bytes
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = options.run(options) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # who reads has enough, as `head` has; what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ArgumentError, DataError, NumericsError, OSError) as error:
        print("fnpipe:", " ".join(str(error).split()), file=sys.stderr)
        return 2
