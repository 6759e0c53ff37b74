"""What a collective looks like: columns of terms travel from rank to rank, and pile up."""

from collections.abc import Sequence

import numpy as np

from minidist.show.demos.collectives.terms import Step
from minidist.show.figures.contributions import LETTERS
from minidist.show.palette import of_rank
from minidist.show.stage.counter import counter
from minidist.show.stage.marks import Mark, box, line, text
from minidist.show.stage.network import Network
from minidist.show.stage.story import Beat, Question, Story

STEP, MOVES = 1.6, 1.2  # seconds of a step, and of what travels in it


def story(name: str, question: str, steps: Sequence[Step], says, right: Sequence[Step] | None = None, asks: Question | None = None, bug: str = "") -> Story:
    ranks = len(steps[0].terms)
    wide, high = (190, 160) if ranks <= 5 else (150, 132)
    net = Network(ranks, (wide, high), (475, 300), (355, 205))
    block = (high - 58) / ranks, (wide - 28) / ranks  # height, width

    def slot(rank: int, chunk: int, level: int) -> tuple[float, float]:
        x, y = net.places[rank]
        return x - wide / 2 + 14 + chunk * block[1], y + high / 2 - 38 - (level + 1) * block[0]

    def made(rank: int, chunk: int, level: int, term) -> Mark:
        x, y = slot(rank, chunk, level)
        what = f"GPU {term[0]}'s term of chunk {LETTERS[term[1]]}"
        return box(x + 1, y + 1, block[1] - 2, block[0] - 2, of_rank(term[0]), what)

    piles = [[[] for _ in range(ranks)] for _ in range(ranks)]  # rank, chunk -> (mark, term) from the bottom up
    marks = list(net.marks())
    whole = [line([slot(rank, 0, ranks - 1), (slot(rank, ranks - 1, ranks - 1)[0] + block[1], slot(rank, 0, ranks - 1)[1])], "ink", 2) for rank in range(ranks)]
    marks += whole
    for rank in range(ranks):
        for chunk in range(ranks):
            for term in _listed(steps[0].terms[rank, chunk]):
                pile = piles[rank][chunk]
                pile.append((made(rank, chunk, len(pile), term), term))
                marks.append(pile[-1][0])
    frames = {}
    for number, step in enumerate(steps[1:], 1):
        at, landing = (number - 1) * STEP, []
        for message in step.messages:
            for chunk, origin in message.chunks.items():
                old, new = steps[number - 1].terms[message.destination, chunk], step.terms[message.destination, chunk]
                adds = bool((new >= old).all())
                pile = piles[message.destination][chunk]
                base = len(pile) if adds else 0
                if not adds:
                    for mark, _ in pile:
                        mark.leave(at + MOVES * 0.8, MOVES * 0.2)
                source = dict.fromkeys(_listed(new - old if adds else new))
                arriving = []
                for level, term in enumerate(_listed(new - old if adds else new)):
                    places = [i for i, (_, held) in enumerate(piles[message.source][origin]) if held == term]
                    mark = made(message.source, origin, places[0] if places else 0, term).enter(at, 0.02)
                    x, y = slot(message.destination, chunk, base + level)
                    net.travel(mark, message.source, message.destination, (x + 1, y + 1), at + 0.1, MOVES)
                    arriving.append((mark, term))
                marks += [mark for mark, _ in arriving]
                landing.append((message.destination, chunk, adds, arriving))
        for rank, chunk, adds, arriving in landing:
            piles[rank][chunk] = piles[rank][chunk] * adds + arriving
        wrong = right is not None and (step.terms != right[min(number, len(right) - 1)].terms)
        for rank in range(ranks):
            for chunk in range(ranks):
                state = "wrong" if right is not None and wrong[rank, chunk].any() else "right" if (step.terms[rank, chunk].sum((0, 1)) if 0 else step.terms[rank, chunk].sum()) == ranks else None
                if state and frames.get((rank, chunk)) != state:
                    frames[rank, chunk] = state
                    x, y = slot(rank, chunk, ranks - 1)
                    frame = box(x, y, block[1], block[0] * ranks, "none", stroke=state, width=4)
                    marks.append(frame.enter(at + MOVES, 0.2))
    values = [(0.0, "0")] + [(n * STEP - 0.3, f"{max(step.sent):.2f}".rstrip("0").rstrip(".")) for n, step in enumerate(steps) if n]
    marks += counter(1110, 250, "arrays sent\nby each GPU", values)
    beats = [
        Beat(n * STEP, says(n), {"step": f"{n} of {len(steps) - 1}", "sent by the busiest GPU": f"{max(step.sent):.2f} arrays"},
             asks=asks if n == 0 else None, answers=asks if n == len(steps) - 1 else None)
        for n, step in enumerate(steps)
    ]  # fmt: skip
    return Story(name, question, marks, beats, broken=bug)


def _listed(terms: np.ndarray) -> list[tuple[int, int]]:
    """Each term (r, c) as often as it is there."""
    return [(r, c) for (r, c), count in np.ndenumerate(terms) for _ in range(int(count))]
