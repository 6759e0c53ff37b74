"""``python -m minidist.cli``: the command, where it is not on the path."""

import sys

from minidist.cli import program

if __name__ == "__main__":
    sys.exit(program())
