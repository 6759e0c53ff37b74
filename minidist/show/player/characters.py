"""A frame as characters, for a terminal: a box is a coloured background, at least half a line high."""

from itertools import groupby, pairwise
from math import ceil, floor

from rich.color import Color
from rich.style import Style
from rich.text import Text

from minidist.show.palette import ink_on
from minidist.show.player.scene import WIDTH, Arrow, Box, Curve, Frame, Label

TERMINAL = {"ink": "default", "faint": "grey58", "wrong": "red", "right": "green"}  # in the terminal's own colours
BACKGROUNDS = {
    "ink": "#808080",
    "faint": "#5A5A5A",
    "wrong": "#C2002F",
    "right": "#00734F",
}  # backgrounds of boxes; paper has none

BRAILLE = 0x2800  # the character without dots
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # its dots, by row and column


def lines_of(frame: Frame, height: float, colours: bool = True) -> list[Text]:
    """The frame as lines of WIDTH characters.

    Args:
        height: height of the scene, in lines.
        colours: without them, a box is filled with its mark.
    """
    canvas = _Canvas(ceil(height), colours)
    for shape in frame.shapes:
        if isinstance(shape, Box):
            canvas.box(shape)
        elif isinstance(shape, Label):
            canvas.label(shape)
        elif isinstance(shape, Curve):
            canvas.curve(shape)
    return canvas.lines()


def messages_of(frame: Frame, room: int = 2 * WIDTH) -> str:
    """The labels of the arrows, as many as fit into ``room`` characters, none cut off, and how many more there are."""
    labels = [shape.label for shape in frame.shapes if isinstance(shape, Arrow) and shape.label]
    for count in range(len(labels), 0, -1):
        more = f", and {len(labels) - count} more" if count < len(labels) else ""
        text = ", ".join(labels[:count]) + more
        if len(text) <= room:
            return text
    return ""


class _Canvas:
    """Characters, their colours, and the background below them in half lines."""

    def __init__(self, height: int, colours: bool) -> None:
        self.height, self.colours = height, colours
        self.background: list[list[str | None]] = [[None] * WIDTH for _ in range(2 * height)]
        self.characters = [[" "] * WIDTH for _ in range(height)]
        self.inks: list[list[str | None]] = [[None] * WIDTH for _ in range(height)]  # None: black or white
        self.written = [[False] * WIDTH for _ in range(height)]  # where there is text

    def box(self, box: Box) -> None:
        columns = range(max(0, round(box.x)), min(WIDTH, max(round(box.x + box.w), round(box.x) + 1)))
        top = round(2 * box.y)
        halves = range(max(0, top), min(2 * self.height, max(round(2 * (box.y + box.h)), top + 1)))
        if not columns or not halves:
            return
        lines = range(halves.start // 2, (halves.stop + 1) // 2)
        if box.fill is not None:
            fill = None if box.fill == "paper" else BACKGROUNDS.get(box.fill, box.fill)
            for column in columns:
                for half in halves:
                    self.background[half][column] = fill
                for line in lines:  # the box covers what was written there
                    self.characters[line][column] = " " if self.colours else box.mark
                    self.inks[line][column], self.written[line][column] = None, False
        if box.text:
            text = box.text[: len(columns)]
            self._write(columns.start + (len(columns) - len(text)) // 2, lines[(len(lines) - 1) // 2], text, None)
        if box.outline in ("wrong", "ink"):
            self._frame(columns, lines, box.outline == "wrong")

    def _frame(self, columns: range, lines: range, wrong: bool) -> None:
        """Brackets at both ends, unless there is text."""
        for column, bracket in ((columns.start, "["), (columns.stop - 1, "]")):
            for line in lines:
                if wrong:
                    self.background[2 * line][column] = self.background[2 * line + 1][column] = BACKGROUNDS["wrong"]
                if not self.written[line][column]:
                    self._write(column, line, "!" if wrong else bracket, None)

    def label(self, label: Label) -> None:
        left = {"start": 0.0, "middle": len(label.text) / 2, "end": float(len(label.text))}[label.anchor]
        colour = TERMINAL.get(label.colour, label.colour)
        self._write(round(label.x - left), min(self.height - 1, int(label.y)), label.text, colour)

    def curve(self, curve: Curve) -> None:
        """Its segments in the dots of Braille: two across and four down in each character."""
        ink = TERMINAL.get(curve.colour, curve.colour)
        for (x, y), (to_x, to_y) in pairwise((curve.points[0], *curve.points)):
            steps = max(1, ceil(2 * abs(to_x - x)), ceil(4 * abs(to_y - y)))
            for part in range(steps + 1):
                self._dot(x + (to_x - x) * part / steps, y + (to_y - y) * part / steps, ink)

    def _dot(self, x: float, y: float, ink: str) -> None:
        column, line = floor(x), floor(y)
        if 0 <= line < self.height and 0 <= column < WIDTH:
            before = ord(self.characters[line][column]) - BRAILLE
            dots = before if 0 <= before < 256 else 0
            dots |= DOTS[floor(4 * (y - line))][floor(2 * (x - column))]
            self._write(column, line, chr(BRAILLE + dots), ink)

    def _write(self, column: int, line: int, text: str, ink: str | None) -> None:
        for place, character in enumerate(text, column):
            if 0 <= place < WIDTH:
                self.characters[line][place], self.inks[line][place] = character, ink
                self.written[line][place] = True

    def lines(self) -> list[Text]:
        found = []
        for line in range(self.height):
            text = Text(no_wrap=True, end="")
            cells = [self._cell(line, column) for column in range(WIDTH)]
            for style, alike in groupby(cells, key=lambda cell: cell[1]):
                text.append("".join(character for character, _ in alike), style)
            found.append(text)
        return found

    def _cell(self, line: int, column: int) -> tuple[str, Style | None]:
        character, ink = self.characters[line][column], self.inks[line][column]
        upper, lower = self.background[2 * line][column], self.background[2 * line + 1][column]
        if not self.colours:
            return character, None
        if character == " " and upper != lower:  # two colours in one character: a half block
            if upper is None:  # the terminal's own background, of unknown colour
                return "▄", Style(color=lower)
            if lower is None:
                return "▀", Style(color=upper)
            return "▀", Style(color=upper, bgcolor=lower)
        if upper is None:
            return character, Style(color=ink) if ink else None
        if ink is None or Color.parse(ink).is_default:
            ink = "#000000" if ink_on(upper) == "black" else "#FFFFFF"
        return character, Style(color=ink, bgcolor=upper)
