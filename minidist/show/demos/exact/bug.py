"""A grid with one bug: its step is so small that the sum of several numbers outgrows the window."""

BUG = "the grid leaves the sum no room to grow"


def bits_without_room(count: int, factors: int = 1) -> int:
    """``exact.bits_of``, as if one product were summed."""
    return 53 // factors
