"""Functions and their arguments travel to the ranks by value, with dill.

A function defined in a script or a notebook cell has no module that a rank could import, so its code travels,
with the globals that it uses. In a worker of ``multiprocessing`` the script is called ``__mp_main__``; in a rank
something else has the name, so it is hidden from dill. Modules travel by name; dill by itself would send the contents
of any module outside Python's own folders, such as an editable install. Code travels as Python itself writes it to a
.pyc file: dill takes it apart by names that Python 3.15 no longer has.
"""

import importlib
import io
import marshal
import os
import pickle
import sys
import threading
from types import CodeType, ModuleType
from typing import Any

import dill

SCRIPT_OF_WORKER = "__mp_main__"
_hiding = threading.RLock()  # reentrant: an object that is garbage-collected meanwhile may print

if hasattr(os, "register_at_fork"):  # another thread may hold it during a fork
    os.register_at_fork(after_in_child=_hiding._at_fork_reinit)  # pyright: ignore[reportAttributeAccessIssue]  # hidden


class _Pickler(dill.Pickler):
    dispatch: Any = dill.Pickler.dispatch.copy()

    def _save_module_by_name(self: Any, module: ModuleType) -> None:
        self.save_reduce(importlib.import_module, (module.__name__,), obj=module)

    def _save_code(self: Any, code: CodeType) -> None:
        self.save_reduce(marshal.loads, (marshal.dumps(code),), obj=code)

    dispatch |= {ModuleType: _save_module_by_name, CodeType: _save_code}


def dumps(thing, what: str = "a report") -> bytes:
    """Return the bytes of any object, such as a function with everything it refers to.

    Raises:
        TypeError: for an object that cannot leave its process, such as a generator. The message calls it ``what``.
    """
    buffer = io.BytesIO()
    with _hiding:
        script = sys.modules.pop(SCRIPT_OF_WORKER, None)
        try:
            _Pickler(buffer, recurse=True).dump(thing)
        except (AttributeError, TypeError, ValueError, pickle.PicklingError) as error:
            raise TypeError(f"{what} cannot be sent to another process: {error}") from None
        finally:
            if script is not None:
                sys.modules[SCRIPT_OF_WORKER] = script
    return buffer.getvalue()


loads = dill.loads
