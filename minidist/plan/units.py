"""Numbers in readable units: 16.8M parameters, 20.6 GB, 3.09 h."""

from collections.abc import Mapping

HOUR, DAY = 3600, 86400  # seconds
BYTES = {" PB": 1e15, " TB": 1e12, " GB": 1e9, " MB": 1e6, " kB": 1e3, " bytes": 1}
COUNTS = {"T": 1e12, "B": 1e9, "M": 1e6, "K": 1e3, "": 1}
TIMES = {" d": DAY, " h": HOUR, " min": 60, " s": 1, " ms": 1e-3, " µs": 1e-6}


def in_units(value: float, units: Mapping[str, float], digits: int = 3) -> str:
    """Write a number in the largest unit in which it rounds to 1 or more, or else in the smallest.

    Args:
        units: unit -> its size, the largest first.
        digits: significant digits; below a million, all digits before the point are written.
    """

    def rounded(size: float) -> float:
        return float(f"{value / size:.{digits}g}")

    unit, size = next((each for each in units.items() if rounded(each[1]) >= 1), [*units.items()][-1])
    value /= size
    return (f"{value:,.0f}" if 10 ** (digits - 1) <= value < 1e6 else f"{value:.{digits}g}") + unit


def in_bytes(count: float) -> str:
    """Write a number of bytes, as in ``20.6 GB``."""
    return in_units(count, BYTES)


def in_count(count: float) -> str:
    """Write a count, as in ``16.8M``."""
    return in_units(count, COUNTS)


def in_time(seconds: float) -> str:
    """Write a time, as in ``3.09 h``."""
    return in_units(seconds, TIMES)
