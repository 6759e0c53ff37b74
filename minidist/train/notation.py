"""Layouts, flags and tables as text: settings as ``key=value,key=value``, and numbers.

Python's ``int`` accepts more than anyone means to write: it reads both ``1_0`` and ``１０``, the digits of another
script, as 10. And ``str.isdigit`` accepts what ``int`` refuses, such as ``²``.
"""

from dataclasses import fields
from difflib import get_close_matches
from math import isnan

LARGEST = 2**63 - 1  # 64-bit integer
EXPECTED = "a number: write it as in 12, 0.5 or 3e-4"


def whole_number(text: str) -> int:
    """Parse an integer written in the digits 0 to 9, with or without a sign.

    Raises:
        ValueError: for any other text, or an integer that does not fit 64 bits.
    """
    value = _read(int, text, "a whole number: write it in the digits 0 to 9, as in 12")
    if abs(value) > LARGEST:
        raise ValueError(f"{shortened(text)} is too large: a whole number may be at most {LARGEST}")
    return value


def number(text: str) -> float:
    """Parse a number such as 12, 0.5, 3e-4 or inf.

    Raises:
        ValueError: for any other text, nan among them.
    """
    value = _read(float, text, EXPECTED)
    if isnan(value):
        raise ValueError(f"{shortened(text)} is not {EXPECTED}")
    return value


def _read(kind: type, text: str, expected: str):
    try:
        if text.isascii() and "_" not in text:
            return kind(text)
    except ValueError:
        pass  # raised below, with the same message
    raise ValueError(f"{shortened(text)} is not {expected}")


def shortened(text: str) -> str:
    """Return the text without control characters, cut if it is longer than any number that is meant."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} characters)"


READERS = {int: whole_number, float: number, str: str}


def read_settings(text: str, kind: type, what: str) -> dict:
    """Parse ``key=value,key=value`` into values of a dataclass' fields, each of its type: int, float or str.

    Raises:
        ValueError: for an unknown key, a key given twice, or a value of the wrong kind. ``what`` names the text.
    """
    types = {field.name: field.type for field in fields(kind)}
    settings: dict = {}
    for part in map(str.strip, text.split(",")):
        key, equals, value = map(str.strip, part.partition("="))
        if key not in types or not equals:
            near = get_close_matches(key, types, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near and key not in types else ""
            raise ValueError(
                f"{what} {text!r}: {part!r} is not key=value with one of the keys {', '.join(types)}{hint}"
            )
        if key in settings:
            raise ValueError(f"{what} {text!r}: {key} is given twice")
        try:
            settings[key] = READERS[types[key]](value)
        except ValueError as error:
            raise ValueError(f"{what} {text!r}: {key}={error}") from None
    return settings


def write_settings(value, default: str) -> str:
    """Return the settings that differ from a dataclass' defaults, as ``read_settings`` reads them; else ``default``."""
    changed = [f"{f.name}={getattr(value, f.name)}" for f in fields(value) if getattr(value, f.name) != f.default]
    return ",".join(changed or [default])
