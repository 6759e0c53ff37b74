"""Context parallelism: keys travel round a ring while a triangle of scores fills, or heads change hands."""

from collections.abc import Sequence
from itertools import pairwise

from minidist.parallel.context import sequence_chunks_of
from minidist.show.demos.context_parallel.heads_run import Exchanged, Place, same
from minidist.show.demos.context_parallel.run import CHUNKS, Pass
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.stage.marks import Mark, box, counter, text
from minidist.show.stage.network import Network
from minidist.show.stage.story import Beat, Question, Story

RUNS, FIRST = 9.0, 0.6  # seconds of the longest pass, and before it
AREA, BOX = (0, 0, 640, 600), (196, 128)  # of the ring, and of a GPU
LEFT, TOP, SIDE = 780, 40, 480  # of the triangle
GRADIENTS = MEANINGS["gradients"]
SAME = "Every bit matches one process."


def ring(kind: str, run: Pass, longest: int, bug: str = "", details: str = "") -> Story:
    """Tell the story of forward: keys go round, tiles fill, and GPUs without work are idle.

    Args:
        longest: slots of the longest pass of all stories, which takes RUNS.
    """
    marks, owner = _board(kind, run)
    marks += _passing(run, longest, ())
    marks += _tiles(run, longest, owner, run.stale())
    ends = _at(run.end(-1), longest)
    busy = run.busy()
    marks += counter(930, 560, "", [(0.0, ""), (ends, f"{busy:.0%} busy")], 56)
    even = busy > 0.999
    asked = Question.number(
        "How much of the time are the GPUs busy?",
        busy,
        (busy * 0.6, min(1.0, busy * 1.3)),
        "Each GPU has an early and a late part, so all have the same work."
        if even
        else "A GPU with early tokens may not use later keys: when they arrive, it is idle.",
        "{:.0%}",
    )
    facts = {"each GPU sends": f"{run.nbytes:,} bytes", "slots": f"{run.end(-1)} of {longest}", "busy": f"{busy:.1%}"}
    wrong = sum(len(run.visits[hop][rank].pairs) for hop, rank in run.stale())
    last = (
        f"{wrong} of {run.pairs()} tiles used the wrong keys, and no error was raised."
        if bug
        else "All tiles are done: every query has met the keys before it."
    )
    asked = None if bug else asked
    beats = [
        Beat(0, "Each GPU has some tokens. A query needs all keys before it, on every GPU.", facts, asks=asked),
        Beat(_at(run.end(0), longest), "First each GPU uses its own keys while they travel on.", facts),
        *(
            [
                Beat(
                    _at((run.end(0) + run.end(1)) / 2, longest),
                    "GPU 0 got keys of later tokens, which it may not use: it is idle.",
                    facts,
                )
            ]
            if run.ranks > 2 and not even
            else []
        ),
        Beat(max(ends, _at(longest, longest) if bug else ends) + 0.3, last, facts, answers=asked),
    ]
    verdict = "The loss is wrong." if bug else SAME
    return Story(kind, "Where do the other tokens' keys come from?", marks, beats, verdict, bug, details)


def backward(run: Pass, right: Pass, wrong: set[tuple[int, int]], bug: str = "", details: str = "") -> Story:
    """Tell the story of backward: gradients follow the keys, gather a term on each GPU, and come home.

    Args:
        wrong: each (hop, rank) that adds wrong terms.
    """
    marks, owner = _board("ring", run)
    longest = run.end(-1) + 1  # the last hop brings the gradients home
    marks += _passing(run, longest, wrong)
    marks += _tiles(run, longest, owner, wrong)
    asked = Question(
        "How many hops does the gradient of a GPU's keys make?",
        (f"{run.ranks - 1}", f"{run.ranks}", f"{2 * run.ranks}"),
        1,
        "It gathers a term on each GPU that used the keys, and one more hop brings it home.",
    )
    facts = {"each GPU sends": f"{run.nbytes:,} bytes"}
    asked = None if bug else asked
    beats = [
        Beat(0, "A key's gradient is a sum over all queries that used it, on this GPU and others.", facts, asks=asked),
        Beat(_at(run.end(0), longest), "Keys go round again. Each GPU that uses them adds to their gradient.", facts),
        Beat(
            FIRST + RUNS + 0.3,
            "Forward and the loss are right; the gradients are wrong."
            if bug
            else "Every gradient is home, with a term from each GPU that used the keys.",
            facts,
            answers=asked,
        ),
    ]
    verdict = "Wrong gradients." if bug else SAME
    return Story("backward", "How does a key's gradient come home?", marks, beats, verdict, bug, details)


def ulysses(
    run: Sequence[Sequence[Exchanged]],
    right: Sequence[Sequence[Exchanged]],
    ring_bytes: int,
    bug: str = "",
    details: str = "",
) -> Story:
    """Tell the story of two all-to-alls: some tokens of all heads become all tokens of one head, and come back."""
    there, back = run
    ranks = len(there)
    stale = {place for one in there for place in one.after} - same(there, right[0])
    wrong = {place for one in back for place in one.after} - same(back, right[1])
    wide, high = 1240 / ranks, 400 / ranks
    cell = (wide - 40) / ranks

    def spot(rank: int, place: Place) -> tuple[float, float]:
        chunk, head = place
        return 20 + rank * wide + 20 + head * cell, 90 + chunk * high

    marks: list[Mark] = []
    for rank in range(ranks):
        marks.append(box(20 + rank * wide + 8, 78, wide - 16, 424, "paper", f"GPU {rank}", stroke="ink", round=8))
        marks.append(text(20 + rank * wide + wide / 2, 40, f"GPU {rank}", 32))
    marks.append(text(640, 545, "across: heads, down: tokens"))
    for rank, one in enumerate(there):
        for place in one.before:
            chunk, head = place
            x, y = spot(rank, place)
            piece = box(x + 1, y + 1, cell - 2, high - 2, of_rank(chunk), f"tokens {chunk} of head {head}")
            x, y = spot(head, place)
            piece.to(1.5, 1.5, x=x + 1, y=y + 1)
            if place in stale:
                piece.to(3.0, 0.2, fill="wrong")
            piece.to(4.6, 0.3, opacity=0.5).to(4.9, 0.3, opacity=1)
            if place in wrong and place not in stale:
                piece.to(5.2, 0.1, fill="wrong")
            x, y = spot(rank, place)
            marks.append(piece.to(6.0, 1.5, x=x + 1, y=y + 1))
    asked = Question(
        "Attention mixes tokens, not heads. What should travel?",
        ("all keys, to every GPU", "each GPU gets one head of all tokens", "nothing"),
        1,
        "A head needs all its tokens and nothing from other heads: one all-to-all, no ring.",
    )
    sent = sum(exchange[0].nbytes for exchange in run)
    facts = {"each GPU sends": f"{sent:,} bytes", "a ring would send": f"{ring_bytes:,} bytes"}
    asked = None if bug else asked
    beats = [
        Beat(0, "Each GPU has some tokens, of all heads.", facts, asks=asked),
        Beat(
            3.4,
            f"{len(stale)} of {ranks**2} parts are a GPU's own keys again."
            if bug
            else "An all-to-all: now each has all tokens of one head.",
            facts,
            answers=asked,
        ),
        Beat(5.6, "Attention as on one GPU, without a message.", facts),
        Beat(7.8, "A second all-to-all brings the outputs home.", facts),
    ]
    verdict = f"Wrong: {len(wrong)} of {ranks**2} outputs." if bug else SAME
    return Story("Ulysses", "Do keys have to travel at all?", marks, beats, verdict, bug, details)


def _at(slot: float, longest: float) -> float:
    """Return the moment of a slot on the story's clock."""
    return FIRST + RUNS * slot / longest


def _board(kind: str, run: Pass) -> tuple[list[Mark], dict[int, int]]:
    """Return the marks of the ring of GPUs and of the empty triangle; and the GPU of each chunk."""
    ranks = run.ranks
    count = CHUNKS[kind] * ranks
    chunks = [sequence_chunks_of(rank, ranks, count, kind) for rank in range(ranks)]
    net = Network.on_ring(ranks, BOX, AREA)
    marks = net.marks()
    size = SIDE / count
    for i in range(count):
        for j in range(i + 1):
            marks.append(
                box(LEFT + j * size + 1, TOP + i * size + 1, size - 2, size - 2, "faint", f"queries {i}, keys {j}")
            )
    owner = {chunk: rank for rank, mine in enumerate(chunks) for chunk in mine}
    for i in range(count):
        colour, whose = of_rank(owner[i]), f"on GPU {owner[i]}"
        marks.append(box(LEFT - 26, TOP + i * size + 2, 18, size - 4, colour, f"queries {i}, {whose}"))
        marks.append(box(LEFT + i * size + 2, TOP - 26, size - 4, 18, colour, f"keys {i}, {whose}"))
        if size > 40:
            marks.append(text(LEFT - 34, TOP + (i + 0.5) * size, f"GPU {owner[i]}", anchor="end"))
    marks.append(text(LEFT + SIDE - 10, TOP + 24, "keys →", 32, anchor="end"))
    marks.append(text(LEFT - 34, TOP + SIDE + 34, "queries", 32, anchor="end"))
    return marks, owner


def _passing(run: Pass, longest: float, wrong) -> list[Mark]:
    """Draw a lamp on each GPU while it computes, and each GPU's keys as they go round; in backward, with a gradient."""
    net, ranks, times = Network.on_ring(run.ranks, BOX, AREA), run.ranks, run.times()
    found: list[Mark] = []
    for rank, (x, y) in enumerate(net.places):
        lamp = box(x - BOX[0] / 2 + 6, y - BOX[1] / 2 + 6, BOX[0] - 12, 10, of_rank(rank), f"GPU {rank} computes")
        lamp.begin(opacity=0.1)
        busy = [visit[rank] for visit in times if visit[rank][1] > visit[rank][0]]
        for start, stop in busy:
            lamp.to(_at(start, longest), 0.05, opacity=1).to(_at(stop, longest) - 0.05, 0.05, opacity=0.1)
        found.append(lamp)
        for (_, stop), (start, _) in pairwise([(0, 0), *busy, (run.end(-1), run.end(-1))]):
            if start > stop:
                idle = text(x + 46, y - 12, "idle", 32, "wrong", weight=700)
                found.append(idle.enter(_at(stop, longest), 0.1).leave(_at(start, longest) - 0.1, 0.1))
    gathers = run.visits[0][0].gradients.size > 0
    for owner in range(ranks):
        keys = _Traveller(net, owner, 0, 84, f"keys and values of GPU {owner}")
        grown = _Traveller(net, owner, 92, 0, f"gradient of GPU {owner}'s keys") if gathers else None
        for hop in range(ranks):
            rank = (owner + hop) % ranks
            stop = times[hop][rank][1]
            if hop:
                arrives = _at(run.end(hop - 1), longest)
                keys.go((rank - 1) % ranks, rank, arrives - 0.8, arrives)
            if grown:
                bad = (hop, rank) in wrong
                if hop:
                    grown.go((rank - 1) % ranks, rank, _at(stop, longest) - 0.55, _at(stop, longest) - 0.25)
                if run.visits[hop][rank].pairs:
                    grown.grow(_at(stop, longest) - 0.2, bad)
        if grown:
            grown.go((owner - 1) % ranks, owner, _at(longest - 1, longest) + 0.2, _at(longest, longest) - 0.1)
            found.append(grown.mark)
        found.append(keys.mark)
    return found


class _Traveller:
    """Block that goes round the ring, below the GPUs' lamps."""

    def __init__(self, net: Network, owner: int, right: float, size: float, thing: str) -> None:
        self.net, self.right = net, right
        words = {"text": "keys"} if size else {}
        self.mark = box(*self._spot(owner), size, 52, of_rank(owner) if size else GRADIENTS, thing, **words)

    def _spot(self, rank: int) -> tuple[float, float]:
        x, y = self.net.places[rank]
        return x - BOX[0] / 2 + 12 + self.right, y - 40

    def go(self, source: int, destination: int, at: float, until: float) -> None:
        at = max(at, self.mark.keys[-1][0])
        self.net.travel(self.mark, source, destination, self._spot(destination), at, max(0.1, until - at))

    def grow(self, at: float, bad: bool) -> None:
        """Widen the block by one term."""
        fill = "wrong" if bad else self.mark.now["fill"]
        self.mark.to(max(at, self.mark.keys[-1][0]), 0.15, w=self.mark.now["w"] + 20, fill=fill)


def _tiles(run: Pass, longest: float, owner: dict[int, int], wrong) -> list[Mark]:
    """Draw each tile in its turn, in the colour of its keys."""
    size, found = SIDE / len(owner), []
    times = run.times()
    frames = (box(0, 0, size, size, "none", f"GPU {i} computes", stroke="ink", width=6) for i in range(run.ranks))
    now = [frame.begin(opacity=0) for frame in frames]
    for hop, visits in enumerate(run.visits):
        for rank, visit in enumerate(visits):
            start, stop = times[hop][rank]
            for number, (i, j) in enumerate(sorted(visit.pairs)):
                done = start + (stop - start) * (number + 1) / len(visit.pairs)
                bad = (hop, rank) in wrong
                tile = box(
                    LEFT + j * size + 1,
                    TOP + i * size + 1,
                    size - 2,
                    size - 2,
                    "wrong" if bad else of_rank(owner[j]),
                    f"hop {hop} on GPU {rank}",
                )
                found.append(tile.enter(_at(done, longest) - 0.35, 0.15))
                at = _at(done - (stop - start) / len(visit.pairs), longest)
                now[rank].to(at, 0.02, x=LEFT + j * size, y=TOP + i * size, opacity=1).to(
                    _at(done, longest) - 0.04, 0.02, opacity=0
                )
    return found + now
