"""Detects what an answer has replaced in Python, NumPy and minidist, and restores it."""

import builtins
import math
import operator
import os
import random
import sys
import threading
import time
import tracemalloc
import types
from builtins import all, isinstance, list, map, setattr, vars  # noqa: UP029 - an answer may replace them

import numpy as np

MODULES = (builtins, math, os, random, sys, threading, time, tracemalloc, np, np.random, np.linalg)  # and minidist's

SYS_MODULES = "sys.modules"  # stands for that dict among the owners of names
Snapshot = dict[object, dict[str, object]]  # owner -> its names -> their values

_snapshot: Snapshot = {}
_known: set[str] = set()  # the modules looked at


def snapshot() -> Snapshot:
    """Every function and class of minidist, of its classes, and of ``MODULES``.

    Whatever an answer replaces is restored, so a snapshot stays valid; modules that were imported since are added.
    """
    if not _snapshot:
        _snapshot[SYS_MODULES] = {name: sys.modules[name] for name in ("numpy", "minidist")}
        for module in MODULES:
            _add(module)
    for name in list(sys.modules):
        if name not in _known:
            _known.add(name)
            if name.split(".")[0] == "minidist":
                _add(sys.modules[name])
    return _snapshot


def _add(module: types.ModuleType) -> None:
    _snapshot[module] = {name: value for name, value in list(vars(module).items()) if callable(value)}
    for value in list(_snapshot[module].values()):
        if isinstance(value, type) and value.__module__.split(".")[0] == "minidist" and value not in _snapshot:
            _snapshot[value] = {
                name: member
                for name, member in vars(value).items()
                if callable(member) or isinstance(member, property | staticmethod | classmethod)
            }


def restore(before: Snapshot) -> list[str]:
    """Restore everything that differs from a snapshot; returns the names of what was replaced."""
    replaced = []
    for owner, values in before.items():
        now = sys.modules if owner is SYS_MODULES else vars(owner)
        if all(map(operator.is_, map(now.get, values), values.values())):  # quick, and nearly always so
            continue
        for name in [name for name, value in values.items() if now.get(name) is not value]:
            if owner is SYS_MODULES:
                sys.modules[name] = values[name]
                replaced.append(name)
            else:
                setattr(owner, name, values[name])
                replaced.append(f"{_name(owner)}.{name}")
    return replaced


def _name(owner: types.ModuleType | type) -> str:
    return owner.__name__ if not isinstance(owner, type) else f"{owner.__module__}.{owner.__qualname__}"
