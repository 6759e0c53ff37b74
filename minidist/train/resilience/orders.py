"""Faults that somebody orders while a run goes on: a file for each rank, which the rank looks for at each step.

The files cross from the process that shows a run (``minidist train --watch``) to the ranks, whose queues carry nothing
from the parent once they train. An order that is not taken yet is replaced by the next one.
"""

import os
from pathlib import Path

CURE = "cure"  # a slow rank is as fast as before
ORDERS = ("slow:3", CURE, "kill", "raise", "hang", "flip:weights")


def order(folder: str | Path, rank: int, what: str) -> None:
    """Order a fault for a rank's next step: one of ORDERS.

    Raises:
        ValueError: for another word.
    """
    if what not in ORDERS:
        raise ValueError(f"no fault {what!r} can be ordered while a run goes on: choose from {', '.join(ORDERS)}")
    written = Path(folder, f"new{rank}")
    written.write_text(what)
    os.replace(written, Path(folder, f"rank{rank}"))  # at once, so that no rank reads half of it


def take_order(folder: str | Path, rank: int) -> str | None:
    """What has been ordered for a rank since it last asked."""
    taken = Path(folder, f"taken{rank}")
    try:
        os.replace(Path(folder, f"rank{rank}"), taken)
    except FileNotFoundError:
        return None
    what = taken.read_text()
    taken.unlink()
    return what
