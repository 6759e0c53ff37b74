"""Large numbers as people write them: 16M tokens, 15T tokens."""

from math import isfinite

from minidist.train.notation import number

POWERS = {"K": 1, "M": 2, "B": 3, "G": 3, "T": 4}


def decimal(text: str) -> float:
    """15T is 15e12; plain numbers are themselves.

    Raises:
        ValueError: for what is no number, or not above 0.
    """
    return _read(text, 1000)


def sequences_of(text: str, context: int) -> int:
    """Number of sequences in a count of tokens: 16M is 16 x 2^20 where sequences divide that, as in Llama 3, else 16e6.

    Raises:
        ValueError: if no whole number of sequences has, with the nearest numbers that do.
    """
    for base in (1024, 1000):
        count = _read(text, base) / context
        if count == round(count):
            return round(count)
    below = max(1, int(count))
    raise ValueError(
        f"--batch-tokens {text}: sequences of {context:,} tokens do not divide it: choose --batch {below} "
        f"({below * context:,} tokens) or --batch {below + 1} ({(below + 1) * context:,})"
    )


def _read(text: str, base: int) -> float:
    power = POWERS.get(text[-1:].upper(), 0)
    value = number(text[:-1] if power else text) * base**power
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{text} must be above 0 and finite")
    return value


def written(value: float) -> str:
    """A number with its suffix: 16.8M."""
    for suffix, power in (("T", 4), ("B", 3), ("M", 2), ("K", 1)):
        if value >= 1000**power:
            return f"{value / 1000**power:,.4g}{suffix}"
    return f"{value:,.4g}"


def duration(seconds: float) -> str:
    """A duration as text, in the unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return "0"
