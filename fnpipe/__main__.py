"""``python -m fnpipe``: the commands of :mod:`fnpipe.cli`."""

import sys

from fnpipe.cli import main as main


if __name__ == "__main__":
    sys.exit(main())
