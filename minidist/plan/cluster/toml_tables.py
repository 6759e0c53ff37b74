"""Reader of dataclasses from TOML tables. Errors name the file, the table, the key and what is expected."""

import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin


def read_toml(path: Path) -> dict:
    """Read the tables of a file.

    Raises:
        ValueError: if the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot read this file: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None


def from_table(kind: type, table: object, where: str):
    """Make a dataclass from a table with its fields as keys.

    Fields are text, numbers, bool, lists, numbers by name and dataclasses, or any of these or None.

    Args:
        kind: the dataclass.
        table: value read from the file.
        where: the file and the table, for errors.

    Raises:
        ValueError: for an unknown or missing key, a value of another type, a number that is negative or not finite, or
            values that ``kind`` refuses.
    """
    if not isinstance(table, dict):
        raise ValueError(f"{where}: expected a table, got {table!r}")
    known = {field.name: field for field in fields(kind)}
    for key in table:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}: {choose(key, known)}")
    for name, field in known.items():
        if name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}: the key {name!r} is missing: expected {_written(field.type)}")
    values = {key: _checked(value, known[key].type, f"{where}: {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def choose(word: str, known: Iterable[str]) -> str:
    """Return the part of an error about an unknown word: the nearest known one, and all of them."""
    known = list(known)
    nearest = get_close_matches(word, known, n=1, cutoff=0.0)
    return f"the nearest is {nearest[0]!r}; choose from {', '.join(known)}" if nearest else "there is none"


def _checked(value: Any, kind: Any, where: str):
    if get_origin(kind) is UnionType:  # a type or None: a key that is given has the type
        return _checked(value, get_args(kind)[0], where)
    if isinstance(kind, type) and is_dataclass(kind):
        return from_table(kind, value, where)
    if get_origin(kind) is dict and isinstance(value, dict):
        return {key: _checked(item, get_args(kind)[1], f"{where}: {key}") for key, item in value.items()}
    if get_origin(kind) is list and isinstance(value, list):
        return [_checked(item, get_args(kind)[0], f"{where}: number {i}") for i, item in enumerate(value)]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        str: isinstance(value, str),
        bool: isinstance(value, bool),
        int: number and isinstance(value, int) and value >= 0,
        float: number and isfinite(value) and value >= 0,
    }
    if not fits.get(kind, False):
        raise ValueError(f"{where}: expected {_written(kind)}, got {value!r}")
    return kind(value)


def _written(kind: Any) -> str:
    """Describe a type in words."""
    if get_origin(kind) is dict:
        return "a table of numbers, such as { bf16 = 989.4e12 }"
    if get_origin(kind) is list:
        of = get_args(kind)[0]
        return "tables in double brackets" if is_dataclass(of) else f"a list, each entry {_written(of)}"
    words = {
        str: "text",
        bool: "true or false",
        int: "a whole number of at least 0",
        float: "a number of at least 0",
    }
    return words[kind]
