"""Sockets: library functions that a learner's own may stand in for.

``@socket`` marks such a function. Whoever calls it, under whatever name it was imported, gets the function that is
plugged in at that moment, or the library's own where none is. Nothing else in the library knows.
"""

from collections import Counter
from collections.abc import Callable
from functools import wraps

SOCKETS: dict[str, Callable] = {}  # every socket by its name
calls: Counter[str] = Counter()  # in this process, of what was plugged in
_plugged: dict[str, Callable] = {}


def socket(own: Callable) -> Callable:
    """Mark a function, or a class that is called to make an object, as one that ``plug`` may replace by its name."""
    name = own.__name__

    @wraps(own)
    def call(*args, **kwargs):
        standing_in = _plugged.get(name)
        if standing_in is None:
            return own(*args, **kwargs)
        calls[name] += 1
        return standing_in(*args, **kwargs)

    SOCKETS[name] = call
    return call


def plug(functions: dict[str, Callable]) -> None:
    """From now on, in this process, call these functions in place of the library's own of the same names.

    Raises:
        KeyError: for a name that no socket has.
    """
    for name in functions:
        if name not in SOCKETS:
            raise KeyError(f"there is no socket {name!r}; there are {', '.join(sorted(SOCKETS))}")
    _plugged.clear()
    _plugged.update(functions)
    calls.clear()
