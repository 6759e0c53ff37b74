"""Colours that mean the same in every picture, from the palette of Okabe and Ito, which colour-blind readers can tell
apart. Among the ranks' colours its yellow and black are changed, so that a thin line can be seen among grey ones."""

RANKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#BFA800", "#444444")
# of a mesh; from Paul Tol's "muted" palette, since ranks and kinds of time have taken Okabe and Ito's
AXES = {"pp": "#332288", "dp": "#AA4499", "tp": "#999933"}
COLLECTIVES = {"all-reduce": "#E69F00", "reduce-scatter": "#D55E00", "all-gather": "#F0C566"}


def of_rank(rank: int) -> str:
    """The colour of a rank; from rank 8 on, colours repeat."""
    return RANKS[rank % len(RANKS)]


def ink_on(colour: str) -> str:
    """Black or white, whichever has more contrast with the colour, by the formula of WCAG 2."""
    light = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in light)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"
