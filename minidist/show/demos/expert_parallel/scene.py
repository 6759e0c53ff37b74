"""What the animation of expert parallelism says: tokens to their experts and back, and what the experts learn."""

from collections.abc import Sequence

from minidist.show.demos.expert_parallel import picture
from minidist.show.demos.expert_parallel.picture import Rows
from minidist.show.demos.expert_parallel.run import TOP_K, WIDTH, Step
from minidist.show.player.scene import Frame, Scene, Shape


class Story:
    """Collects the frames of one step.

    Args:
        step: of the run that is shown.
        reference: of one process.
    """

    def __init__(self, step: Step, reference: Step) -> None:
        self.step, self.reference = step, reference
        self.frames: list[Frame] = []
        self.everywhere = range(step.ranks)  # all distances
        self.frame_of_pace = 0  # the one in which all ranks have computed
        self.total = 4 * step.moved(self.everywhere[1:])  # there and back, in forward and in backward

    def add(
        self, note: str, sent: int, rows: Rows, panel: Sequence[Shape], arrows: Sequence[Shape] = (),
        routed: bool = True, combined: bool = False,
    ) -> None:  # fmt: skip
        """A frame; ``sent`` counts the rows that have moved between ranks."""
        step = self.step
        shapes = (
            *picture.tokens(step, rows, routed, combined),
            *picture.queues(step, rows),
            *arrows,
            *panel,
        )
        mean = sum(step.loads) / step.ranks
        facts = {
            "rows sent": f"{sent} of {self.total}",
            f"a row, C = {WIDTH}": f"{step.row_bytes} B",
            "bytes": f"{sent * step.row_bytes:,}",
            "busiest rank": f"{max(step.loads)} rows, mean {mean:g}" if routed else "?",
        }
        self.frames.append(Frame(shapes, note, facts))

    def forward(self) -> None:
        """Route, announce, dispatch, compute, return, combine."""
        step, ranks, everywhere = self.step, self.step.ranks, self.everywhere
        before, idle, experts = picture.lanes(step, 0, False), picture.lanes(step, 0), step.experts
        text = f"Each of {ranks} ranks has tokens of its own, and {step.experts_of_rank} of the {experts} experts."
        self.add(text, 0, Rows(), before, routed=False)
        text = f"The router: each token chooses {TOP_K} of {experts} experts, wherever they are."
        self.add(text, 0, Rows(), before)
        text = "A first, small all-to-all: each rank tells the others how many rows will come to each expert."
        self.add(text, 0, Rows(True), idle)
        for distance in everywhere:
            places = f"{distance} place{'s' * (distance > 1)}"
            text = f"Dispatch, message {distance} of {ranks - 1}: each rank sends to the rank {places} after it."
            if not distance:
                text = "Dispatch, the second all-to-all: rows for a rank's own experts stay."
            rows, sent = Rows(True, everywhere[: distance + 1]), step.moved(everywhere[1 : distance + 1])
            self.add(text, sent, rows, idle, picture.arrows(step, distance))
        sent, there = step.moved(everywhere[1:]), Rows(True, everywhere)
        first, last = min(step.loads), max(step.loads)
        if first < last:
            text = f"The experts compute. Finished after {first} rows: {_ranks(step.loads, first)}."
            self.add(text, sent, there, picture.lanes(step, first))
        text = f"The busiest rank sets the pace: all wait for {_ranks(step.loads, last)} with {last} rows."
        if first == last:
            text = f"The experts compute: every rank has {last} rows."
        self.frame_of_pace = len(self.frames)
        done = picture.lanes(step, last)
        self.add(text, sent, there, done)
        for distance in everywhere[1:]:
            rows = Rows(True, everywhere, everywhere[: distance + 1])
            text = f"The third all-to-all, message {distance} of {ranks - 1}: results go home by the same ways."
            back = step.moved(everywhere[1 : distance + 1])
            self.add(text, sent + back, rows, done, picture.arrows(step, distance, back=True))
        home = Rows(True, everywhere, everywhere)
        self.add(self._combined(), 2 * sent, home, done, combined=True)

    def _combined(self) -> str:
        route = self.step.routes[0]
        terms = " + ".join(
            f"{weight:.2f} × E{expert}" for weight, expert in zip(route.weights[0], route.chosen[0], strict=True)
        )
        return f"Combine: a token is the weighted sum of its experts' results. Token t0 of rank 0: {terms}."

    def backward(self) -> int:
        """Gradients of rows go the same ways, then those of the experts are averaged; returns that frame's number."""
        step, right = self.step, self.reference.gradients
        ranks, found, there = step.ranks, step.gradients, Rows(True, self.everywhere)
        most = max(found.summed)  # the same with the bug and without
        text = "Backward: rows' gradients take the same ways. An expert sums those of its rows, from all ranks."
        sums = picture.gradients(found.summed, right.averaged, most, [picture.OF_RANKS] * step.experts)
        self.add(text, self.total, there, sums)
        number, wrong = len(self.frames), wrong_experts(step, self.reference)
        fills = ["wrong" if expert in wrong else picture.OF_RANKS for expert in range(step.experts)]
        text = f"The mean over the {ranks} micro-batches of all ranks: divided by {ranks}, as in one process."
        if wrong:
            text = f"Wrong: divided by 1, the micro-batches of its own rank. The sum has those of all {ranks} ranks."
        means = picture.gradients(found.averaged, right.averaged, most, fills)
        self.add(text, self.total, there, means)
        same = step.fingerprint == self.reference.fingerprint
        text = "After the optimizer: the ranks have the bits of one process."
        if not same:
            text = "After the optimizer: other bits. The loss, from before the update, does not show it."
        loss = self.reference.loss, step.loss
        proof = picture.fingerprints(ranks, self.reference.fingerprint, step.fingerprint, loss)
        self.add(text, self.total, there, proof)
        return number


def of_step(step: Step, reference: Step, verdict: str, broken: bool = False) -> Scene:
    """The scene of a step; ``reference`` is the step of one process."""
    story = Story(step, reference)
    story.forward()
    averaged = story.backward()
    size = len(step.routes[0].chosen)
    title = f"Expert parallelism: {step.ranks} ranks, {step.experts} experts, top-{TOP_K}, {size} tokens on each rank"
    key = {"idle": "faint", "of the ranks": picture.OF_RANKS, "of one process": "ink"}
    key |= {"wrong": "wrong"} if broken else {}
    stills = (averaged, len(story.frames) - 1) if broken else (4, story.frame_of_pace)
    return Scene(
        "broken" if broken else "routes", title, tuple(story.frames), picture.height(step.ranks), key, verdict,
        averaged if broken else None, stills,
    )  # fmt: skip


def wrong_experts(step: Step, reference: Step) -> set[int]:
    """The experts whose averaged gradient has other bits than in one process."""
    pairs = enumerate(zip(step.gradients.digests, reference.gradients.digests, strict=True))
    return {expert for expert, (found, right) in pairs if found != right}


def verdict(step: Step, proof: str) -> str:
    """What was counted, and that the run is right."""
    moved = 4 * step.moved(range(1, step.ranks))
    return (
        f"The routes say {moved} rows of {step.row_bytes} B between ranks, in forward and backward; the ranks counted "
        f"the same {moved * step.row_bytes:,} B. {proof}"
    )


def harm(step: Step, reference: Step, proof: str) -> str:
    """What the bug spoils."""
    wrong = sorted(wrong_experts(step, reference))
    factors = [step.gradients.averaged[expert] / reference.gradients.averaged[expert] for expert in wrong]
    low, high = f"{min(factors):.2f}", f"{max(factors):.2f}"
    size = low if low == high else f"{low} to {high}"
    loss = "has the same bits" if step.loss == reference.loss else "differs"
    return (
        f"The gradients of {len(wrong)} experts are {size} times as large as in one process. The loss of this step "
        f"{loss}. {proof}"
    )


def _ranks(loads: Sequence[int], load: int) -> str:
    """The ranks with that many rows."""
    numbers = [rank for rank, found in enumerate(loads) if found == load]
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
