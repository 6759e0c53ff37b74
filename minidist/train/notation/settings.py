"""Settings as one text, ``key=value,key=value``: the form of a layout."""

from dataclasses import fields
from difflib import get_close_matches

from minidist.train.notation.numerals import number, whole_number

READERS = {int: whole_number, float: number, str: str}


def read_settings(text: str, kind: type, what: str) -> dict:
    """The values that a text gives to fields of a dataclass, of their types.

    Args:
        kind: the dataclass; its fields are int, float or str.
        what: names the text in errors.

    Raises:
        ValueError: for an unknown key, a key given twice, or a value of the wrong kind.
    """
    types = {field.name: field.type for field in fields(kind)}
    settings: dict = {}
    for part in text.replace(" ", "").split(","):
        key, equals, value = part.partition("=")
        if key not in types or not equals:
            near = get_close_matches(key, types, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near and key not in types else ""
            raise ValueError(f"{what} {text!r}: {part!r} is not key=value with a key of {', '.join(types)}{hint}")
        if key in settings:
            raise ValueError(f"{what} {text!r}: {key} is given twice")
        try:
            settings[key] = READERS[types[key]](value)
        except ValueError as error:
            raise ValueError(f"{what} {text!r}: {key}={error}") from None
    return settings


def write_settings(value, default: str) -> str:
    """The settings of a dataclass that differ from its defaults, as ``read_settings`` reads them; else ``default``."""
    changed = [f"{f.name}={getattr(value, f.name)}" for f in fields(value) if getattr(value, f.name) != f.default]
    return ",".join(changed or [default])
