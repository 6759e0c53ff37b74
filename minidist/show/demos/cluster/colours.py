"""Colours, each with one meaning, and the marks that a terminal without colours has for them."""

from minidist.show.palette import AXES, MEANINGS, OTHER_TP_GROUP

COMPUTES, FREE = MEANINGS["computing"], MEANINGS["idle"]  # a GPU that waits is as free as a link that carries nothing
GROUPS, DATA_PARALLEL = (AXES["tp"], OTHER_TP_GROUP), AXES["dp"]  # messages within a tp group, and between them
FULL = MEANINGS["full link"]
MARKS = {COMPUTES: "#", FREE: ".", GROUPS[0]: "a", GROUPS[1]: "b", DATA_PARALLEL: "d", FULL: "!"}
KEY = {
    "computes": COMPUTES, "waits, free": FREE, "tp group 0": GROUPS[0], "tp group 1": GROUPS[1],
    "dp message": DATA_PARALLEL, "full": FULL,
}  # fmt: skip
