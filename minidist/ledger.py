"""Memory that one rank holds: bytes of parameters, gradients, optimizer state and activations, now and at peak.

``enter(kind, array)`` is called where an array is created or saved; the entry disappears when the array is freed. So
the ledger counts the arrays that really exist, each once: a view counts as its base array, and an array that is entered
twice keeps its first kind (a parameter that is saved for backward is not an activation).

Temporary arrays within an operation and message buffers are not entered.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

KINDS = ("parameters", "gradients", "optimizer", "activations")


def _nothing() -> dict[str, int]:
    return dict.fromkeys(KINDS, 0)


@dataclass
class Memory:
    """Bytes of one rank, by kind."""

    held: dict[str, int] = field(default_factory=_nothing)  # now
    peaks: dict[str, int] = field(default_factory=_nothing)  # of each kind, each at its own time
    at_peak: dict[str, int] = field(default_factory=_nothing)  # by kind, when the total was highest
    total: int = 0
    peak: int = 0  # the highest total
    watch: "Callable[[Memory], None] | None" = None  # called after each change

    def change(self, kind: str, nbytes: int) -> None:
        self.total += nbytes
        self.held[kind] = held = self.held[kind] + nbytes
        if held > self.peaks[kind]:
            self.peaks[kind] = held
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, dict(self.held)
        if self.watch is not None:
            self.watch(self)

    def forget_peaks(self) -> None:
        """Restart the peaks from the present values."""
        self.peaks, self.at_peak, self.peak = dict(self.held), dict(self.held), self.total

    def as_dict(self) -> dict[str, int]:
        """Return each kind's own peak and the peak of the total, as ``--json`` writes them."""
        return self.peaks | {"peak": self.peak}


_memory: Memory | None = None  # of the open ledger
_entries: dict[int, weakref.ref] = {}  # id of an array in it -> a reference with a callback for when it is freed
_lock = threading.RLock()  # reentrant: an array may be freed at any point


def start(watch: Callable[[Memory], None] | None = None) -> Memory:
    """Open a new, empty ledger in this rank, and return its Memory.

    ``watch(memory)`` is called after each change. It must not enter arrays itself.
    """
    global _memory, _entries
    _memory, _entries = Memory(watch=watch), {}
    return _memory


def stop() -> None:
    """Close the ledger."""
    global _memory
    _memory = None


def enter(kind: str, array):
    """Enter an array, if a ledger is open, and return it.

    Args:
        kind: one of KINDS.
        array: counted until it is freed; a view counts as its base array.
    """
    memory, entries = _memory, _entries
    if memory is None:
        return array
    base = owner(array)
    key, nbytes = id(base), base.nbytes

    def release(_) -> None:
        with _lock:
            del entries[key]
            memory.change(kind, -nbytes)

    with _lock:
        if key not in entries:
            entries[key] = weakref.ref(base, release)
            memory.change(kind, nbytes)
    return array


def owner(array):
    """Return the array that owns this one's memory."""
    while isinstance(array.base, type(array)):
        array = array.base
    return array
