"""The colours of the ranks, the same in every picture: from the palette of Okabe and Ito, in an order of our own, its
yellow and black changed for what can be read as a thin line among grey ones."""

RANKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#BFA800", "#444444")


def of_rank(rank: int) -> str:
    """The colour of a rank; from rank 8 on they come again."""
    return RANKS[rank % len(RANKS)]


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on the colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
