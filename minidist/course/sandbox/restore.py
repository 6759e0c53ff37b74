"""Detects what an answer has replaced in Python, NumPy and minidist, and restores it."""

import builtins
import math
import os
import random
import sys
import threading
import time
import tracemalloc

import numpy as np

MODULES = (builtins, math, os, random, sys, threading, time, tracemalloc, np, np.random, np.linalg)  # and minidist's

# Whatever an answer replaces is restored, so a snapshot stays valid until another module is imported.
_snapshot: dict[tuple, object] = {}
_module_count = 0


def snapshot() -> dict[tuple, object]:
    """(owner, name) -> every function and class of minidist, of its classes, and of ``MODULES``."""
    global _snapshot, _module_count
    if len(sys.modules) != _module_count:
        _snapshot, _module_count = _take(), len(sys.modules)
    return _snapshot


def _take() -> dict[tuple, object]:
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "minidist"]
    found = {}
    for module in (*ours, *MODULES):
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


def restore(before: dict[tuple, object]) -> list[str]:
    """Restore everything that differs from a snapshot; returns the names of what was replaced."""
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
