"""Colours, each with one meaning, and the marks that a terminal without colours has for them."""

from minidist.show.palette import AXES, MEANINGS, OTHER_TP_GROUP

COMPUTES, PARTLY, WAITS = (
    MEANINGS[what] for what in ("computing", "partly computing", "idle")
)  # of a rank; a wire that waits is idle
USED, FULL = MEANINGS["link in use"], MEANINGS["full link"]  # wires
GROUPS, DATA_PARALLEL = (AXES["tp"], OTHER_TP_GROUP), AXES["dp"]  # messages within a tp group, and between them
MARKS = {
    COMPUTES: "#", PARTLY: "+", WAITS: ".", USED: "-", FULL: "=", GROUPS[0]: "a", GROUPS[1]: "b", DATA_PARALLEL: "d",
}  # fmt: skip
KEY = {
    "computes": COMPUTES, "half of the time": PARTLY, "waits, idle": WAITS,
    "wire in use": USED, "wire nearly full": FULL,
    "tp group 0": GROUPS[0], "tp group 1": GROUPS[1], "dp message": DATA_PARALLEL,
}  # fmt: skip
