"""``python -m minidist.cli`` runs the command ``minidist`` even if it is not on the PATH."""

import sys

from minidist.cli import program

if __name__ == "__main__":
    sys.exit(program())
