"""Colours, each with one meaning, and the marks that a terminal without colours has for them."""

COMPUTES, PARTLY, WAITS = "#0072B2", "#9CCBE8", "faint"  # of a rank; a wire that waits is idle
USED, FULL = "#F6B5BF", "#C2002F"  # wires
GROUPS, DATA_PARALLEL = ("#F0E442", "#8F6FD6"), "#009E73"  # messages within a tp group, and between them
MARKS = {
    COMPUTES: "#", PARTLY: "+", WAITS: ".", USED: "-", FULL: "=", GROUPS[0]: "a", GROUPS[1]: "b", DATA_PARALLEL: "d",
}  # fmt: skip
KEY = {
    "computes": COMPUTES, "half of the time": PARTLY, "waits, idle": WAITS,
    "wire in use": USED, "wire nearly full": FULL,
    "tp group 0": GROUPS[0], "tp group 1": GROUPS[1], "dp message": DATA_PARALLEL,
}  # fmt: skip
