"""Numbers as layouts and flags write them.

Python's ``int`` takes more than anyone means to write: ``1_0`` is 10 to it, and so are the digits of other scripts
(``１０``). And ``str.isdigit`` takes what ``int`` refuses, such as ``²``.
"""


def whole_number(text: str) -> int:
    """The integer that ``text`` writes in the digits 0 to 9, with a sign or without.

    Raises:
        ValueError: if it is written otherwise.
    """
    return _read(int, text, "a whole number: write it in the digits 0 to 9, as in 12")


def number(text: str) -> float:
    """The number that ``text`` writes, such as 12, 0.5, 3e-4 or inf.

    Raises:
        ValueError: if it is written otherwise.
    """
    return _read(float, text, "a number: write it as in 12, 0.5 or 3e-4")


def _read(kind: type, text: str, expected: str):
    try:
        if text.isascii() and "_" not in text:
            return kind(text)
    except ValueError:
        pass  # told below, in the same words
    raise ValueError(f"{text} is not {expected}")
