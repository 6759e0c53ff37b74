"""Turns, for ranks that are threads of one process: one of them computes at a time, with what it has for itself.

A process has modules of its own, so a rank may keep its state in them: the modes that stand, a log, a ledger, counts.
Threads share all modules. So a rank that is a thread takes a turn to compute, and hands it on where it waits. Each time
the values of the names in ``OWN`` are exchanged for those of the rank whose turn it is.

Where ranks are processes nobody takes a turn, and nothing here does anything.
"""

import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from copy import copy

OWN = {  # module -> names whose values each rank has for itself; it begins with copies of the process's
    "minidist.comm.runtime.starting": ("rank_here",),
    "minidist.flops": ("_counts", "_phase"),
    "minidist.ledger": ("_memory", "_entries"),
    "minidist.nn.modes": ("standing",),
    "minidist.nn.tensor": ("_grad_enabled",),
    "minidist.overrides": ("calls", "_overrides"),
    "minidist.trace": ("log", "_watch"),
}
_turn = threading.Lock()
_whose: Hashable = None  # the rank whose values the modules have; None: the process's own
_values: dict[Hashable, dict[tuple[str, str], object]] = {}  # those of all others
_here = threading.local()


def _take(rank: Hashable, seconds: float = -1) -> bool:
    """Wait for the turn, and put the rank's values in place; returns False if it did not come in time."""
    global _whose
    if not _turn.acquire(timeout=seconds):
        return False
    if rank != _whose:
        there = {name: vars(sys.modules[name]) for name in OWN if name in sys.modules}
        _values[_whose] = {(module, name): there[module][name] for module in there for name in OWN[module]}
        usual = {place: copy(value) for place, value in _values[None].items()} if rank not in _values else {}
        for (module, name), value in _values.pop(rank, usual).items():
            there[module][name] = value
        _whose = rank
    return True


def here() -> Hashable:
    """The rank that the calling thread has a turn as; None where ranks are processes."""
    return getattr(_here, "rank", None)


@contextmanager
def taken(rank: Hashable) -> Iterator[None]:
    """Have the turn within it, in a thread of this rank; None where ranks are processes."""
    if rank is None:
        yield
        return
    _take(rank)
    _here.rank = rank
    try:
        yield
    finally:
        _here.rank = None
        _turn.release()


@contextmanager
def away() -> Iterator[None]:
    """Leave the turn to others within it: the calling thread waits there."""
    rank = here()
    if rank is None:
        yield
        return
    _turn.release()
    try:
        yield
    finally:
        _take(rank)


def end(seconds: float) -> None:
    """Put the process's own values back, once no rank computes any longer, and forget those of the ranks.

    Raises:
        RuntimeError: if one still computes after so many seconds.
    """
    if not _take(None, seconds):
        raise RuntimeError("a rank computes on, and nobody can end a thread: restart Python")
    _values.clear()
    _turn.release()
