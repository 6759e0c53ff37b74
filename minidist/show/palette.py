"""Colours that mean the same in every picture of the demonstrations, the chapters and the commands.

Code that draws names a meaning; only this file has the colours. They come from the palettes of Okabe and Ito and of
Paul Tol, which colour-blind readers can tell apart. Related meanings share a hue: communication is orange, and memory
that lasts has the colour of the phase that makes it. Meanings, ranks, axes, versions and documents are families of
colours that never stand in for each other. No rank's colour is close to that of a meaning.
"""

IDLE = "faint"
MEANINGS = {
    # what a rank does
    "forward": "#56B4E9",
    "recomputed": "#A6D8F2",  # forward again
    "backward": "#0072B2",
    "backward of inputs": "#2F8FA8",  # where it is separate from that of the weights
    "backward of weights": "#1B3A6B",
    "computing": "#0072B2",  # forward or backward
    "elementwise": "#7C8FA6",  # kernels that only move bytes
    "attention": "#A3507E",  # its scores and sums, without the products around them
    "optimizer": "#009E73",
    "idle": IDLE,
    # what moves
    "communication": "#E69F00",  # exposed: nothing hides it
    "hidden communication": "#8F6400",  # overlapped with computing
    "all-gather": "#F0C566",
    "reduce-scatter": "#D55E00",
    "link in use": "#F7DDA6",
    "link between nodes": "#D55E00",
    "read": "#E69F00",  # from the slow memory, or written to it
    # what memory holds
    "parameters": "#56B4E9",
    "gradients": "#0072B2",
    "residual": "#44BB99",  # of gradients: not sent yet
    "master weights": "#00573F",
    "optimizer state": "#009E73",
    "second moments": "#7FCEB9",
    "activations": "#CC79A7",
    "softmax": "#A3507E",
    "softmax sums": "#BFD8A6",
    "queries": "#1C6B74",
    "keys": "#882255",
    "replicated": "#DDD3BC",  # the same on every rank
    "checkpoint": "#F0E442",
    # how workers wait for each other
    "synchronous": "#AAAA00",
    "bounded": "#33BBEE",
    "asynchronous": "#EE3377",
    # the bits of a number
    "sign": "#A65628",
    "exponent": "#B8A5D8",
    "mantissa": "#E3DC9A",
    # how it went
    "lost": "#E8A9A0",  # done in vain, or dropped
    "wrong": "wrong",
    "result": "right",
}
# unlike those of meanings; colour-blind readers can tell all eight apart, on white and on dark backgrounds
RANKS = ("#3838DC", "#33CC33", "#931A7F", "#33CCCC", "#883A47", "#388ADC", "#716114", "#69BF77")
# for charts whose legend names the curves
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#BFA800", "#444444")
SIGNED = ("#762A83", "#9970AB", "#C2A5CF", "#F7F7F7", "#ACD39E", "#5AAE61", "#1B7837")  # from negative to positive
SHARES = ("#E6DBF5", "#B79BDD", "#5B00B5")  # of a load: from little to much
# of the documents in a pack, repeated from the first on; light, so that words on them can be read: Paul Tol's "light"
DOCUMENTS = ("#77AADD", "#EEDD88", "#EE8866", "#BBCC33", "#FFAABB", "#44BB99")
VERSIONS = ("#482878", "#31688E", "#1F9E89", "#6DCD59", "#FDE725")  # of weights, old to new: along viridis
# of a mesh; from Paul Tol's "muted" palette, since ranks and meanings use Okabe and Ito's
AXES = {"pp": "#332288", "dp": "#AA4499", "tp": "#999933", "cp": "#44AA99", "ep": "#661100"}
COLLECTIVES = {
    "all-reduce": MEANINGS["communication"],
    "reduce-scatter": MEANINGS["reduce-scatter"],
    "all-gather": MEANINGS["all-gather"],
}
PAPER = {"ink": "#1A1A1A", "faint": "#D0D0D0", "paper": "#FFFFFF", "wrong": "#C2002F", "right": "#00734F"}


def of_rank(rank: int) -> str:
    """The colour of a rank; from rank 8 on, colours repeat."""
    return RANKS[rank % len(RANKS)]


def of_version(number: int, last: int) -> str:
    """The colour of version ``number`` of the weights, out of versions 0 to ``last``."""
    place = (len(VERSIONS) - 1) * number / max(1, last)
    before = min(int(place), len(VERSIONS) - 2)
    ends = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in VERSIONS[before : before + 2])
    mixed = (round(start + (end - start) * (place - before)) for start, end in zip(*ends, strict=True))
    return "#" + "".join(f"{part:02X}" for part in mixed)


def on_paper(meaning: str) -> str:
    """The colour of a meaning on a white background, as "#RRGGBB"."""
    colour = MEANINGS[meaning]
    return PAPER.get(colour, colour)


def ink_on(colour: str) -> str:
    """Black or white, whichever has more contrast with the colour, by the formula of WCAG 2."""
    light = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in light)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"
