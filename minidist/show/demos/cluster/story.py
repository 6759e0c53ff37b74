"""A cluster: GPUs in nodes, messages that flow on a running clock, and the narrow link in which they jam."""

from collections.abc import Iterator, Sequence

from minidist.analysis.networks import Flow
from minidist.plan.cluster.topology import Edge
from minidist.show.demos.cluster.run import ONE, Step, is_tensor_parallel
from minidist.show.palette import AXES, MEANINGS
from minidist.show.stage.marks import Mark, box, counter, text
from minidist.show.stage.story import Beat, Question, Story

RUNS = 9.0  # seconds of the longest step
STRETCHES = 45  # parts of a step in which the state of GPUs and links is drawn
MOST_FLOWS = 260  # messages to draw: those that take longest
TOP, GPU, NODE, DOT = 40, (96, 120), (500, 280), 40  # of the nodes, and the sizes of a GPU, a node, a message
TENSOR_PARALLEL, DATA_PARALLEL, COMPUTES = AXES["tp"], MEANINGS["communication"], MEANINGS["computing"]


def tell(steps: Sequence[Step], step: Step, longest: float, bug: str = "", details: str = "") -> Story:
    """Tell the story of a recorded step on one cluster.

    Args:
        steps: the step on every cluster, first on one node; ``step`` is one of these, or one with the bug.
        longest: seconds of the step that take RUNS on the story's clock.
    """
    places = _places(step)
    marks = _wires(step, places, longest)
    marks += _gpus(step, places, longest)
    marks += _flows(step, places, longest)
    ends = _at(step.seconds, longest)
    marks += _time(step, longest)
    micro = f"{1e6 * step.seconds:,.0f} µs"
    marks += counter(1156, 528, "", [(0.0, ""), (ends, micro)], 46)
    ratio = step.seconds / steps[0].seconds
    waiting = sum(rank.waiting for rank in step.report.ranks) / step.ranks / step.seconds
    if step.name == ONE:
        asked = Question.number(
            "All links are NVLinks. How much of the step do the GPUs wait?",
            waiting,
            (waiting / 3, (1 + waiting) / 2),
            "Tensor parallelism sums activations several times a layer, and the next product waits for each sum.",
            "{:.0%}",
        )
    else:
        asked = Question.number(
            "How many times as long is the step as in one node?",
            ratio,
            (1 + (ratio - 1) / 4, 1 + (ratio - 1) * 3),
            "Tensor parallelism sends activations in every layer, and nothing hides them."
            if bug
            else "Only gradients cross, and backward hides part of that.",
            "{:.1f} times",
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
            _crossing(step, longest),
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
    key = {"tensor parallelism": TENSOR_PARALLEL, "gradients": DATA_PARALLEL, "computes": COMPUTES, "waits": "faint"}
    return Story(step.name, "What does the link between nodes cost?", marks, beats, verdict, bug, details, key=key)


def uplinks(step: Step) -> list[Edge]:
    """Return the links between the nodes' switches."""
    return [edge for edge in step.topology.links if any("spine" in end for end in edge)]


def uplink_full(step: Step) -> float:
    """Return the share of the step in which the fullest link between the nodes is full."""
    return max((step.load.full(edge, step.start, step.start + step.seconds) for edge in uplinks(step)), default=0.0)


def _places(step: Step) -> dict[int, tuple[float, float]]:
    """Return the middle of each rank's GPU; the GPUs of a node are in the order of their ranks."""
    nodes = step.topology.nodes
    count = max(nodes) + 1
    found = {}
    for node in range(count):
        ranks = [rank for rank in range(step.ranks) if nodes[rank] == node]
        left = (1280 - NODE[0] * 2) / 2 if count == 1 else 20 + node * (1280 - NODE[0] - 40)
        wide = NODE[0] * 2 if count == 1 else NODE[0]
        for place, rank in enumerate(ranks):
            found[rank] = left + wide * (place + 0.5) / len(ranks), TOP + 64 + GPU[1] / 2
    return found


def _at(seconds: float, longest: float) -> float:
    """Return the moment of the story that is ``seconds`` after the start of the step."""
    return 0.2 + RUNS * seconds / longest


def _stretches(step: Step, longest: float) -> Iterator[tuple[float, float, float, float]]:
    """Yield equal parts of the step: (start, end) in the step, and (start, length) in the story, in seconds."""
    for number in range(STRETCHES):
        since, until = (step.seconds * (number + i) / STRETCHES for i in (0, 1))
        yield since, until, _at(since, longest), RUNS * (until - since) / longest


def _wires(step: Step, places, longest: float) -> list[Mark]:
    """Draw the nodes, and between two of them the link, which reddens as it fills."""
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
        for since, until, at, lasting in _stretches(step, longest):
            load = max(step.load.mean(edge, step.start + since, step.start + until) for edge in uplinks(step))
            pipe.to(at, lasting * 0.9, fill=_shade(load))
        found.append(text(640, TOP + NODE[1] - 40, "link", 30))
        found.append(pipe.to(_at(step.seconds, longest) + 0.1, 0.1, fill="#D0D0D0"))
    return found


def _shade(load: float) -> str:
    """Return the colour of a link: the fuller, the redder, from grey on."""
    one, other = (208, 208, 208), (194, 0, 47)
    return "#" + "".join(f"{round(a + (b - a) * min(1, load)):02X}" for a, b in zip(one, other, strict=True))


def _gpus(step: Step, places, longest: float) -> list[Mark]:
    """Draw each GPU, bright while it computes."""
    found = []
    for rank, (x, y) in places.items():
        gpu = box(x - GPU[0] / 2, y - GPU[1] / 2, *GPU, COMPUTES, f"GPU {rank} computes")
        gpu.begin(opacity=0.15)
        for since, until, at, lasting in _stretches(step, longest):
            gpu.to(at, lasting * 0.9, opacity=0.15 + 0.85 * step.computing(rank, since, until))
        gpu.to(_at(step.seconds, longest) + 0.1, 0.2, opacity=0.15)
        found += [gpu, text(x, TOP + 34, f"{rank}", 34, weight=700)]
    return found


def _time(step: Step, longest: float) -> list[Mark]:
    """Draw GPU 0's step so far: the time in which it computed, followed by the time in which it waited."""
    works, waits = (box(290, 500, 0, 56, *what) for what in ((COMPUTES, "it computes"), ("faint", "it waits")))
    done, scale = 0.0, 740 / longest  # seconds of computing; pixels of a second
    for since, until, at, lasting in _stretches(step, longest):
        done += step.computing(0, since, until) * (until - since)
        works.to(at, lasting, w=scale * done)
        waits.to(at, lasting, x=290 + scale * done, w=scale * (until - done))
    frame = box(290, 500, 740, 56, "paper", stroke="faint", width=2)
    return [text(276, 528, "GPU 0's time", 28, anchor="end"), frame, works, waits]


def _flows(step: Step, places, longest: float) -> list[Mark]:
    """Draw the messages that take longest, each in flight for as long as the clock says."""
    flows = sorted(step.replayed.flows, key=lambda flow: flow.start - flow.sent)[:MOST_FLOWS]
    found = []
    for flow in flows:
        start, end = (_at(time - step.start, longest) for time in (flow.start, flow.sent))
        if end - start < 0.04 or start < 0:
            continue
        found.append(_dot(step, flow, places, start, end))
    return found


def _crossing(step: Step, longest: float) -> float:
    """Return the moment at which the longest message between nodes is half way."""
    flow = max(filter(step.crosses, step.replayed.flows), key=lambda flow: flow.sent - flow.start, default=None)
    middle = (flow.start + flow.sent) / 2 - step.start if flow else step.seconds / 2
    return max(0.5, _at(middle, longest))


def _dot(step: Step, flow: Flow, places, start: float, end: float) -> Mark:
    (x, y), (to_x, to_y) = places[flow.source], places[flow.destination]
    colour = TENSOR_PARALLEL if is_tensor_parallel(flow, step.layout) else DATA_PARALLEL
    y, to_y = y + GPU[1] / 2 + 26, to_y + GPU[1] / 2 + 26
    low = TOP + NODE[1] - DOT / 2 if step.crosses(flow) else y + 26
    dot = box(x - DOT / 2, y, DOT, DOT, colour, f"{flow.nbytes:,} bytes from {flow.source} to {flow.destination}")
    dot.enter(start, 0.01)
    lasting = end - start - 0.02
    dot.to(start + 0.01, lasting * 0.2, y=low).to(start + 0.01 + lasting * 0.2, lasting * 0.6, x=to_x - DOT / 2)
    return dot.to(start + 0.01 + lasting * 0.8, lasting * 0.2, y=to_y).leave(end, 0.01)
