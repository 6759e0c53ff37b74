"""Loads a file of answers as a module."""

import ast
import importlib
import linecache
import sys
import types
from contextlib import suppress
from functools import lru_cache

from minidist.course.answers import Source
from minidist.course.sandbox.guard import guarded
from minidist.course.sandbox.violations import Tampering


def load(source: Source, forbidden: tuple[str, ...], remarks: list[str]) -> types.ModuleType:
    """The module that a file of answers makes, run under the rules of ``guarded``.

    What the file replaces while it loads is restored and becomes a remark: its functions can still be judged fairly.
    """
    modules: list[types.ModuleType] = []
    import_library(source)  # now, since a module of the library may call what is forbidden while it is imported
    try:
        with guarded(forbidden, remarks):
            modules.append(run_file(source))
    except Tampering as error:
        remarks.append(f"{source.name}.py: {error}; it was restored")
    return modules[0]


def import_library(source: Source) -> None:
    """Import the modules of minidist that a file of answers imports anywhere."""
    for name in _compiled(source)[1]:
        with suppress(ImportError):  # the file's own import reports it
            importlib.import_module(name)


def run_file(source: Source) -> types.ModuleType:
    """The module that the text of a file of answers makes, whether or not the file still exists."""
    module = types.ModuleType(source.name)
    module.__file__ = source.path
    linecache.cache[source.path] = (len(source.text), None, source.text.splitlines(keepends=True), source.path)
    before = sys.modules.get(source.name)
    sys.modules[source.name] = module  # a dataclass looks its module up while it is being defined
    try:
        exec(_compiled(source)[0], module.__dict__)
    finally:
        if before is None:
            sys.modules.pop(source.name, None)
        else:
            sys.modules[source.name] = before
    return module


@lru_cache(maxsize=1)  # a rank loads the same file for every call of a chapter
def _compiled(source: Source) -> tuple[types.CodeType, list[str]]:
    """The code of a file of answers, and the names in its imports that begin with minidist."""
    tree = ast.parse(source.text, source.path)
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return compile(tree, source.path, "exec"), [name for name in names if name.split(".")[0] == "minidist"]
