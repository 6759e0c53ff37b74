"""Running a learner's code inside a rank, so that an accident or a trick there does not reach the next task.

Answers run in ranks only, never in the process that judges them: whatever they patch, print, exit or kill, the judge
compares what came back with its own, untouched NumPy. Inside the rank ``guarded``

- puts back what was replaced in minidist, NumPy and the builtins, and says so;
- closes the modules that hold the library's own answers;
- ends processes that the answer forks, and says so;
- lets a limited amount of printing through.

This is no sandbox: code that means harm can undo all of it. docs/grading.md says how to add one.
"""

import builtins
import linecache
import os
import sys
import types
from contextlib import contextmanager
from inspect import unwrap

import numpy as np

PRINTED_CHARACTERS = 20_000


class LibraryAnswer(RuntimeError):
    """The answer calls the library's own, which the task asks the learner to write."""


class Tampering(RuntimeError):
    """The answer replaces functions of Python, NumPy or minidist."""


class Exited(RuntimeError):
    """The answer ends the process with exit()."""


class Forked(RuntimeError):
    """The answer starts processes of its own."""


@contextmanager
def guarded(closed: tuple[str, ...], remarks: list[str]):
    """Run what stands within under the rules above. What is noticed, but does not fail the task, goes to ``remarks``.

    Raises:
        Tampering, LibraryAnswer, Forked: for a breach of the rules.
    """
    before, outputs, forks = _functions_now(), (sys.stdout, sys.stderr), _forks.count
    streams = [_Limited(output, remarks) for output in outputs]
    _forks.forbidden = True
    sys.stdout, sys.stderr = streams
    try:
        with _closed(closed):
            yield
    except SystemExit as error:
        raise Exited(f"the answer ends the process: exit({error.code!r})") from error
    finally:
        _forks.forbidden = False
        sys.stdout, sys.stderr = outputs
        replaced = _put_back(before)
    if replaced:
        raise Tampering(f"the answer replaces {', '.join(replaced)}")
    if _forks.count > forks:
        raise Forked("the answer starts processes with os.fork, which no task needs; they were ended")


def load(source, closed: tuple[str, ...], remarks: list[str]) -> types.ModuleType:
    """Run the text of a file of answers as a module, and return it."""
    module = types.ModuleType(source.name)
    module.__file__ = source.path
    keep_lines(source)
    replaced: list[str] = []
    try:
        with guarded((), remarks):
            exec(compile(source.text, source.path, "exec"), module.__dict__)
    except Tampering as error:  # it was put back, so what the file defines can be judged fairly
        replaced.append(f"{source.name}.py: {error}; it was put back")
    remarks += replaced
    return module


def keep_lines(source) -> None:
    """Let tracebacks quote the file even when it is gone."""
    linecache.cache[source.path] = (len(source.text), None, source.text.splitlines(keepends=True), source.path)


# What is replaced


def _functions_now() -> dict[tuple[str, str, str], object]:
    """(module, class or "", name) -> every function and class of minidist, NumPy's top level and the builtins."""
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "minidist"}
    modules |= {"numpy": np, "builtins": builtins}
    found = {}
    for module_name, module in modules.items():
        for name, value in list(vars(module).items()):
            if callable(value):
                found[module_name, "", name] = value
            if isinstance(value, type) and value.__module__ == module_name and module_name not in ("builtins", "numpy"):
                for attribute, member in list(vars(value).items()):
                    if callable(member) or isinstance(member, property | staticmethod | classmethod):
                        found[module_name, name, attribute] = member
    return found


def _put_back(before: dict) -> list[str]:
    """Restore what differs from ``before``, and return the names of it."""
    replaced = []
    for (module_name, class_name, name), value in before.items():
        owner = sys.modules.get(module_name) if module_name != "builtins" else builtins
        if class_name:
            owner = before[module_name, "", class_name]
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)
            replaced.append(".".join(filter(None, (module_name, class_name, name))))
    return replaced


# The library's own answers


@contextmanager
def _closed(modules: tuple[str, ...]):
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

    from minidist.course.guard import LibraryAnswer

    name = sys._getframe().f_code.co_name
    raise LibraryAnswer(f"the answer calls minidist's own {name}: this task asks you to write it yourself")


# Processes


class _Forks:
    """os.fork while an answer runs: the child ends at once, and the parent's rank is told."""

    def __init__(self) -> None:
        self.forbidden, self.count = False, 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        self.count += self.forbidden

    def _in_child(self) -> None:
        if self.forbidden:
            os._exit(1)


_forks = _Forks()


# Printing


class _Limited:
    """A stream that drops what goes beyond the limit."""

    def __init__(self, stream, remarks: list[str]) -> None:
        self._stream, self._remarks, self._left = stream, remarks, PRINTED_CHARACTERS

    def write(self, text: str) -> int:
        if self._left > 0:
            self._stream.write(text[: self._left])
            if len(text) > self._left:
                self._stream.write(
                    f"\n[more than {PRINTED_CHARACTERS:,} characters were printed; the rest is dropped]\n"
                )
                self._remarks.append(f"printed more than {PRINTED_CHARACTERS:,} characters; the rest was dropped")
        self._left -= len(text)
        return len(text)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)
