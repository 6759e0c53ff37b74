"""The scenes in which the matrices of an MLP are cut, multiplied by each rank, and joined: forward, then backward."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minidist.show.demos.tensor_parallel import lecture
from minidist.show.demos.tensor_parallel.numbers import TOKENS, UNITS, WIDTH
from minidist.show.demos.tensor_parallel.picture import CELL, SENDS, Board, cells, left_of, text_of
from minidist.show.demos.tensor_parallel.split import Held
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.player.scene import Box, Frame, Label, Scene, Shape

LETTERS = {"a": "A", "b": "B", "x": "x", "full": "x", "x_hat": "x̂", "z": "Z", "y": "y"}
REPLICATED = MEANINGS["replicated"]
TALL = 2  # lines for a row, where there is room


def scene_of(
    name: str, ranks: Sequence[Held], right: Sequence[Held], one: Held, sequence: bool, gains: bool, bug: str,
    verdict: str,
) -> Scene:  # fmt: skip
    """A scene of the recorded MLP.

    Args:
        ranks: what each rank held; ``right``: the same without the bug; ``one``: what one process held.
        sequence: whether the tokens are split outside f and g.
        gains: whether to show the gain and its gradient.
        bug: "g", "gain" or "": which sum was skipped.
    """
    steps = Steps(ranks, right, one, sequence, gains, bug)
    steps.forward()
    steps.backward()
    moments = steps.moments
    wrong = moments.get({"g": "g", "gain": "sum of gains"}.get(bug, ""))
    title = "A by columns, B by rows: each half of a block needs one sum"
    if gains:
        title = "The tokens are split outside f and g" if sequence else "Outside f and g every rank keeps all tokens"
    key = {"on every rank": REPLICATED} | {f"rank {rank}'s part": of_rank(rank) for rank in range(len(ranks))}
    key |= {"messages": SENDS} | ({"wrong": "wrong"} if bug else {})
    at_end = len(steps.frames) - 1 if gains else moments["g"]
    stills = (moments["dealt"], moments["partial"], at_end)
    return Scene(
        name, title, tuple(steps.frames), steps.board.height, key, verdict, wrong, stills,
        questions=lecture.questions(moments, sequence, gains), cues=lecture.cues(moments, sequence, gains),
        code=lecture.SEQUENCE_CODE if sequence else lecture.CODE,
    )  # fmt: skip


def damage(ranks: Sequence[Held], one: Held, bug: str) -> str:
    """What a skipped sum has done, in a few words; ``bug`` as in ``scene_of``."""
    if bug == "gain":
        count = len({held.d_gain.tobytes() for held in ranks})
        return f"{count} different gains after one step, where all ranks need the same."
    wrong = sum(int((held.y != one.y).sum()) for held in ranks)
    return f"y is wrong in {wrong} of {len(ranks) * one.y.size} cells, and no two ranks agree."


@dataclass
class Steps:
    """The frames so far. ``moments`` has the numbers of the frames that questions, cues and bugs refer to."""

    ranks: Sequence[Held]
    right: Sequence[Held]
    one: Held
    sequence: bool
    gains: bool
    bug: str
    frames: list[Frame] = field(default_factory=list)
    moments: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    messages: int = 0

    def __post_init__(self) -> None:
        self.board = Board(len(self.ranks), self.gains)

    def forward(self) -> None:
        self._whole()
        board = self.board
        for place in ("a", "b"):
            self._put(place, place)
        board.heading(x="x", a="A", b="B")
        if self.gains:
            self._put("x", "x_hat")
            self._put_gain("gain", "γ")
            board.heading(x="x̂")
        else:
            self._put("x", "x")
        self._add("dealt", "Each rank keeps its columns of A and the same rows of B; " + self._tokens("x"))
        if self.gains:
            self._put("x", "x")
            board.heading(x="x = x̂·γ")
            self._add("x", "Each rank scales its tokens by the gain γ of LayerNorm, of which every rank has a copy.")
        self._put("full", "full")
        board.heading(full="f(x)")
        how = "f all-gathers: every rank now has all tokens." if self.sequence else "f copies: x is here, no message."
        self._add("f", how, sends="f" if self.sequence else "", lines=(0, 4))
        self._put("z", "z")
        board.heading(z="Z")
        self._add(
            "z",
            "Each rank: Z = GELU(x A) with its columns. Complete sums, so GELU is right. No message.",
            lines=(0,),
        )
        self._put("partial", "partial")
        board.heading(partial="Z·B")
        self._add(
            "partial",
            "Z B with its rows: all of y's shape on every rank, but only this rank's terms of each sum.",
            lines=(1,),
        )
        self._join("y", "partial", "y", "g")

    def backward(self) -> None:
        board = self.board
        board.clear("x", "full", "z", "partial", "gain")
        board.signs = False
        self._put("y", "d_y")
        board.heading(y="dy", a="A", b="B")
        self._add("dy", "Backward begins with the gradient of y: how much each number should change.")
        self._put("partial", "d_full")
        board.heading(partial="dy")
        how = (
            "g all-gathers the gradients of all tokens." if self.sequence else "g copies the gradient back: no message."
        )
        self._add("g back", how, sends="g" if self.sequence else "", lines=(5,))
        self._put("z", "d_z")
        self._put("b", "d_b")
        board.heading(z="dZ", b="dB")
        self._add("dz", "Each rank: the gradients of its Z and of its rows of B. No message.", lines=(1,))
        self._put("full", "d_partial")
        self._put("a", "d_a")
        board.heading(full="dZ·Aᵀ", a="dA")
        self._add(
            "dx partial",
            "The gradient of x is a sum over all columns of A: again each rank has only its terms.",
            lines=(0,),
        )
        self._join("x", "d_partial", "d_x", "f")
        if self.gains:
            self._gains()
        else:
            note = "dA and dB never travel: each rank updates its own part."
            if self.bug:
                note = "Every gradient is wrong now, and every rank updates its weights with it."
            self._add("end", note)

    def _whole(self) -> None:
        """One process, and the cuts."""
        one, heads = self.one, len(self.ranks)
        widths = {"x": WIDTH, "a": UNITS * heads, "z": UNITS * heads, "b": WIDTH, "y": WIDTH}
        gap = (72 - CELL * sum(widths.values())) / (len(widths) + 1)
        owner = {
            "a": lambda row, column: of_rank(column // UNITS),
            "z": lambda row, column: of_rank(column // UNITS),
            "b": lambda row, column: of_rank(row // UNITS),
        }
        for number, name in enumerate(("whole", "cut")):
            shapes: list[Shape] = []
            x, middle = gap, self.board.height / 2 + 0.3
            for sign, (place, width) in zip("·→·= ", widths.items(), strict=True):
                array = getattr(one, place)
                top = middle - TALL * len(array) / 2
                fill = owner.get(place, _grey) if number else _grey
                shapes += cells(array, x, top, _ids(place, 0, 0), fill, tall=TALL)
                shapes.append(
                    Label(
                        x + CELL * width / 2,
                        top - 0.8,
                        {"z": "Z = GELU(xA)"}.get(place, LETTERS[place]),
                        "ink",
                        "middle",
                    )
                )
                x += CELL * width
                shapes.append(Label(x + gap / 2, middle, sign.strip(), "ink", "middle"))
                x += gap
            note = f"One process: an MLP on {TOKENS} tokens, the rows of x. GELU turns negative values into 0."
            if number:
                note = "The columns of A are dealt to the ranks, and the rows of B the same way."
            self._frame(name, tuple(shapes), note)

    def _put(self, place: str, name: str) -> None:
        """Show an array of every rank at a place."""
        for rank, held in enumerate(self.ranks):
            array = getattr(held, name)
            partial, tokens = name in ("partial", "d_partial"), place in ("x", "y", "full", "partial")
            first = held.first if tokens and len(array) < TOKENS else 0
            top = self.board.top_of(place, rank)
            shapes: list[Shape] = []
            if len(array) < TOKENS and place in ("x", "y"):
                shapes.append(Box(left_of(place), top, CELL * array.shape[1], TOKENS, None, "", " ", "faint"))
            fill = self._fill(place, name, rank, first)
            outline = of_rank(rank) if partial else "paper"
            ids = _ids(place, rank, first) if not partial and name in LETTERS else _own(name, rank, first)
            found = cells(array, left_of(place), top + first, ids, fill, outline)
            shapes += _marked(found, array != getattr(self.right[rank], name), name)
            self.board.shown[place, rank] = shapes

    def _fill(self, place: str, name: str, rank: int, first: int):
        """Fill of each cell: hollow, a rank's colour, or grey."""

        def fill(row: int, column: int) -> str:
            if name in ("partial", "d_partial"):
                return "paper"
            if place in ("a", "b", "z"):
                return of_rank(rank)
            return of_rank((row + first) * len(self.ranks) // TOKENS) if self.sequence else REPLICATED

        return fill

    def _put_gain(
        self, name: str, letter: str, values: Sequence[np.ndarray] | None = None, wrong: bool = False
    ) -> None:
        for rank, held in enumerate(self.ranks):
            array = (getattr(held, name) if values is None else values[rank])[None]
            top = self.board.top_of("x", rank) + TOKENS + 0.25
            partial = name == "own_gain" and self.sequence
            fill = "wrong" if wrong and name == "d_gain" else "paper" if partial or wrong else REPLICATED
            outline = of_rank(rank) if partial else "wrong" if wrong else "paper"
            self.board.shown["gain", rank] = [
                Label(left_of("x") - 0.5, top + 0.5, letter, "ink", "end"),
                *cells(array, left_of("x"), top, _own(letter, rank, 0), lambda *_, fill=fill: fill,
                       outline),
            ]  # fmt: skip

    def _join(self, place: str, terms: str, result: str, letter: str) -> None:
        """The partial sums of all ranks fly to where they are added."""
        board, skipped = self.board, self.bug == "g" and letter == "g"
        board.skipped = "g" if skipped else board.skipped
        if letter == "f":
            board.heading(x="dx")
        else:
            board.heading(y="y")
        self._put(place, result)
        settled = {key: board.shown[key] for key in board.shown if key[0] == place}
        if not skipped:
            for rank, held in enumerate(self.ranks):
                rows = slice(held.first, held.first + len(getattr(held, result)))
                flying: list[Shape] = []
                for source, other in enumerate(self.ranks):
                    ids = _own(terms, source, rows.start)
                    flying += cells(getattr(other, terms)[rows], left_of(place), board.top_of(place, rank) + rows.start,
                                    ids, lambda *_: "paper", of_rank(source))  # fmt: skip
                board.shown[place, rank] = [*flying, *settled[place, rank]]
        kind = "reduce-scatters" if self.sequence else "all-reduces"
        what = {"g": "y", "f": "the gradient of x"}[letter]
        note = f"{letter} {kind}: the ranks' terms are added up to {what}" + (
            ", and each rank keeps its tokens." if self.sequence else ", on every rank."
        )
        if skipped:
            note = "g is skipped: nothing is added, and every rank takes its own terms for y."
        name, lines = ("g", (5,)) if letter == "g" else ("f back", (4,))
        line = self._sum(terms, result, skipped)
        self._add(name, note, sends="" if skipped else letter, line=line, wrong=skipped, lines=lines)
        board.shown |= settled

    def _sum(self, terms: str, result: str, skipped: bool) -> str:
        values = [getattr(held, terms)[0, 0] for held in self.ranks]
        first, *others = map(text_of, values)
        written = " + ".join([first, *(f"({text})" if text.startswith("−") else text for text in others)])
        if skipped:
            return f"top left: {' and '.join(map(text_of, values))}, instead of {text_of(sum(values))}"
        return f"top left: {written} = {text_of(getattr(self.ranks[0], result)[0, 0])}"

    def _gains(self) -> None:
        board, skipped = self.board, self.bug == "gain"
        board.clear("partial")
        self._put_gain("own_gain", "dγ")
        note = "The gradient of γ is a sum over tokens: "
        self._add(
            "own gains",
            note + ("each rank has that of its tokens." if self.sequence else "every rank has all of them."),
        )
        self._put_gain("d_gain", "dγ", wrong=skipped)
        board.skipped = "gain" if skipped else board.skipped
        if not self.sequence:
            note = "Every rank has the same dγ already: no message."
        elif skipped:
            note = "The sum is skipped: each rank keeps the gradient of its own tokens."
        else:
            note = "A small all-reduce adds the ranks' dγ, so every copy of γ gets the same gradient."
        own = " + ".join(f"({text_of(held.own_gain[0])})" for held in self.ranks)
        right = f"dγ, left: {own} = {text_of(self.one.d_gain[0])}" if self.sequence else ""
        self._add("sum of gains", note, line="not added" if skipped else right, wrong=skipped)
        new = [held.gain - held.d_gain for held in self.ranks]
        self._put_gain("gain", "γ", new, wrong=skipped)
        if skipped:
            self._add("end", "After the update the ranks have different gains: two models, and no error message.",
                      line="the copies of γ drift apart", wrong=True)  # fmt: skip
        else:
            self._add(
                "end",
                "After the update γ − dγ every rank still has the same gain.",
                line="γ: the same on every rank",
            )

    def _tokens(self, name: str) -> str:
        if self.sequence:
            return f"of the {TOKENS} tokens it has {TOKENS // len(self.ranks)}."
        return "x is on every rank."

    def _add(self, name: str, note: str, sends: str = "", line: str = "", wrong: bool = False,
             lines: tuple[int, ...] = ()) -> None:  # fmt: skip
        self.board.sending = sends
        before, self.sent = self.sent, max(self.sent, self._bytes(name))
        self.messages += self.sent > before
        self._frame(name, self.board.shapes(line, wrong), note, lines)

    def _bytes(self, name: str) -> int:
        """What rank 0 has sent by a frame."""
        done = {"f": 0, "g": 1, "g back": 2, "f back": 3, "sum of gains": 4}
        return self.ranks[0].sent[done[name]] if name in done else self.sent

    def _frame(self, name: str, shapes: tuple[Shape, ...], note: str, lines: tuple[int, ...] = ()) -> None:
        self.moments[name] = len(self.frames)
        kept = len(self.ranks[0].x) if name not in ("whole", "cut") else TOKENS
        facts = {"collectives": str(self.messages), "bytes a rank has sent": f"{self.sent}"}
        if self.gains:
            facts["tokens of x and y on each rank"] = f"{kept} of {TOKENS}"
        self.frames.append(Frame(shapes, note, facts, lines=lines))


def _marked(found: Sequence[Box], wrong: np.ndarray, name: str) -> list[Box]:
    """Cells with the wrong ones in red: filled where the bug strikes, outlined where it follows from that."""
    marks = {"fill": "wrong"} if name == "y" else {"fill": "paper", "outline": "wrong"}
    marked = [replace(box, **marks) if bad else box for box, bad in zip(found, wrong.flat, strict=True)]
    return sorted(marked, key=lambda box: box.outline == "wrong")  # so that no neighbour covers an outline


def _grey(row: int, column: int) -> str:
    return REPLICATED


def _ids(place: str, rank: int, first: int):
    """Names of numbers that are the same thing wherever they are: of the whole matrix."""
    columns, rows = (rank * UNITS if place in ("a", "z") else 0), (rank * UNITS if place == "b" else first)
    return lambda row, column: f"{LETTERS[place]}[{row + rows}, {column + columns}]"


def _own(name: str, rank: int, first: int):
    """Names of numbers that belong to one rank."""
    words = name.replace("d_partial", "terms of dx").replace("partial", "terms of y").replace("d_", "d")
    return lambda row, column: f"{words}[{row + first}, {column}] of rank {rank}"
