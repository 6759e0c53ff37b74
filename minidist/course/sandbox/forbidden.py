"""The rules for answers, and the hooks that enforce them while an answer runs in a rank.

A broken rule is an exception, which fails the task and appears in the remarks. The library's own answers can be neither
called nor read, other programs do not start, forks end at once, and in some challenges ranks exchange data only by
messages. Python reports such events to audit hooks (https://docs.python.org/3/library/audit_events.html).
"""

import importlib
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import cache
from inspect import unwrap
from typing import NoReturn

from minidist.course.answers import ROOT

try:  # multiprocessing uses these to start processes and open shared memory, and audit hooks do not notice
    import _posixshmem
    import _posixsubprocess
except ImportError:  # on Windows
    _posixshmem = _posixsubprocess = None


class LibraryAnswer(RuntimeError):
    """The answer calls or reads the library's own implementation of what the learner should write."""


class Tampering(RuntimeError):
    """The answer replaces functions of Python, NumPy or minidist."""


class Exited(RuntimeError):
    """The answer ends the process with exit()."""


class Forked(RuntimeError):
    """The answer starts processes of its own."""


class StartsProgram(RuntimeError):
    """The answer starts another program."""


VIOLATIONS = (LibraryAnswer, Tampering, Exited, Forked, StartsProgram)


PROGRAMS = {"subprocess.Popen", "os.system", "os.posix_spawn", "os.spawn", "os.exec", "os.startfile", "pty.spawn"}
CHANNELS = {"socket.bind", "socket.connect", "socket.sendto", "mmap.__new__", "os.mkdir", "os.rename", "os.link"}
CHANNELS |= {"os.symlink", "os.mkfifo", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
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
    """Return function -> (its code, the code that refuses in its place)."""
    found = {}
    for entry in entries:
        name, _, member = entry.partition(":")
        for function in _functions_of(importlib.import_module(name), member):
            code = function.__code__
            if code.co_freevars in ((), ("__class__",)):  # methods that a dataclass generates have others
                refusing = _refuse.__code__.replace(co_name=function.__qualname__, co_freevars=code.co_freevars)
                found[function] = code, refusing
    return found


def _functions_of(module: types.ModuleType, member: str = ""):
    """Yield the functions that a module defines, or one member of it, including methods and decorated functions."""
    members = {member: vars(module)[member]} if member else vars(module)
    classes = [value for value in members.values() if isinstance(value, type) and value.__module__ == module.__name__]
    for attributes in (members, *map(vars, classes)):
        for value in list(attributes.values()):
            function = unwrap(value.__func__ if isinstance(value, staticmethod | classmethod) else value)
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                yield function


def _refuse(*args, **kwargs):
    import sys  # this code runs in place of another module's functions and sees only that module's globals

    from minidist.course.sandbox.forbidden import LibraryAnswer

    name = sys._getframe().f_code.co_name
    raise LibraryAnswer(f"the answer calls minidist's own {name}, which is forbidden in this task")


_paths: tuple[str, ...] = ()  # paths, and prefixes of paths, that may not be opened now
_files: frozenset[tuple[int, int]] = frozenset()  # (device, inode) of those files, whatever name one is opened under


@contextmanager
def forbidden_files(entries: tuple[str, ...]):
    """Refuse to open or import the solutions, the graders and the source of these modules inside the ``with`` block."""
    global _paths, _files
    before = _paths, _files
    specs = [sys.modules[name].__spec__ for name in dict.fromkeys(entry.partition(":")[0] for entry in entries)]
    sources = [path for spec in specs for path in (spec.origin, spec.cached) if path]  # pyright: ignore[reportOptionalMemberAccess]  # all have one
    for path in sources:
        linecache.cache.pop(path, None)  # a traceback may have put the text there
    _paths, _files = (*FOLDERS, *sources), _courses_files() | _identities(sources)
    try:
        yield
    finally:
        _paths, _files = before


@cache
def _courses_files() -> frozenset[tuple[int, int]]:
    """Return the identities of all files in ``FOLDERS``."""
    return _identities(
        os.path.join(place, name) for top in FOLDERS for place, _, names in os.walk(top) for name in names
    )


def _identities(paths: Iterable[str]) -> frozenset[tuple[int, int]]:
    return frozenset(found for path in paths if (found := _identity(path)) is not None)


def _identity(file: str | bytes | os.PathLike | int) -> tuple[int, int] | None:
    """Return (device, inode) of a path or a file descriptor; None if there is no such file."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


_refused = {"programs": False, "channels": False}  # what is refused now
_programs: list[str] = []  # the calls that were refused since the last reset
_forks = 0


@contextmanager
def _refusing(what: str, module: types.ModuleType | None, name: str, refuse: Callable[[], NoReturn]):
    """Refuse programs or channels inside the ``with`` block, also in a C function that calls no audit hook."""
    function = getattr(module, name, None)
    if function is not None:
        setattr(module, name, lambda *_, **__: refuse())
    _refused[what] = True
    try:
        yield
    finally:
        _refused[what] = False
        if function is not None:
            setattr(module, name, function)


@contextmanager
def no_processes():
    """Refuse processes inside the ``with`` block.

    Raises:
        StartsProgram, Forked: also at the end of the block, if the answer has caught the first exception.
    """
    global _forks
    _programs.clear()
    _forks = 0
    with _refusing("programs", _posixsubprocess, "fork_exec", lambda: _refuse_program("multiprocessing")):
        yield
    if _programs:
        _refuse_program(_programs[0])
    if _forks:
        raise Forked("the answer starts processes with os.fork, which no task needs; they were ended")


def _refuse_program(call: str) -> NoReturn:
    _programs.append(call)
    raise StartsProgram(f"the answer starts a program with {call}, which no task needs")


@contextmanager
def no_side_channels():
    """Refuse sockets, shared memory and writing files inside the ``with`` block: the score counts only messages.

    Raises:
        Tampering: for a call that is refused.
    """
    writes_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # the answer's first import of a module writes no file
    try:  # refused before there is a segment to remove
        with _refusing("channels", _posixshmem, "shm_open", lambda: _refuse_channel("shared memory")):
            yield
    finally:
        sys.dont_write_bytecode = writes_bytecode


def _refuse_channel(channel: str) -> NoReturn:
    raise Tampering(f"the answer passes data on with {channel}: only messages count, so only messages may be used")


def _audit(event: str, arguments: tuple) -> None:
    if event == "open" and _paths and isinstance(arguments[0], str | bytes | os.PathLike | int):
        _check_file(arguments[0])
    if _refused["programs"] and event in PROGRAMS:
        _refuse_program(event)
    if _refused["channels"]:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if writes or event in CHANNELS:
            _refuse_channel(event)


def _check_file(file: str | bytes | os.PathLike | int) -> None:
    path = str(file) if isinstance(file, int) else os.path.realpath(os.fsdecode(file))
    if path.startswith(_paths) or _identity(file) in _files:
        name = os.path.relpath(path, ROOT) if path.startswith(_paths) else f"a file under the name {path!r}"
        raise LibraryAnswer(f"the answer reads {name}, which holds the library's own answer")


def _before_fork() -> None:
    global _forks
    _forks += _refused["programs"]


def _after_fork_in_child() -> None:
    if _refused["programs"]:
        os._exit(1)


sys.addaudithook(_audit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
