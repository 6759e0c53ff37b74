"""What the animation of a cluster says: the same step again, and how much longer it takes."""

from collections.abc import Mapping, Sequence

from minidist.show.demos.cluster import wires
from minidist.show.demos.cluster.bars import Bars, height, microseconds
from minidist.show.demos.cluster.colours import KEY
from minidist.show.demos.cluster.run import ACROSS, CONGESTED, ONE, TWO, Step
from minidist.show.player.scene import Box, Frame, Scene
from minidist.trace import Event

WORDS = {ONE: "one node", TWO: "two nodes", CONGESTED: "congested", ACROSS: "tp across"}
FASTER = 3  # cells a frame, once the right run would be done


class Story:
    """Makes a scene of each step.

    Args:
        steps: the step on one node, on two, and behind the congested uplink.
        across: the name of a cluster of two nodes -> the step on it with tensor parallelism across nodes.
    """

    def __init__(self, steps: Sequence[Step], across: Mapping[str, Step]) -> None:
        self.steps, self.across = steps, across
        self.bars = Bars(max(step.seconds for step in across.values()), steps[0].seconds)

    def of_step(self, number: int, verdict: str) -> Scene:
        """The scene of one of the ``steps``."""
        step, cells = self.steps[number], self.bars.cells(self.steps[number])
        frames = [self._frame(step, number, now) for now in range(cells + 1)]
        title = f"{step.name.capitalize()}: one training step on {step.ranks} H100s"
        stills = (self._busiest(step), len(frames) - 1)
        lines = height(len(self.steps))
        return Scene(step.name, title, tuple(frames), lines, _key(frames), verdict, stills=stills)

    def _busiest(self, step: Step) -> int:
        """The first cell that begins with the most messages between nodes; in one node, with the most messages."""

        def messages(cell: int) -> tuple[int, int]:
            flows = step.in_flight(cell * self.bars.cell)
            return sum(map(step.crosses, flows)), len(flows)

        return max(range(self.bars.cells(step)), key=messages)

    def of_bug(self, number: int, verdict: str) -> Scene:
        """The scene with tensor parallelism across nodes, in the place of one of the ``steps``."""
        right, twin = self.bars.cells(self.steps[number]), self.steps[number].name
        across = self.across[twin]
        cells = self.bars.cells(across)
        moments = [*range(right + 1), *range(right + FASTER, cells, FASTER), cells]
        frames = [self._frame(across, number, now) for now in moments]
        wrong = next(i for i, now in enumerate(moments) if across.crossing_bytes(True, now * self.bars.cell))
        title = f"{twin.capitalize()}: every tensor-parallel group lies across both nodes"
        lines, stills = height(len(self.steps)), (right, len(frames) - 1)
        return Scene(f"broken {twin}", title, tuple(frames), lines, _key(frames), verdict, wrong, stills, twin)

    def _frame(self, step: Step, place: int, now: int) -> Frame:
        """The first ``now`` cells of a step, with the load of the wires in the last of them."""
        begin, end = (min(cells * self.bars.cell, step.seconds) for cells in (max(0, now - 1), now))
        shapes = [*wires.network(step, begin, end), *self.bars.axis(len(self.steps))]
        for number, other in enumerate(self.steps):
            one = step if number == place else other
            cells = now if number == place else self.bars.cells(one) if number < place else None
            shapes += self.bars.row(number, WORDS[one.name], one, cells)
        if step.name == ACROSS and end >= self.steps[place].seconds:
            shapes += self.bars.mark(place, self.steps[place])
        ended = now >= self.bars.cells(step)
        note = self._question(step, place) if not now else self._end(step, place) if ended else phase(step, end)
        return Frame(tuple(shapes), note, self._facts(step, begin, end), 1e6 * end)

    def _question(self, step: Step, place: int) -> str:
        if step.name == ACROSS:
            right = microseconds(self.steps[place].seconds)
            return f"Each tp group is on both nodes. With tp inside nodes: {right}. How long now?"
        if step.name == ONE:
            return f"{step.layout}: a step of {step.ranks} real ranks, on the clock of {step.ranks} H100s in one node."
        if step.name == TWO:
            return "The same messages, and a node for each copy of the model. A link is as wide as its bandwidth."
        return f"Now the {step.layout.tp} NICs of a node share {wires.uplink_speed(step)} of uplink."

    def _end(self, step: Step, place: int) -> str:
        if step.name == ONE:
            return f"Done after {microseconds(step.seconds)}."
        times = f"{step.seconds / self.steps[0].seconds:.1f} times as long as in one node"
        if step.name == ACROSS:
            times = f"{step.seconds / self.steps[place].seconds:.1f} times as long as with tp inside nodes (black line)"
        return f"Done after {microseconds(step.seconds)}: {times}."

    def _facts(self, step: Step, begin: float, end: float) -> dict[str, str]:
        sent = [step.crossing_bytes(kind, end) / 1e6 for kind in (True, False)]
        computing = [step.computing(rank, 0, end) for rank in range(step.ranks)] if end else [0.0]
        facts = {
            "time": microseconds(end),
            "computing": f"{sum(computing) / len(computing):.0%}",
            "between nodes": f"tp {sent[0]:.1f}, dp {sent[1]:.1f} MB",
        }
        if wires.uplinks(step):
            facts["uplink"] = f"{uplink_load(step, begin, end):.0%}" if end > begin else "0%"
        return facts


def _key(frames: Sequence[Frame]) -> dict[str, str]:
    """The meaning of the colours that there are."""
    fills = {shape.fill for frame in frames for shape in frame.shapes if isinstance(shape, Box)}
    return {name: colour for name, colour in KEY.items() if colour in fills}


def uplink_load(step: Step, begin: float, end: float) -> float:
    """The load of the fuller direction of the uplink between two times of the step."""
    zero = step.start
    return max(step.load.mean(edge, zero + begin, zero + end) for edge in wires.uplinks(step))


def uplink_full(step: Step) -> float:
    """The share of the step in which the fuller direction of the uplink is full."""
    end = step.start + step.seconds
    return max(step.load.full(edge, step.start, end) for edge in wires.uplinks(step))


def phase(step: Step, time: float) -> str:
    """What rank 0 does at a time of the step, in a sentence."""
    moment = (step.start + time) * 1e9
    spans = [
        entry.name for entry in step.replayed.logs[0]
        if isinstance(entry, Event) and entry.stream == 0 and entry.start < moment <= entry.end
    ]  # fmt: skip
    across = step.crossing_bytes(tensor_parallel=True) > 0
    where = "between nodes" if across else "inside the nodes" if max(step.topology.nodes) else "inside the node"
    sentences = {
        "forward": f"Forward: tensor parallelism sums activations, {where}.",
        "backward": f"Backward: tensor parallelism sums gradients of activations, {where}.",
        "sync gradients": "Nothing left to compute: all wait for data parallelism to sum the gradients.",
        "optimizer": "The optimizer: the norm of all gradients, then every rank updates its weights.",
    }
    found = (sentence for span, sentence in sentences.items() if any(name.startswith(span) for name in spans))
    return next(found, "The ranks sum their losses.")
