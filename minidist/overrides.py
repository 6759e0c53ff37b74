"""Overridable functions: functions of the library that user code can replace.

``@overridable`` marks such a function. Every caller, whatever name it imports it by, gets the override in force at that
moment, or the library's own function if there is none. So a run can train on a learner's solutions of the exercises
(``minidist train --impl``). Where a layout or a layer needs more than a task asks for, the axis takes the library's own
function, and says so there.
"""

from collections import Counter
from collections.abc import Callable
from functools import wraps

OVERRIDABLE: dict[str, Callable] = {}  # every overridable function by its name
calls: Counter[str] = Counter()  # of overrides, in this process
_overrides: dict[str, Callable] = {}


def overridable(own: Callable) -> Callable:
    """Mark a function, or a class, as one that ``override`` may replace by its name.

    A class itself stays as it is, and can be subclassed. The returned function makes an object of it, or of its
    override: ``grad_scaler = overridable(GradScaler)``.

    Raises:
        ValueError: if a function of another module has that name already: an override would replace both.
    """
    name = own.__name__
    if name in OVERRIDABLE and OVERRIDABLE[name].__module__ != own.__module__:
        raise ValueError(f"{own.__module__}.{name} and {OVERRIDABLE[name].__module__}.{name} need different names")

    @wraps(own)
    def call(*args, **kwargs):
        replacement = _overrides.get(name)
        if replacement is None:
            return own(*args, **kwargs)
        calls[name] += 1
        return replacement(*args, **kwargs)

    OVERRIDABLE[name] = call
    return call


def override(functions: dict[str, Callable]) -> None:
    """Have this process call these functions, from now on, in place of the library's own of the same names.

    Raises:
        KeyError: for a name that no overridable function has.
    """
    for name in functions:
        if name not in OVERRIDABLE:
            raise KeyError(f"no overridable function is called {name!r}; choose from {', '.join(sorted(OVERRIDABLE))}")
    _overrides.clear()
    _overrides.update(functions)
    calls.clear()
