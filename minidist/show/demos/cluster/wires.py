"""The network during one cell of the bars: every link as wide as its bandwidth, and in it what it carries.

A link is grey as long as it carries nothing. A message's colour covers as much of the link's width as of its bandwidth
the messages of that colour took, in the fuller of its two directions, so a link without grey is full.
"""

from collections.abc import Iterator

from minidist.plan.cluster.topology import Edge
from minidist.show.demos.cluster.colours import DATA_PARALLEL, FREE, FULL, GROUPS, MARKS
from minidist.show.demos.cluster.run import KINDS, Step, tp_group
from minidist.show.player.scene import WIDTH, Box, Label, Shape

NODE, SECOND = 27, 45  # the width of a node, and the left edge of the second
LEAF, RANKS, SWITCH = 0.0, 2.2, 5.2  # top edges
HIGH = 1.5  # of a leaf switch, of a rank, and of the uplink of all NICs of four GPUs
WIDE = 5  # of a rank
PER_GB = HIGH / 200  # lines of width for each GB/s: an uplink of 200 GB/s is as high as its switch
NEARLY = 0.85  # with that load a link counts as full: the rest is latency between messages
COLOURS = dict(zip(KINDS, (*GROUPS, DATA_PARALLEL), strict=True))


def width_of(gigabytes: float) -> float:
    """Lines across a link of ``gigabytes`` GB/s in each direction; a line is as high as two characters are wide."""
    return gigabytes * PER_GB


class Wiring:
    """Where everything is: chips, switches, and the links between them."""

    def __init__(self, step: Step) -> None:
        self.step, self.nodes = step, max(step.topology.nodes) + 1
        vertices = sorted(step.topology.chips)
        half, self.width = len(vertices) // 2, NODE if self.nodes > 1 else WIDTH
        each = (NODE if self.nodes > 1 else WIDTH / 2) / half
        second = SECOND if self.nodes > 1 else WIDTH / 2
        self.middles = {
            vertex: second * (place // half) + each * (place % half + 0.5) for place, vertex in enumerate(vertices)
        }

    def place(self, link: frozenset[str]) -> tuple[float, float, float, float]:
        """(x, y, w, h) of a link. What lies across is its bandwidth."""
        across = width_of(max(self.step.topology.links[edge].bandwidth for edge in self.edges(link)) / 1e9)
        if "spine" in link:
            x = NODE if "leaf0" in link else WIDTH / 2
            return x, LEAF + (HIGH - across) / 2, (SECOND - NODE) / 2, across
        (chip,) = link & self.middles.keys()
        top, bottom = (LEAF + HIGH, RANKS) if any("leaf" in end for end in link) else (RANKS + HIGH, SWITCH)
        return self.middles[chip] - across, top, 2 * across, bottom - top

    def edges(self, link: frozenset[str]) -> list[Edge]:
        """Both directions of a link."""
        return [edge for edge in self.step.topology.links if frozenset(edge) == link]

    def links(self) -> list[frozenset[str]]:
        return list(dict.fromkeys(map(frozenset, self.step.topology.links)))

    def load(self, link: frozenset[str], since: float, until: float) -> dict[str, float]:
        """Share of the bandwidth that each kind of message took, in the fuller direction."""
        if until <= since:
            return dict.fromkeys(KINDS, 0.0)
        start, load = self.step.start, self.step.load
        edge = max(self.edges(link), key=lambda edge: load.mean(edge, start + since, start + until))
        return {kind: load.mean(edge, start + since, start + until, kind) for kind in KINDS}

    def draw(self, link: frozenset[str], since: float, until: float) -> Iterator[Shape]:
        """A link and what it carries, the kinds side by side."""
        x, y, w, h = self.place(link)
        flat = "spine" in link
        loads = self.load(link, since, until)
        yield Box(x, y, w, h, FREE, "", MARKS[FREE])
        at = 0.0
        for kind, share in loads.items():
            if share:
                box = (x, y + at * h, w, share * h) if flat else (x + at * w, y, share * w, h)
                yield Box(*box, COLOURS[kind], "", MARKS[COLOURS[kind]])
                at += share


def network(step: Step, since: float, now: float) -> list[Shape]:
    """The cluster, and what its links carried since another time of the step."""
    wiring = Wiring(step)
    shapes = [shape for link in wiring.links() for shape in wiring.draw(link, since, now)]
    for node in range(wiring.nodes):
        x = SECOND * node
        name = f"node {node}" if wiring.nodes > 1 else "one node: NVLink"
        shapes.append(Box(x, SWITCH, wiring.width, 1, "paper", name, " ", "ink"))
        if wiring.nodes > 1:
            shapes.append(Box(x, LEAF, NODE, HIGH, "paper", "network", " ", "ink"))
    for rank, chip in enumerate(step.topology.chips):
        fill = GROUPS[tp_group(rank, step.layout)]
        place = wiring.middles[chip] - WIDE / 2, RANKS, WIDE, HIGH
        shapes.append(Box(*place, fill, str(rank), MARKS[fill], "ink", id=f"rank {rank}"))
    if uplinks(step):
        shapes += _middle(step, is_full(step, since, now))
    return shapes


def _middle(step: Step, full: bool) -> list[Shape]:
    """What is between the nodes: the uplink's bandwidth, and whether it is full."""
    x, w = NODE + 2, SECOND - NODE - 4
    shapes: list[Shape] = [Label(WIDTH / 2, 2.1, "the uplink", "ink", "middle")]
    shapes.append(Label(WIDTH / 2, 3.1, uplink_speed(step), "ink", "middle"))
    if full:
        shapes.append(Box(x, 3.9, w, 1.2, FULL, "FULL", MARKS[FULL]))
    shapes.append(Label(WIDTH / 2, SWITCH + 0.5, f"NVLink {_speed(step, step.topology.chips[0], 'node0.switch')}",
                        "faint", "middle"))  # fmt: skip
    return shapes


def is_full(step: Step, since: float, until: float) -> bool:
    """Whether a direction of the uplink carried nearly all that it can between two times of the step."""
    if until <= since:
        return False
    return any(step.load.mean(edge, step.start + since, step.start + until) >= NEARLY for edge in uplinks(step))


def uplinks(step: Step) -> list[Edge]:
    """Both directions of the wire between the leaf switches; none in one node."""
    return [edge for edge in step.topology.links if edge[1] == "spine"]


def uplink_speed(step: Step) -> str:
    return _speed(step, "leaf0", "spine")


def _speed(step: Step, *edge: str) -> str:
    return f"{step.topology.links[edge].bandwidth / 1e9:g} GB/s"
