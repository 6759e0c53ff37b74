"""Colours, each with one meaning, and the marks that a terminal without colours has for them."""

COMPUTES, FREE = "#0072B2", "faint"  # a GPU that waits is as free as a link that carries nothing
GROUPS, DATA_PARALLEL = ("#F0E442", "#8F6FD6"), "#009E73"  # messages within a tp group, and between them
FULL = "#D55E00"
MARKS = {COMPUTES: "#", FREE: ".", GROUPS[0]: "a", GROUPS[1]: "b", DATA_PARALLEL: "d", FULL: "!"}
KEY = {
    "computes": COMPUTES, "waits, free": FREE, "tp group 0": GROUPS[0], "tp group 1": GROUPS[1],
    "dp message": DATA_PARALLEL, "full": FULL,
}  # fmt: skip
