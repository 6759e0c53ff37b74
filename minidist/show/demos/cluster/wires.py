"""The network at one moment: its wires with their load, and the messages on them.

A wire has two directions, side by side: up and right first. Its colour is its load in the last cell of the lanes. A
message is a square on its way; how far it has come is how much of it has been sent.
"""

from collections.abc import Sequence
from itertools import pairwise

from minidist.analysis.clock.network import Flow
from minidist.plan.cluster.topology import Edge
from minidist.show.demos.cluster.colours import DATA_PARALLEL, FULL, GROUPS, MARKS, USED, WAITS
from minidist.show.demos.cluster.run import Step, is_tensor_parallel, tp_group
from minidist.show.player.scene import WIDTH, Box, Label, Shape

NODE, SECOND = 28, 44  # the width of a node, and the left edge of the second
UPLINK, NICS, RANKS, NVLINKS, SWITCH = 0, 1, 3, 4, 6  # lines
NEARLY = 0.85  # a wire with that load is nearly full
Point = tuple[float, float]


def colour_of_wire(load: float) -> str:
    return FULL if load >= NEARLY else USED if load > 0 else WAITS


def colour_of_message(flow: Flow, step: Step) -> str:
    return GROUPS[tp_group(flow.source, step.layout)] if is_tensor_parallel(flow, step.layout) else DATA_PARALLEL


class Wiring:
    """Where everything is: chips and switches, and both directions of each wire."""

    def __init__(self, step: Step) -> None:
        self.step, self.nodes = step, max(step.topology.nodes) + 1
        vertices = sorted(step.topology.chips)
        half, gap = len(vertices) // 2, NODE / (len(vertices) // 2)
        middles = [SECOND * (place // half) + int(gap * (place % half + 0.5) + 0.5) for place in range(len(vertices))]
        self.middles = dict(zip(vertices, middles, strict=True))  # of the chips
        self.width = NODE if self.nodes > 1 else WIDTH  # of a node

    def ends(self, edge: Edge) -> tuple[Point, Point]:
        """The two ends of one direction of a wire, in its middle."""
        if "spine" in edge:
            right = edge in (("leaf0", "spine"), ("spine", "leaf1"))
            y, leaf = UPLINK + (0.25 if right else 0.75), (NODE if "leaf0" in edge else SECOND)
            return ((leaf, y), (WIDTH / 2, y)) if edge[1] == "spine" else ((WIDTH / 2, y), (leaf, y))
        leaves = edge[0] in self.middles  # the chip, for a switch
        chip, switch = edge if leaves else edge[::-1]
        above = switch.startswith("leaf")
        x = self.middles[chip] + (-0.5 if leaves == above else 0.5)  # upwards on the left
        near, far = ((x, RANKS), (x, NICS)) if above else ((x, NVLINKS), (x, SWITCH))
        return (near, far) if leaves else (far, near)

    def wire(self, edge: Edge, load: float) -> Box:
        """One direction of a wire."""
        (x, y), (to_x, to_y) = self.ends(edge)
        fill = colour_of_wire(load)
        if y == to_y:
            return Box(min(x, to_x), y - 0.2, abs(to_x - x), 0.4, fill, "", MARKS[fill])
        return Box(x - 0.45, min(y, to_y), 0.9, abs(to_y - y), fill, "", MARKS[fill])

    def message(self, flow: Flow, sent: float) -> Box:
        """A message of which a share has been sent, as far on its way. It passes a switch along its edge."""
        ends = [self.ends(edge) for edge in flow.route]
        way = [ends[0][0]]
        for (_, end), (start, _) in pairwise(ends):
            (x, y), (to_x, to_y) = _at_edge(end), _at_edge(start)
            way += [(x, y), (x, max(y, to_y)), (to_x, max(y, to_y)), (to_x, to_y)]
        way.append(ends[-1][1])
        lengths = [abs(b[0] - a[0]) + 2 * abs(b[1] - a[1]) for a, b in pairwise(way)]  # a line is as high as 2 are wide
        x, y = _along(list(pairwise(way)), lengths, sent * sum(lengths))
        fill = colour_of_message(flow, self.step)
        return Box(x - 0.6, max(0, y - 0.3), 1.2, 0.6, fill, "", MARKS[fill], "paper")


def _at_edge(point: Point) -> Point:
    """Where a message turns that leaves or reaches a switch there."""
    x, y = point
    return x, {NICS: NICS + 0.3, SWITCH: SWITCH - 0.3}.get(y, y)


def _along(parts: Sequence[tuple[Point, Point]], lengths: Sequence[float], left: float) -> Point:
    """The point so far along a way."""
    for ((x, y), (to_x, to_y)), length in zip(parts, lengths, strict=True):
        if left < length:
            return x + left / length * (to_x - x), y + left / length * (to_y - y)
        left -= length
    return parts[-1][1]


def network(step: Step, since: float, now: float) -> list[Shape]:
    """The cluster at a time of the step, with the load of its wires since another one."""
    wiring = Wiring(step)
    zero, shapes = step.start, []
    for edge in step.topology.links:
        load = step.load.mean(edge, zero + since, zero + now) if now > since else 0.0
        shapes.append(wiring.wire(edge, load))
    for node in range(wiring.nodes):
        name = f"node {node}: NVSwitch" if wiring.nodes > 1 else "one node: NVSwitch"
        shapes.append(Box(SECOND * node, SWITCH, wiring.width, 1, "paper", name, " ", "ink"))
        if wiring.nodes > 1:
            shapes.append(Box(SECOND * node, UPLINK, NODE, 1, "paper", f"leaf switch {node}", " ", "ink"))
    for rank, chip in enumerate(step.topology.chips):
        fill = GROUPS[tp_group(rank, step.layout)]
        shapes.append(Box(wiring.middles[chip] - 3, RANKS, 6, 1, fill, f"rank {rank}", MARKS[fill]))
    shapes += [Label(WIDTH / 2, y + 0.5, text, "ink", "middle") for y, text in _speeds(step)]
    for flow in step.in_flight(now):
        done = (zero + now - flow.start) / (flow.sent - flow.start)
        shapes.append(wiring.message(flow, done))
    return shapes


def outcome(words: Sequence[str]) -> list[Shape]:
    """A few words between the nodes."""
    return [Label(WIDTH / 2, SWITCH - 0.5 + line, text, "ink", "middle") for line, text in enumerate(words)]


def uplinks(step: Step) -> list[Edge]:
    """Both directions of the wire between the leaf switches; none in one node."""
    return [edge for edge in step.topology.links if edge[1] == "spine"]


def uplink_speed(step: Step) -> str:
    return _speed(step, "leaf0", "spine")


def _speed(step: Step, *edge: str) -> str:
    return f"{step.topology.links[edge].bandwidth / 1e9:g} GB/s"


def _speeds(step: Step) -> list[tuple[int, str]]:
    """The line, and what one direction of a wire carries there."""
    chip = step.topology.chips[0]
    speeds = [(NVLINKS, f"NVLink {_speed(step, chip, 'node0.switch')}")]
    if uplinks(step):
        speeds += [(UPLINK + 1, f"uplink {uplink_speed(step)}"), (NICS + 1, f"NIC {_speed(step, chip, 'leaf0')}")]
    return speeds
