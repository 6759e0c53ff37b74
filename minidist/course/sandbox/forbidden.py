"""While an answer runs, the library's own answers are closed: their functions refuse to run, their files to be read."""

import os
import sys
import types
from contextlib import contextmanager
from inspect import unwrap

from minidist.course.answers import ROOT
from minidist.course.sandbox.violations import LibraryAnswer

FOLDERS = tuple(str(ROOT / name) + os.sep for name in ("solutions", "tests"))


@contextmanager
def closed_functions(modules: tuple[str, ...]):
    """While it is entered, every function of these modules refuses to be called, however it was imported.

    "module:name" closes only the function, or the class, of that name.
    """
    opened = {}
    for entry in modules:
        name, _, part = entry.partition(":")
        __import__(name)
        for function in _functions_of(sys.modules[name], part):
            if not function.__code__.co_freevars:  # code with captured variables cannot be exchanged
                opened[function] = function.__code__
    for function in opened:
        function.__code__ = _refuse.__code__.replace(co_name=function.__qualname__)
    try:
        yield
    finally:
        for function, code in opened.items():
            function.__code__ = code


def _functions_of(module: types.ModuleType, part: str = ""):
    """The functions that a module defines, also those in its classes and under decorators; or those of one part."""
    members = {part: vars(module)[part]} if part else vars(module)
    classes = [value for value in members.values() if isinstance(value, type) and value.__module__ == module.__name__]
    for attributes in (members, *map(vars, classes)):
        for value in list(attributes.values()):
            function = unwrap(value.__func__ if isinstance(value, staticmethod | classmethod) else value)
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                yield function


def _refuse(*args, **kwargs):
    import sys

    from minidist.course.sandbox.violations import LibraryAnswer

    name = sys._getframe().f_code.co_name
    raise LibraryAnswer(f"the answer calls minidist's own {name}, which this task has to do without")


_files: tuple[str, ...] = ()  # that may not be opened now


@contextmanager
def closed_files(modules: tuple[str, ...]):
    """While it is entered, the solutions, the graders and the source of these modules cannot be opened or imported."""
    global _files
    before = _files
    names = {entry.partition(":")[0] for entry in modules}
    _files = (*FOLDERS, *(sys.modules[name].__file__ for name in names if name in sys.modules))
    try:
        yield
    finally:
        _files = before


def _watch(event: str, arguments: tuple) -> None:
    if event != "open" or not _files or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.path.realpath(os.fsdecode(arguments[0]))
    if path.startswith(_files):
        raise LibraryAnswer(f"the answer reads {os.path.relpath(path, ROOT)}, where the library's own answer is")


sys.addaudithook(_watch)
