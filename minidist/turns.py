"""Turns, for ranks that are threads of one process: one rank computes at a time, with values of its own.

A process has modules of its own, so a rank may keep its state in them: the active modes, a log, a ledger, counts.
Threads share all modules. So a rank that is a thread takes a turn to compute, and hands it on while it waits. At each
change the values of the names in ``OWN``, and what ranks have patched, are exchanged for those of the next rank.

Where ranks are processes nobody takes a turn, and the functions here do nothing.
"""

import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from copy import copy
from types import ModuleType

OWN = {  # module -> names whose values each rank has for itself; a rank begins with copies of the process's values
    "minidist.comm.runtime.starting": ("rank_here",),
    "minidist.flops": ("_counts", "_phase"),
    "minidist.ledger": ("_memory", "_entries"),
    "minidist.nn.modes": ("standing",),
    "minidist.nn.tensor": ("_grad_enabled",),
    "minidist.overrides": ("calls", "_overrides"),
    "minidist.trace": ("log", "_watch"),
}
Place = tuple[ModuleType | type, str]  # an attribute of a module or class
NOTHING = object()  # the value of a place that has none
_turn = threading.Lock()
_whose: Hashable = None  # the rank whose values the places have; None: the process's own
_values: dict[Hashable, dict[Place, object]] = {}  # the values of all others
_patched: dict[Place, object] = {}  # the value for ranks that have not patched the place
_here = threading.local()


def own(owner: object, name: str) -> None:
    """Let each rank have its own value of an attribute of a module or class. Call it before patching the attribute."""
    if here() is not None and isinstance(owner, ModuleType | type):
        _patched.setdefault((owner, name), vars(owner).get(name, NOTHING))


def _take(rank: Hashable, seconds: float = -1) -> bool:
    """Wait for the turn, and put the rank's values in place; return False if the turn did not come in time."""
    global _whose
    if not _turn.acquire(timeout=seconds):
        return False
    if rank != _whose:
        modules = {sys.modules[name]: names for name, names in OWN.items() if name in sys.modules}
        places = [(module, name) for module, names in modules.items() for name in names] + list(_patched)
        _values[_whose] = {(owner, name): vars(owner).get(name, NOTHING) for owner, name in places}
        if rank not in _values:
            _values[rank] = {place: copy(value) for place, value in _values[None].items() if place not in _patched}
        for (owner, name), value in (_patched | _values.pop(rank)).items():
            if value is not NOTHING:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)
        _whose = rank
    return True


def here() -> Hashable:
    """Return the rank for which the calling thread has the turn; None where ranks are processes."""
    return getattr(_here, "rank", None)


@contextmanager
def taken(rank: Hashable) -> Iterator[None]:
    """Have the turn within the ``with`` block, in a thread of this rank; None where ranks are processes."""
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
    """Leave the turn to others within the ``with`` block, in which the calling thread waits."""
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
        RuntimeError: if a rank still computes after ``seconds``.
    """
    if not _take(None, seconds):
        raise RuntimeError("a rank is still computing, and a thread cannot be killed: restart Python")
    _values.clear()
    _patched.clear()
    _turn.release()
