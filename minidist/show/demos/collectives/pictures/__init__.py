"""One step of a collective: the ranks and what travels between them on the left, what every rank holds on the right."""

MIDDLE = 32  # characters: the right edge of the left half


def height(ranks: int) -> float:
    """Lines."""
    return 16 if ranks <= 5 else 18
