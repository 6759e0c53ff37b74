"""A cluster: GPUs in nodes, messages that flow on a running clock, and the narrow link in which they jam."""

from collections.abc import Sequence

from minidist.analysis.networks import Flow
from minidist.plan.cluster.topology import Edge
from minidist.show.demos.cluster.run import ONE, Step, tp_group
from minidist.show.palette import AXES, MEANINGS, OTHER_TP_GROUP
from minidist.show.stage.counter import counter
from minidist.show.stage.marks import Mark, box, text
from minidist.show.stage.story import Beat, Question, Story

RUNS = 9.0  # seconds of the longest step
STRETCHES, MOST_FLOWS = (
    45,
    260,
)  # of a step for what GPUs and links do; messages that are drawn, those that take longest
TOP, GPU, NODE = 60, (96, 120), (500, 250)  # of the nodes, and the sizes of a GPU and of a node
GROUPS = (AXES["tp"], OTHER_TP_GROUP)
DATA_PARALLEL, COMPUTES = MEANINGS["communication"], MEANINGS["computing"]


def tell(steps: Sequence[Step], step: Step, longest: float, bug: str = "", details: str = "") -> Story:
    """One recorded step on one cluster; all clusters share the clock, on which the longest step takes RUNS.

    Args:
        steps: the clusters, the first of which has one node; ``step`` is one of them, or the one with the bug.
        longest: seconds.
    """
    places = _places(step)
    marks = _wires(step, places, longest)
    marks += _gpus(step, places, longest)
    marks += _flows(step, places, longest)
    bar = box(290, 500, 0, 56, COMPUTES, step.name)
    ends = RUNS * step.seconds / longest
    marks += [text(276, 528, "time of one step", 28, anchor="end"), box(290, 500, 740, 56, "faint")]
    marks.append(bar.to(0.2, ends, w=740 * step.seconds / longest))
    micro = f"{1e6 * step.seconds:,.0f} µs"
    marks += counter(1150, 528, "", [(0.0, ""), (ends + 0.2, micro)], 50)
    ratio = step.seconds / steps[0].seconds
    waiting = sum(rank.waiting for rank in step.report.ranks) / step.ranks / step.seconds
    if step.name == ONE:
        asked = Question(
            "All links are NVLinks. How much of the step do the GPUs wait?",
            tuple(f"{share:.0%}" for share in sorted({waiting / 3, waiting, (1 + waiting) / 2})),
            1,
            "Tensor parallelism sums activations several times a layer, and the next product waits for each sum.",
        )
    else:
        asked = Question(
            "How many times as long as in one node is the step?",
            tuple(f"{times:.1f} times" for times in sorted({1 + (ratio - 1) / 4, ratio, 1 + (ratio - 1) * 3})),
            1,
            "Only gradients cross, and part of them behind backward."
            if not bug
            else "Tensor parallelism sends activations in every layer, and nothing hides them.",
        )
    crossing = step.report.bytes_between_nodes
    facts = {
        "between the nodes": f"{crossing / 1e6:.1f} MB",
        "GPUs wait": f"{waiting:.0%}",
        "uplink full": f"{uplink_full(step):.0%}",
    }
    opening = {ONE: "The same training step, in one node: all messages stay inside."}.get(
        step.name, "Two nodes: the gradients of data parallelism cross the link between them."
    )
    if bug:
        opening = "The ranks were dealt to the nodes in turn. Every result has the same bits."
    beats = [
        Beat(0, opening, facts, asks=asked, cue="Where do the GPUs wait?"),
        Beat(
            max(0.5, 0.2 + ends * 0.6),
            f"{crossing / 1e6:.1f} MB go from node to node." if crossing else "No message leaves the node.",
            facts,
        ),
        Beat(
            RUNS + 0.6,
            f"The GPUs wait {waiting:.0%} of the time. The step takes {ratio:.1f} times as long as in one node."
            if ratio > 1
            else f"The GPUs wait {waiting:.0%} of the time.",
            facts,
            answers=asked,
        ),
    ]
    verdict = "The same bits: only the cost is wrong." if bug else ""
    key = {
        "tensor-parallel group": GROUPS[0],
        "the other group": GROUPS[1],
        "gradients": DATA_PARALLEL,
        "GPU computes": COMPUTES,
    }
    return Story(step.name, "What does the link between nodes cost?", marks, beats, verdict, bug, details, key=key)


def uplinks(step: Step) -> list[Edge]:
    """The links between the nodes' switches."""
    return [edge for edge in step.topology.links if any("spine" in end for end in edge)]


def uplink_full(step: Step) -> float:
    """The share of the step in which a link between the nodes is full."""
    return max((step.load.full(edge, step.start, step.start + step.seconds) for edge in uplinks(step)), default=0.0)


def _places(step: Step) -> dict[int, tuple[float, float]]:
    """The middle of each rank's GPU: in its node, the members of a tensor-parallel group in their order."""
    nodes = step.topology.nodes
    count = max(nodes) + 1
    found = {}
    for node in range(count):
        ranks = [rank for rank in range(step.ranks) if nodes[rank] == node]
        left = (1280 - NODE[0] * 2) / 2 if count == 1 else 20 + node * (1280 - NODE[0] - 40)
        wide = NODE[0] * 2 if count == 1 else NODE[0]
        for place, rank in enumerate(ranks):
            found[rank] = left + wide * (place + 0.5) / len(ranks), TOP + 40 + GPU[1] / 2
    return found


def _wires(step: Step, places, longest: float) -> list[Mark]:
    """The nodes, and between two of them the link, which reddens as it fills."""
    found = []
    nodes = step.topology.nodes
    for node in range(max(nodes) + 1):
        across = [places[rank][0] for rank in range(step.ranks) if nodes[rank] == node]
        found.append(
            box(
                min(across) - 62,
                TOP,
                max(across) - min(across) + 124,
                NODE[1] + 90,
                "paper",
                f"node {node}",
                stroke="faint",
                round=16,
            )
        )
        found.append(text(sum(across) / len(across), TOP + NODE[1] + 60, f"node {node}", 30))
    if uplinks(step):
        pipe = box(
            NODE[0] + 26, TOP + NODE[1] - 14, 1280 - 2 * NODE[0] - 52, 28, "#D0D0D0", "the link between the nodes"
        )
        for number in range(STRETCHES):
            since, until = (step.start + step.seconds * (number + i) / STRETCHES for i in (0, 1))
            load = max(step.load.mean(edge, since, until) for edge in uplinks(step))
            at = 0.2 + RUNS * (since - step.start) / longest
            pipe.to(at, RUNS * step.seconds / longest / STRETCHES * 0.9, fill=_shade(load))
        found.append(text(640, TOP + NODE[1] - 40, "link", 30))
        found.append(pipe.to(0.3 + RUNS * step.seconds / longest, 0.1, fill="#D0D0D0"))
    return found


def _shade(load: float) -> str:
    """From grey to red, by how full a link is."""
    one, other = (208, 208, 208), (194, 0, 47)
    return "#" + "".join(f"{round(a + (b - a) * min(1, load)):02X}" for a, b in zip(one, other, strict=True))


def _gpus(step: Step, places, longest: float) -> list[Mark]:
    """Each GPU, bright while it computes, with a stripe in the colour of its tensor-parallel group."""
    found = []
    for rank, (x, y) in places.items():
        gpu = box(x - GPU[0] / 2, y - GPU[1] / 2, *GPU, COMPUTES, f"rank {rank} computes")
        gpu.keys[0][1]["opacity"] = 0.15
        for number in range(STRETCHES):
            since, until = (step.seconds * (number + i) / STRETCHES for i in (0, 1))
            at = 0.2 + RUNS * since / longest
            gpu.to(
                at,
                RUNS * step.seconds / longest / STRETCHES * 0.9,
                opacity=0.15 + 0.85 * step.computing(rank, since, until),
            )
        gpu.to(0.3 + RUNS * step.seconds / longest, 0.2, opacity=0.15)
        stripe = box(
            x - GPU[0] / 2, y + GPU[1] / 2 + 6, GPU[0], 12, GROUPS[tp_group(rank, step.layout) % 2], f"rank {rank}"
        )
        found += [gpu, stripe, text(x, y, f"{rank}", 34, weight=700)]
    return found


def _flows(step: Step, places, longest: float) -> list[Mark]:
    """The messages that take longest, each on its way for as long as the clock says."""
    flows = sorted(step.replayed.flows, key=lambda flow: flow.start - flow.sent)[:MOST_FLOWS]
    found = []
    for flow in flows:
        start, end = (0.2 + RUNS * (time - step.start) / longest for time in (flow.start, flow.sent))
        if end - start < 0.04 or start < 0:
            continue
        found.append(_dot(step, flow, places, start, end))
    return found


def _dot(step: Step, flow: Flow, places, start: float, end: float) -> Mark:
    (x, y), (to_x, to_y) = places[flow.source], places[flow.destination]
    same = tp_group(flow.source, step.layout) == tp_group(flow.destination, step.layout)
    colour = GROUPS[tp_group(flow.source, step.layout) % 2] if same else DATA_PARALLEL
    y, to_y = y + GPU[1] / 2 + 26, to_y + GPU[1] / 2 + 26
    low = TOP + NODE[1] - 9 if step.crosses(flow) else y + 26
    dot = box(x - 11, y, 22, 22, colour, f"{flow.nbytes:,} bytes from {flow.source} to {flow.destination}")
    dot.enter(start, 0.01)
    lasting = end - start - 0.02
    dot.to(start + 0.01, lasting * 0.2, y=low).to(start + 0.01 + lasting * 0.2, lasting * 0.6, x=to_x - 11)
    return dot.to(start + 0.01 + lasting * 0.8, lasting * 0.2, y=to_y).leave(end, 0.01)
