"""The scene in which attention is cut by heads: whole heads on each rank, and one sum where they join."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from minidist.show.demos.tensor_parallel.attention import lecture
from minidist.show.demos.tensor_parallel.attention.run import HEAD, TOKENS, WIDTH, Held, Numbers
from minidist.show.demos.tensor_parallel.picture import CELL, NAMES_WIDTH, SENDS, TOP
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.player.scene import Box, Frame, Label, Scene, Shape

PLACES = {"x": WIDTH, "q": HEAD, "k": HEAD, "v": HEAD, "weights": TOKENS, "o": HEAD, "partial": WIDTH, "y": WIDTH}
WIDE = {"weights": 3.1, "o": 3.1, "partial": 3.1, "y": 3.1}  # of a number that is a fraction
NARROW = 2.2  # of an integer
GAPS = (3.2, 0.7, 0.7, 1, 1, 1, 3.2)  # after each place
TALL = 1.25  # lines of a row
PITCH = TALL * TOKENS + 0.9  # from one rank's strip to the next
EVERYWHERE = MEANINGS["replicated"]


def text_of(number: float) -> str:
    """The number with at most one decimal, and no zero before the point."""
    rounded = round(float(number), 1) + 0.0
    text = f"{rounded:.0f}" if rounded == round(rounded) else f"{rounded:.1f}".replace("0.", ".")
    return text.replace("-", "−")


def left_of(place: str) -> float:
    before = list(PLACES)[: list(PLACES).index(place)]
    return NAMES_WIDTH + sum(map(width_of, before)) + sum(GAPS[: len(before)])


def width_of(place: str) -> float:
    return PLACES[place] * WIDE.get(place, NARROW)


def scene_of(name: str, ranks: Sequence[Held], one: Held, numbers: Numbers, verdict: str, bug: bool = False) -> Scene:
    """The scene of a recorded attention.

    Args:
        ranks: what each rank held; ``one``: what one process held.
        bug: whether g's sum was skipped.
    """
    story = _Story(ranks, one, numbers, bug)
    story.tell()
    key = {"on every rank": EVERYWHERE} | {f"rank {rank}'s head": of_rank(rank) for rank in range(len(ranks))}
    key |= {"messages": SENDS} | ({"wrong": "wrong"} if bug else {})
    frames, last = story.frames, len(story.frames) - 1
    height = TOP + len(ranks) * PITCH + 1
    return Scene(
        name, "Attention by heads: softmax needs no message, the output one sum", tuple(frames), height, key, verdict,
        last if bug else None, (1, last - 1, last), questions=lecture.questions(last), cues=lecture.cues(last),
    )  # fmt: skip


@dataclass
class _Story:
    ranks: Sequence[Held]
    one: Held
    numbers: Numbers
    bug: bool
    frames: list[Frame] = field(default_factory=list)
    shown: dict[tuple[str, int], list[Shape]] = field(default_factory=dict)
    headings: dict[str, str] = field(default_factory=dict)

    def tell(self) -> None:
        self._matrices(False, "One process, two heads: each has columns of its own for queries, keys and values.")
        self._matrices(True, "A head's columns of Wq, Wk, Wv and its rows of Wo go to one rank, whole.")
        self._put("x", "x", lambda held: held.x)
        self._add("Every rank has x, and its own head's weights.")
        for place in "qkv":
            self._put(place, place.upper(), lambda held, place=place: getattr(held, place)[0])
        self._add("f copies x: each rank multiplies it by its head's columns. No message.")
        self._put("weights", "Q·Kᵀ", lambda held: held.scores[0], hides=True)
        self._add("The scores of its own head, for every pair of tokens. The future is left out.")
        self._put("weights", "P", lambda held: held.weights[0], hides=True)
        self._add("Softmax along each row of P. The row is complete on its rank, so no message.")
        self._put("o", "O", lambda held: held.o[0])
        self._add("P·V: the head's output. Still no message.")
        self._put("partial", "O·Wo", lambda held: held.partial, hollow=True)
        self._add("O times the head's rows of Wo: y's shape, but only this head's terms of each sum.")
        self._join()

    def _put(self, place: str, heading: str, of: Callable[[Held], np.ndarray], hides: bool = False,
             hollow: bool = False) -> None:  # fmt: skip
        """Show an array of every rank. ``hides``: the future; ``hollow``: terms of a sum."""
        self.headings[place] = heading
        for rank, held in enumerate(self.ranks):
            fill = EVERYWHERE if place == "x" else "paper" if hollow else of_rank(rank)
            outline = of_rank(rank) if hollow else "paper"
            self.shown[place, rank] = [
                self._cell(
                    place, rank, row, column, number, fill, outline, f"{heading}[{row}, {column}] of rank {rank}"
                )
                for row, numbers in enumerate(of(held))
                for column, number in enumerate(numbers)
                if not (hides and column > row)
            ]

    def _cell(self, place: str, rank: int, row: int, column: int, number: float, fill: str, outline: str, name: str,
              ) -> Box:  # fmt: skip
        w = WIDE.get(place, NARROW)
        x, y = left_of(place) + w * column, TOP + PITCH * rank + TALL * row
        return Box(x, y, w, TALL, fill, text_of(number), " ", outline, name)

    def _join(self) -> None:
        """The terms of all ranks fly to where they are added."""
        self.headings["y"] = "y"
        settled, flying = {}, {}
        for rank, held in enumerate(self.ranks):
            cells = [(row, column) for row in range(TOKENS) for column in range(WIDTH)]
            settled[rank] = [
                self._cell("y", rank, row, column, held.y[row, column],
                           "wrong" if held.y[row, column] != self.one.y[row, column] else EVERYWHERE, "paper",
                           f"y[{row}, {column}] of rank {rank}")
                for row, column in cells
            ]  # fmt: skip
            flying[rank] = [
                self._cell("y", rank, row, column, other.partial[row, column], "paper", of_rank(source),
                           f"O·Wo[{row}, {column}] of rank {source}")
                for source, other in enumerate(self.ranks) for row, column in cells
            ]  # fmt: skip
        terms = [text_of(held.partial[-1, 0]) for held in self.ranks]
        for rank in settled:
            self.shown["y", rank] = settled[rank] if self.bug else [*flying[rank], *settled[rank]]
        if self.bug:
            line = f"bottom left: {' and '.join(terms)}, instead of {text_of(self.one.y[-1, 0])}"
            self._add("g is skipped: every rank takes its own head's terms for y.", line, wrong=True)
        else:
            line = f"bottom left: {' + '.join(terms)} = {text_of(self.one.y[-1, 0])}"
            note = "g all-reduces: the heads' terms are added up to y. The only message in forward."
            self._add(note, line, sends="g")

    def _add(self, note: str, line: str = "", sends: str = "", wrong: bool = False) -> None:
        found: list[Shape] = [
            Label(0, TOP + PITCH * rank + TALL * TOKENS / 2, f"rank {rank}", of_rank(rank))
            for rank in range(len(self.ranks))
        ]
        for place, text in self.headings.items():
            found.append(Label(left_of(place) + width_of(place) / 2, 0.7, text, "ink", "middle"))
        for name, place in (("f", "x"), ("g", "partial")):
            x = left_of(place) + width_of(place) + 0.8
            h = PITCH * (len(self.ranks) - 1) + TALL * TOKENS
            found.append(Box(x, TOP, 1.6, h, SENDS if name == sends else "paper", name, "|", SENDS, name))
        for boxes in self.shown.values():
            found += boxes
        bottom = TOP + len(self.ranks) * PITCH
        found.append(Label(36, bottom + 0.3, line, "wrong" if wrong else "ink", "middle"))
        self._frame(tuple(found), note, bool(sends))

    def _matrices(self, cut: bool, note: str) -> None:
        """x and the weights of one process; ``cut``: in the colours of the ranks."""
        heads, shapes = len(self.ranks), []
        wide = CELL * 3 * HEAD
        blocks = [("x", self.numbers.x, 2, 3.6, None)]
        x = 2 + CELL * WIDTH + 2
        for head in range(heads):
            blocks.append((f"head {head}: Wq Wk Wv", self.numbers.qkv[head], x, 3.6, head))
            x += wide + 1.5
        for head in range(heads):
            y = 2.2 + head * (HEAD * 1.5 + 1.4)
            blocks.append((f"Wo, head {head}", self.numbers.out[head], x + 1, y, head))
        for title, array, left, top, head in blocks:
            fill = of_rank(head) if cut and head is not None else EVERYWHERE
            shapes.append(Label(left + CELL * array.shape[1] / 2, top - 0.75, title, "ink", "middle"))
            shapes += [
                Box(left + CELL * column, top + 1.5 * row, CELL, 1.5, fill, text_of(number), " ", "paper",
                    f"{title}[{row}, {column}]")
                for row, numbers in enumerate(array) for column, number in enumerate(numbers)
            ]  # fmt: skip
        self._frame(tuple(shapes), note)

    def _frame(self, shapes: tuple[Shape, ...], note: str, sent: bool = False) -> None:
        facts = {"collectives": str(int(sent)), "bytes a rank has sent": str(self.ranks[0].sent if sent else 0)}
        self.frames.append(Frame(shapes, note, facts))
