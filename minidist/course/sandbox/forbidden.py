"""Forbids the library's own answers while a learner's answer runs: calling their functions, reading their source."""

import importlib
import linecache
import os
import sys
import types
from collections.abc import Iterable
from contextlib import contextmanager
from functools import cache
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
    functions = _forbidden_functions(entries)
    for function, (_, refusing) in functions.items():
        function.__code__ = refusing
    try:
        yield
    finally:
        for function, (original, _) in functions.items():
            function.__code__ = original


@cache
def _forbidden_functions(entries: tuple[str, ...]) -> dict[types.FunctionType, tuple[types.CodeType, types.CodeType]]:
    """function -> its code, and the code that refuses in its place."""
    found = {}
    for entry in entries:
        name, _, member = entry.partition(":")
        for function in _functions_of(importlib.import_module(name), member):
            code = function.__code__
            if code.co_freevars in ((), ("__class__",)):  # the methods that a dataclass gets have others
                refusing = _refuse.__code__.replace(co_name=function.__qualname__, co_freevars=code.co_freevars)
                found[function] = code, refusing
    return found


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


_paths: tuple[str, ...] = ()  # paths, and prefixes of paths, that may not be opened now
_files: frozenset[tuple[int, int]] = frozenset()  # the same as (device, inode), whatever name a file is opened under


@contextmanager
def forbidden_files(entries: tuple[str, ...]):
    """Refuse to open or import the solutions, the graders and the source of these modules inside the ``with`` block."""
    global _paths, _files
    before = _paths, _files
    modules = [sys.modules[name] for name in dict.fromkeys(entry.partition(":")[0] for entry in entries)]
    sources = [path for module in modules for path in (module.__file__, module.__spec__.cached) if path]
    for path in sources:
        linecache.cache.pop(path, None)  # a traceback may have put the text there
    _paths, _files = (*FOLDERS, *sources), _courses_files() | _identities(sources)
    try:
        yield
    finally:
        _paths, _files = before


@cache
def _courses_files() -> frozenset[tuple[int, int]]:
    """The identities of all files in ``FOLDERS``."""
    return _identities(
        os.path.join(place, name) for top in FOLDERS for place, _, names in os.walk(top) for name in names
    )


def _identities(paths: Iterable[str]) -> frozenset[tuple[int, int]]:
    return frozenset(found for path in paths if (found := _identity(path)) is not None)


def _identity(file: str | bytes | os.PathLike | int) -> tuple[int, int] | None:
    """(device, inode) of a path or a file descriptor; None if there is no such file."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _audit(event: str, arguments: tuple) -> None:
    if event != "open" or not _paths or not isinstance(arguments[0], str | bytes | os.PathLike | int):
        return
    file = arguments[0]
    path = str(file) if isinstance(file, int) else os.path.realpath(os.fsdecode(file))
    if path.startswith(_paths) or _identity(file) in _files:
        name = os.path.relpath(path, ROOT) if path.startswith(_paths) else f"a file under the name {path!r}"
        raise LibraryAnswer(f"the answer reads {name}, which holds the library's own answer")


sys.addaudithook(_audit)
