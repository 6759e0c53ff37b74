"""What the animation of expert parallelism says: tokens to their experts and back, and what the experts learn."""

from collections.abc import Sequence

from minidist.show.demos.expert_parallel import picture
from minidist.show.demos.expert_parallel.picture import Rows
from minidist.show.demos.expert_parallel.run import TOP_K, WIDTH, Step
from minidist.show.player.scene import Frame, Scene, Shape

TITLE = "A token flies to its experts, wherever they are, and comes home"
WITH_CAPACITY = "Capacity: a full expert takes no more, and the token goes on without it"
ANNOUNCED = 2  # the frame in which every rank knows how many rows will come


class Story:
    """Collects the frames of one step.

    Args:
        step: the step of the run that is shown.
        reference: the step of one process.
    """

    def __init__(self, step: Step, reference: Step) -> None:
        self.step, self.reference = step, reference
        self.frames: list[Frame] = []
        self.everywhere = range(step.ranks)  # all distances
        self.frame_of_pace = 0  # the one in which all ranks have computed
        self.total = 4 * step.moved(self.everywhere[1:])  # there and back, in forward and in backward

    def add(
        self, note: str, sent: int, rows: Rows, below: Sequence[Shape], arrows: Sequence[Shape] = (),
        routed: bool = True, combined: bool = False,
    ) -> None:  # fmt: skip
        """A frame; ``sent`` counts the rows that have moved between ranks."""
        step = self.step
        shapes = (*picture.homes(step, rows, routed, combined), *below, *arrows)
        mean = sum(step.loads) / step.ranks
        facts = {
            "rows sent": f"{sent} of {self.total}",
            "bytes": f"{sent * step.row_bytes:,}",
            f"a row, C = {WIDTH}": f"{step.row_bytes} B",
            "busiest rank": f"{max(step.loads)} rows, mean {mean:g}" if rows.announced else "?",
        }
        self.frames.append(Frame(shapes, note, facts))

    def forward(self) -> None:
        """Route, announce, dispatch, compute, return, combine."""
        step, ranks, everywhere = self.step, self.step.ranks, self.everywhere
        text = "Each rank has tokens of its own above, and an expert below that the other ranks do not have."
        self.add(text, 0, Rows(), picture.stacks(step, Rows()), routed=False)
        text = f"The router: each token chooses {TOP_K} experts, wherever they are, and a copy is made for each."
        self.add(text, 0, Rows(), picture.stacks(step, Rows()))
        text = "A first, tiny all-to-all carries counts: now each rank knows how many rows will come."
        if step.capacity is not None:
            dropped = step.choices - sum(step.loads)
            room = f"Capacity: an expert takes {step.capacity} of each rank's tokens."
            text = f"{room} {dropped} of {step.choices} copies are dropped."
        self.add(text, 0, Rows(True), picture.stacks(step, Rows(True)))
        for distance in everywhere:
            places = f"{distance} place{'s' * (distance > 1)}"
            text = f"Dispatch, message {distance} of {ranks - 1}: each rank sends to the rank {places} after it."
            if not distance:
                text = "Dispatch: rows whose expert is on the same rank stay there."
            rows, sent = Rows(True, everywhere[: distance + 1]), step.moved(everywhere[1 : distance + 1])
            self.add(text, sent, rows, picture.stacks(step, rows), picture.arrows(step, distance))
        sent, there = step.moved(everywhere[1:]), Rows(True, everywhere)
        first, last = min(step.loads), max(step.loads)
        if first < last:
            text = f"The experts compute. {_ranks(step.loads, first).capitalize()} has finished first."
            self.add(text, sent, there, picture.stacks(step, there, max(1, first)))
        text = f"The busiest rank sets the pace: all wait for {_ranks(step.loads, last)} with {last} rows."
        if first == last:
            text = f"The experts compute: every rank has {last} rows."
        self.frame_of_pace = len(self.frames)
        self.add(text, sent, there, picture.stacks(step, there, last))
        home = Rows(True, everywhere, everywhere)
        text = "A second all-to-all of rows: the results fly home, by the same ways."
        self.add(text, 2 * sent, home, picture.stacks(step, home))
        self.add(self._combined(), 2 * sent, home, picture.stacks(step, home), combined=True)

    def _combined(self) -> str:
        route = self.step.routes[0]
        terms = " + ".join(
            f"{weight:.2f} × expert {expert}" for weight, expert in zip(route.weights[0], route.chosen[0], strict=True)
        )
        return f"Combine: a token is the sum of its experts' results, weighted. {picture.name_of(0, 0)} = {terms}."

    def backward(self) -> int:
        """Gradients of rows go the same ways, then those of the experts are averaged; returns that frame's number."""
        step, right = self.step, self.reference.gradients
        ranks, found, home = step.ranks, step.gradients, Rows(True, self.everywhere, self.everywhere)
        most = max(found.summed)  # the same with the bug and without
        text = "Backward: an expert's gradient is the sum over its rows, from all ranks. Outlined: one process."
        sums = picture.gradients(step, found.summed, right.averaged, most, ())
        self.add(text, self.total, home, sums)
        number, wrong = len(self.frames), wrong_experts(step, self.reference)
        text = f"The mean over the micro-batches of all {ranks} ranks: divided by {ranks}, as in one process."
        if wrong:
            text = f"Wrong: divided by 1, its own rank's micro-batches. The sum has those of all {ranks} ranks."
        means = picture.gradients(step, found.averaged, right.averaged, most, wrong)
        self.add(text, self.total, home, means)
        return number


def of_step(name: str, step: Step, reference: Step, verdict: str, twin: str = "") -> Scene:
    """The scene of a step.

    Args:
        reference: the step of one process.
        twin: the scene without the bug, if this one has it.
    """
    story = Story(step, reference)
    story.forward()
    averaged = story.backward()
    key = {"idle": "faint"} if min(step.loads) < max(step.loads) else {}
    key |= {"wrong": "wrong"} if twin else {"✗ dropped": "wrong"} if step.capacity else {}
    stills = (story.frame_of_pace, averaged) if twin else (4, story.frame_of_pace)
    title = TITLE if step.capacity is None else WITH_CAPACITY
    first_wrong = averaged if twin else None
    return Scene(name, title, tuple(story.frames), picture.HEIGHT, key, verdict, first_wrong, stills, twin=twin)


def wrong_experts(step: Step, reference: Step) -> set[int]:
    """The experts whose averaged gradient has other bits than in one process."""
    pairs = enumerate(zip(step.gradients.digests, reference.gradients.digests, strict=True))
    return {expert for expert, (found, right) in pairs if found != right}


def verdict(step: Step, proof: str) -> str:
    """Who kept the others waiting, what was counted, and that the run is right."""
    moved = 4 * step.moved(range(1, step.ranks))
    mean = sum(step.loads) / step.ranks
    dropped = step.choices - sum(step.loads)
    lost = f", and {dropped} of {step.choices} copies are dropped" if step.capacity is not None else ""
    return (
        f"The busiest rank has {max(step.loads)} rows, the mean is {mean:g}{lost}. In forward and backward {moved} "
        f"rows of {step.row_bytes} B moved between ranks; these counted the same {moved * step.row_bytes:,} B. {proof}"
    )


def harm(step: Step, reference: Step, proof: str) -> str:
    """What the bug spoils."""
    wrong = sorted(wrong_experts(step, reference))
    factors = [step.gradients.averaged[expert] / reference.gradients.averaged[expert] for expert in wrong]
    low, high = f"{min(factors):.2f}", f"{max(factors):.2f}"
    size = low if low == high else f"{low} to {high}"
    loss = "has the same bits" if step.loss == reference.loss else "differs"
    return f"The gradients of {len(wrong)} experts are {size} times too large. The loss of this step {loss}. {proof}"


def _ranks(loads: Sequence[int], load: int) -> str:
    """The ranks with that many rows."""
    numbers = [rank for rank, found in enumerate(loads) if found == load]
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
