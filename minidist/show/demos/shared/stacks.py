"""Memory over time: for each rank what it holds during a step, stacked by kind, and a line for what a formula says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from minidist.show.demos.shared.memory_log import MemoryLog
from minidist.show.figures.memory import COLOURS
from minidist.show.palette import of_rank
from minidist.show.player.scene import WIDTH, Box, Frame, Label, Scene, Shape

MARKS = {"parameters": "p", "optimizer": "o", "gradients": "g", "activations": "a"}
SMOOTH = 40  # columns: a wider area advances by two
KINDS = tuple(MARKS)  # from the bottom up, what changes least first
PHASES = {"step": "zero grad", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}  # event -> phase

SHORT = {"zero grad": "zero", "forward": "fwd", "backward": "bwd", "optimizer": "update"}  # where the name is too long


@dataclass(frozen=True)
class Mark:
    """Something special from one place of a rank's steps to another.

    Args:
        start, end: places, 0 to 1.
        colour: "wrong" for the effect of a bug.
        text: what it is.
        nbytes: how much of the parameters, at the bottom of the area, it covers; None for a mark below the area.
    """

    start: float
    end: float
    colour: str
    text: str
    nbytes: int | None = None


@dataclass(frozen=True)
class Panel:
    """Where a rank is drawn: a line of text, the area, a line for marks if there are any, a line of phases."""

    x: float
    y: float
    width: int
    h: float  # of the area
    floor: float  # top of the line of phases

    @property
    def bottom(self) -> float:
        """The lower edge of the area."""
        return self.y + 1 + self.h


def panels_of(ranks: int, lane: bool) -> tuple[list[Panel], float]:
    """A panel for each rank, and the total height in lines; a single rank is large."""
    across, width = (1, 68) if ranks == 1 else (2, 34) if ranks <= 4 else (4, 16)
    rows = -(-ranks // across)
    each = 12 if rows == 1 else 8
    apart = (WIDTH - width) // max(1, across - 1)
    found = []
    for rank in range(ranks):
        y = rank // across * each
        found.append(Panel(rank % across * apart, y, width, each - 2 - lane, y + each - 1))
    return found, rows * each


@dataclass(frozen=True)
class Stacks:
    """The ingredients of a scene.

    Args:
        ranks: what each rank held.
        most: the bytes that fill the height of an area.
        kept: the bytes that a rank keeps by formula, drawn as a line.
        notes: phase -> what happens in it.
        facts: (what rank 0 held, a place) -> the facts at that place.
        marks: marks of each rank.
        key: meaning -> colour, of the marks and the line.
        lane: whether marks have a line of their own below the areas.
    """

    ranks: Sequence[MemoryLog]
    most: int
    kept: float
    notes: Mapping[str, str]
    facts: Callable[[MemoryLog, float], Mapping[str, str]]
    marks: Sequence[Sequence[Mark]]
    key: Mapping[str, str]
    lane: bool = False

    def scene(self, name: str, title: str, verdict: str) -> Scene:
        """Frames that advance through the steps from left to right; what has not happened yet is hidden."""
        panels, height = panels_of(len(self.ranks), self.lane)
        columns = panels[0].width
        stride = 1 if columns <= SMOOTH else 2
        shown = range(stride, columns + 1, stride)  # an empty picture would look like an error
        still = [shape for panel, held in zip(panels, self.ranks, strict=True) for shape in self._area(panel, held)]
        frames = [
            Frame(
                (*still, *self._at(column / columns, panels)), self._note(column, columns), self._facts(column, columns)
            )
            for column in shown
        ]
        wrong = [mark.start for each in self.marks for mark in each if mark.colour == "wrong"]
        last = len(frames) - 1
        first_wrong = min(last, int(min(wrong) * columns) // stride) if wrong else None
        stills = (last // 2, last) if first_wrong is None else (first_wrong, (first_wrong + last) // 2, last)
        key = {kind: COLOURS[kind] for kind in KINDS[::-1]} | self.key
        return Scene(name, title, tuple(frames), height, key, verdict, first_wrong, stills)

    def _facts(self, column: int, columns: int) -> Mapping[str, str]:
        return self.facts(self.ranks[0], column / columns)

    def _note(self, column: int, columns: int) -> str:
        place = (column - (1 if columns <= SMOOTH else 2)) / columns
        text = self.notes[[name for start, name in _starts(self.ranks[0]) if start < column / columns][-1]]
        wrong = [m.text for m in self.marks[0] if m.colour == "wrong" and m.start < column / columns and place < m.end]
        return f"{text} Wrong here: {wrong[0]}." if wrong else text

    def _area(self, panel: Panel, held: MemoryLog) -> list[Shape]:
        """All steps of a rank: for each kind a box for as long as its amount is constant, the line, the phases."""
        found: list[Shape] = []
        columns = panel.width
        levels = [held.between(column / columns, (column + 1) / columns) for column in range(columns)]
        below = [0] * columns
        for kind in KINDS:
            above = [low + level[kind] for low, level in zip(below, levels, strict=True)]
            column = 0
            for (low, high), alike in groupby(zip(below, above, strict=True)):
                count = len(list(alike))
                if high > low:
                    y, h = panel.bottom - panel.h * high / self.most, panel.h * (high - low) / self.most
                    found.append(Box(panel.x + column, y, count, h, COLOURS[kind], "", MARKS[kind], id=kind))
                column += count
            below = above
        line = panel.bottom - panel.h * self.kept / self.most
        found.append(Box(panel.x, line - 0.06, columns, 0.12, "ink", "", "-"))
        starts = _starts(held)
        for (start, name), (end, _) in zip(starts, [*starts[1:], (1.0, "")], strict=True):
            width = columns * (end - start)
            text = next((text for text in (name, SHORT[name]) if len(text) <= 0.9 * width), "")
            found.append(Box(panel.x + columns * start, panel.floor, width, 1, None, text, " ", "faint"))
        return found

    def _at(self, place: float, panels: Sequence[Panel]) -> list[Shape]:
        """What changes from frame to frame: the cover over the future, the marks so far, and how much is held."""
        found: list[Shape] = []
        for rank, (panel, held) in enumerate(zip(panels, self.ranks, strict=True)):
            hidden = panel.width * (1 - place)
            if hidden:
                found.append(Box(panel.x + panel.width - hidden, panel.y + 1, hidden, panel.h, "paper", "", " "))
            found.append(Label(panel.x, panel.y + 0.5, f"rank {rank}", of_rank(rank)))
            text = bytes_text(sum(held.at(place).values()))
            found.append(Label(panel.x + panel.width, panel.y + 0.5, text, "ink", "end"))
            for mark in self.marks[rank]:
                if mark.start < place:
                    found += self._marked(panel, mark, min(mark.end, place))
        return found

    def _marked(self, panel: Panel, mark: Mark, end: float) -> list[Shape]:
        x, width = panel.x + panel.width * mark.start, panel.width * (end - mark.start)
        if mark.nbytes is None:
            symbol = "!" if mark.colour == "wrong" else mark.text[0]
            return [Box(x, panel.bottom + 0.1, width, 0.8, mark.colour, "", symbol)]
        h = max(0.5, panel.h * mark.nbytes / self.most)  # the least that a terminal shows is half a line
        found: list[Shape] = [Box(x, panel.bottom - h, width, h, mark.colour, "", "!")]
        if panel.width > 30:
            found.append(Label(panel.x + 8, panel.y + 0.5, mark.text, mark.colour))
        return found


def _starts(held: MemoryLog) -> list[tuple[float, str]]:
    """(start, phase), in order; the first starts at 0, and each lasts until the next."""
    (_, first), *others = sorted((start, name) for span, name in PHASES.items() for start, _ in held.places(span))
    return [(0.0, first), *others]


def bytes_text(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
