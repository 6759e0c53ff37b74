"""Loads a file of answers as a module."""

import linecache
import sys
import types

from minidist.course.answers import Source
from minidist.course.sandbox.forbidden import forbidden_files
from minidist.course.sandbox.guard import guarded
from minidist.course.sandbox.violations import Tampering


def load(source: Source, forbidden: tuple[str, ...], remarks: list[str]) -> types.ModuleType:
    """The module that a file of answers makes, run under the rules of ``guarded``.

    What the file replaces while it loads is restored and becomes a remark: its functions can still be judged fairly.
    """
    modules: list[types.ModuleType] = []
    try:
        with guarded((), remarks), forbidden_files(forbidden):
            modules.append(run_file(source))
    except Tampering as error:
        remarks.append(f"{source.name}.py: {error}; it was restored")
    return modules[0]


def run_file(source: Source) -> types.ModuleType:
    """The module that the text of a file of answers makes, whether or not the file still exists."""
    module = types.ModuleType(source.name)
    module.__file__ = source.path
    linecache.cache[source.path] = (len(source.text), None, source.text.splitlines(keepends=True), source.path)
    before = sys.modules.get(source.name)
    sys.modules[source.name] = module  # a dataclass looks its module up while it is being defined
    try:
        exec(compile(source.text, source.path, "exec"), module.__dict__)
    finally:
        if before is None:
            sys.modules.pop(source.name, None)
        else:
            sys.modules[source.name] = before
    return module
