"""Numbers as layouts and flags write them.

Python's ``int`` takes more than anyone means to write: ``1_0`` is 10 to it, and so are the digits of other scripts
(``１０``). And ``str.isdigit`` takes what ``int`` refuses, such as ``²``.
"""

from math import isnan

LARGEST = 2**63 - 1  # what a 64-bit integer holds
EXPECTED = "a number: write it as in 12, 0.5 or 3e-4"


def whole_number(text: str) -> int:
    """The integer that ``text`` writes in the digits 0 to 9, with a sign or without.

    Raises:
        ValueError: if it is written otherwise, or does not fit 64 bits.
    """
    value = _read(int, text, "a whole number: write it in the digits 0 to 9, as in 12")
    if abs(value) > LARGEST:
        raise ValueError(f"{shortened(text)} is too large: a whole number may be {LARGEST} at most")
    return value


def number(text: str) -> float:
    """The number that ``text`` writes, such as 12, 0.5, 3e-4 or inf.

    Raises:
        ValueError: if it is written otherwise, as nan is.
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
        pass  # told below, in the same words
    raise ValueError(f"{shortened(text)} is not {expected}")


def shortened(text: str) -> str:
    """The text, or its beginning if it is longer than any number that is meant; without control characters."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} characters)"
