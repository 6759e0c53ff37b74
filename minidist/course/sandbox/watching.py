"""Watches the calls of an answer for faults that right values hide.

A test sees values at one moment. An answer can be right then, and wrong in a training loop, which calls it again and
again and reuses its arrays. So around every call of a learner's function by a grader:

- what it returns must not share memory with what it was lent, unless its contract says so;
- no array of an earlier call may change, returned or lent, and neither an array nor a list, dict or set may be returned
  again: they belong to the caller, who may change them.

And before the grader's next run, whatever the answer was lent is overwritten: it must not be read any more.
"""

import tracemalloc
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

EARLIER_ARRAYS = 16  # arrays of earlier calls that are checked again
EARLIER_CONTAINERS = 256  # the same for lists, dicts and sets
SMALL = 1 << 16  # elements; larger arrays are not kept


class WatchedAnswers:
    """A module of answers whose functions are watched. Everything else is the module's own.

    The results of ``shared`` functions may be, or refer to, arrays that they were lent.
    """

    def __init__(self, module: types.ModuleType, shared: tuple[str, ...]) -> None:
        vars(self).update(_module=module, _shared=shared, _earlier=deque(maxlen=EARLIER_ARRAYS), _lent=[], _replaced={})
        vars(self).update(_containers=deque(maxlen=EARLIER_CONTAINERS))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if callable(value) and not isinstance(value, type):  # also one that functools.cache has wrapped
            return lambda *args, **kwargs: self._call(name, value, args, kwargs)
        return value

    def __setattr__(self, name: str, value) -> None:
        """Replace a function for this run, also in calls by the learner's other functions."""
        self._replaced.setdefault(name, getattr(self._module, name))
        setattr(self._module, name, value)

    def begin_run(self) -> None:
        """Undo the grader's previous run: restore the functions that it replaced, overwrite the arrays that it lent."""
        for name, value in self._replaced.items():
            setattr(self._module, name, value)
        self._replaced.clear()
        for array in self._lent:
            if array.flags.writeable and array.dtype.kind in "biufc":
                array.fill(77)
        self._lent.clear()

    def _call(self, name: str, function: Callable, args: tuple, kwargs: dict):
        if tracemalloc.is_tracing():  # the copies made here would count as the answer's memory
            return function(*args, **kwargs)
        lent, containers_lent = _changeable_in((args, kwargs))
        before = [(array, array.copy()) for array in self._earlier if not _shares(array, lent)]
        result = function(*args, **kwargs)
        returned, containers = _changeable_in(result)
        made = [one for one in containers if not _is_in(one, containers_lent)]
        for array, copy in before:
            assert _same_bytes(array, copy), (
                f"{name} changes an array of an earlier call, which belongs to its caller: make new arrays in each call"
            )
        if name not in self._shared:
            assert not any(_shares(array, lent) for array in returned), (
                f"{name} returns an array that shares memory with its arguments: return a new one"
            )
            for array, _ in before:
                assert not _shares(array, returned), (
                    f"{name} returns memory of an array of an earlier call, which belongs to its caller: make new "
                    "arrays in each call"
                )
            for container in made:
                assert not _is_in(container, self._containers), (
                    f"{name} returns the same {type(container).__name__} in two calls, although the caller of the "
                    "first may change it: make a new one in each call"
                )
        self._containers.extend(made)
        self._lent.extend(lent)
        self._earlier.extend(array for array in (*returned, *lent) if array.size <= SMALL)
        return result


def _changeable_in(value) -> tuple[list[np.ndarray], list[list | dict | set]]:
    """Return the arrays, and the lists, dicts and sets, that a value consists of. Tuples cannot change."""
    parts = list(_parts_of(value))
    return [p for p in parts if isinstance(p, np.ndarray)], [p for p in parts if isinstance(p, list | dict | set)]


def _parts_of(value) -> Iterator:
    """Yield the value and all that is in its lists, tuples and dicts, at any depth."""
    yield value
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _parts_of(item)


def _is_in(container: list | dict | set, others: Iterable) -> bool:
    return any(container is other for other in others)


def _shares(array: np.ndarray, others: list[np.ndarray]) -> bool:
    return any(np.may_share_memory(array, other) and np.shares_memory(array, other) for other in others)


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()
