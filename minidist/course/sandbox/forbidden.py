"""Forbids the library's own answers while a learner's answer runs: calling their functions, reading their source."""

import os
import sys
import types
from contextlib import contextmanager
from inspect import unwrap

from minidist.course.answers import ROOT
from minidist.course.sandbox.violations import LibraryAnswer

FOLDERS = tuple(str(ROOT / name) + os.sep for name in ("solutions", "tests"))


@contextmanager
def forbidden_functions(entries: tuple[str, ...]):
    """Make every function of these modules raise ``LibraryAnswer`` inside the ``with`` block, however it was imported.

    Args:
        entries: "module" forbids all functions of a module, "module:name" only the function or class of that name.
    """
    original_code = {}
    for entry in entries:
        name, _, member = entry.partition(":")
        __import__(name)
        for function in _functions_of(sys.modules[name], member):
            if not function.__code__.co_freevars:  # Python refuses to exchange code that has captured variables
                original_code[function] = function.__code__
    for function in original_code:
        function.__code__ = _refuse.__code__.replace(co_name=function.__qualname__)
    try:
        yield
    finally:
        for function, code in original_code.items():
            function.__code__ = code


def _functions_of(module: types.ModuleType, member: str = ""):
    """The functions that a module defines, including methods and decorated functions; or those of one member."""
    members = {member: vars(module)[member]} if member else vars(module)
    classes = [value for value in members.values() if isinstance(value, type) and value.__module__ == module.__name__]
    for attributes in (members, *map(vars, classes)):
        for value in list(attributes.values()):
            function = unwrap(value.__func__ if isinstance(value, staticmethod | classmethod) else value)
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                yield function


def _refuse(*args, **kwargs):
    import sys  # this code runs in place of another module's functions and sees only that module's globals

    from minidist.course.sandbox.violations import LibraryAnswer

    name = sys._getframe().f_code.co_name
    raise LibraryAnswer(f"the answer calls minidist's own {name}, which is forbidden in this task")


_files: tuple[str, ...] = ()  # paths, and prefixes of paths, that may not be opened now


@contextmanager
def forbidden_files(entries: tuple[str, ...]):
    """Refuse to open or import the solutions, the graders and the source of these modules inside the ``with`` block."""
    global _files
    before = _files
    names = {entry.partition(":")[0] for entry in entries}
    _files = (*FOLDERS, *(sys.modules[name].__file__ for name in names if name in sys.modules))
    try:
        yield
    finally:
        _files = before


def _audit(event: str, arguments: tuple) -> None:
    if event != "open" or not _files or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.path.realpath(os.fsdecode(arguments[0]))
    if path.startswith(_files):
        raise LibraryAnswer(f"the answer reads {os.path.relpath(path, ROOT)}, which holds the library's own answer")


sys.addaudithook(_audit)
