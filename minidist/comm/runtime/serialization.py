"""Functions and their arguments travel to the ranks by value, with dill.

A function defined in a script or a notebook cell has no module that a rank could import, so its code travels,
with the globals that it uses. Modules travel by name; dill by itself would send the contents of any module outside
Python's own folders, such as an editable install.
"""

import importlib
import io
from types import ModuleType

import dill


class _Pickler(dill.Pickler):
    dispatch = dill.Pickler.dispatch.copy()

    def _save_module_by_name(self, module: ModuleType) -> None:
        self.save_reduce(importlib.import_module, (module.__name__,), obj=module)

    dispatch[ModuleType] = _save_module_by_name


def dumps(thing) -> bytes:
    """The bytes of any function and everything it refers to."""
    buffer = io.BytesIO()
    _Pickler(buffer, recurse=True).dump(thing)
    return buffer.getvalue()


loads = dill.loads
