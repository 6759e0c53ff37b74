"""Noticing what an answer has replaced in Python, NumPy and minidist, and putting it back."""

import builtins
import math
import os
import random
import sys
import threading
import time
import tracemalloc

import numpy as np

OTHERS = (builtins, math, os, random, sys, threading, time, tracemalloc, np, np.random, np.linalg)


_pristine: dict[tuple, object] = {}  # what is put back stays true, so this is read anew only when modules come
_modules = 0


def functions_now() -> dict[tuple, object]:
    """(owner, name) -> every function and class of minidist, of its classes, and of the modules above."""
    global _pristine, _modules
    if len(sys.modules) != _modules:
        _pristine, _modules = _read(), len(sys.modules)
    return _pristine


def _read() -> dict[tuple, object]:
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "minidist"]
    found = {}
    for module in (*ours, *OTHERS):
        for name, value in list(vars(module).items()):
            if callable(value):
                found[module, name] = value
            if isinstance(value, type) and value.__module__.split(".")[0] == "minidist":
                for attribute, member in list(vars(value).items()):
                    if callable(member) or isinstance(member, property | staticmethod | classmethod):
                        found[value, attribute] = member
    for name in ("numpy", "minidist"):
        found["sys.modules", name] = sys.modules[name]
    return found


def put_back(before: dict[tuple, object]) -> list[str]:
    """Restore what differs from ``before``, and return the names of it."""
    replaced = []
    for (owner, name), value in before.items():
        if owner == "sys.modules":
            if sys.modules.get(name) is not value:
                sys.modules[name] = value
                replaced.append(name)
        elif vars(owner).get(name) is not value:
            setattr(owner, name, value)
            replaced.append(f"{_name(owner)}.{name}")
    return replaced


def _name(owner) -> str:
    return owner.__name__ if not isinstance(owner, type) else f"{owner.__module__}.{owner.__qualname__}"
