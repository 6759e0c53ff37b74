"""One moment of a story in a terminal of any size: two pixels to a character, one above the other, and words over them.

In a window of 80 columns, a letter of the smallest type is about one character wide, so text that fits on the stage
fits here. Without colours, a box is filled with a sign for what it is, such as the number of a rank.
"""

from itertools import pairwise

from rich.style import Style
from rich.text import Text

from minidist.show.palette import ink_on
from minidist.show.stage.marks import HEIGHT, WIDTH, Mark, drawn
from minidist.show.stage.story import Story

TERMINAL = {"ink": "default", "faint": "bright_black", "paper": None, "wrong": "red", "right": "green"}
CORNERS = "┌┐└┘─│"


def picture(story: Story, moment: float, columns: int, lines: int, colours: bool = True) -> Text:
    """Return the stage at a moment, drawn in ``lines`` lines of ``columns`` characters."""
    board = _Board(columns, lines)
    for mark in story.marks:
        now = mark.at(moment)
        if now["opacity"] >= 0.5:
            getattr(board, mark.kind)(mark, now)
    cells = (Text.assemble(*(board.cell(line, column, colours) for column in range(columns))) for line in range(lines))
    return Text("\n").join(cells)


def legend(story: Story, colours: bool = True) -> Text:
    """Return a legend of the story's colours; without colours, of its signs."""
    signs = {
        now["fill"]: mark.still.get("sign", "#") for mark in story.marks if mark.kind == "box" for _, now in mark.keys
    }
    words = [
        Text.assemble(("■", _colour(colour)) if colours else signs.get(colour, "."), f" {name}")
        for name, colour in story.shown_key.items()
    ]
    return Text("   ").join(words)


class _Board:
    """Contents of the window: pixels (two to a line), and characters over them."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.pixels: list[list[tuple[str, str] | None]] = [[None] * columns for _ in range(2 * lines)]  # colour, sign
        self.letters: dict[tuple[int, int], tuple[str, str]] = {}  # (line, column) -> character, colour

    def _place(self, x: float, y: float) -> tuple[int, int]:
        """Return the column and the row of pixels at a place on the stage."""
        return round(x * self.columns / WIDTH), round(y * 2 * self.lines / HEIGHT)

    def box(self, mark: Mark, now: dict) -> None:
        (left, top), (right, bottom) = (
            self._place(now["x"], now["y"]),
            self._place(now["x"] + now["w"], now["y"] + now["h"]),
        )
        if now["fill"] != "none":  # an outline alone covers nothing
            shown = None if TERMINAL.get(now["fill"], "") is None else (now["fill"], mark.still.get("sign", "#"))
            for y in range(max(0, top), min(bottom, 2 * self.lines)):
                for x in range(max(0, left), min(right, self.columns)):
                    self.pixels[y][x] = shown
                    if y % 2 == 0:
                        self.letters.pop((y // 2, x), None)
        if "text" in mark.still and len(mark.still["text"]) < right - left:
            self._write((left + right) // 2, (top + bottom) // 4, mark.still["text"], "ink")
        if "stroke" in mark.still:
            self._frame(left, top // 2, right - 1, (bottom - 1) // 2, mark.still["stroke"])

    def _frame(self, left: int, top: int, right: int, bottom: int, colour: str) -> None:
        for x in range(left + 1, right):
            self._letter(top, x, CORNERS[4], colour)
            self._letter(bottom, x, CORNERS[4], colour)
        for y in range(top + 1, bottom):
            self._letter(y, left, CORNERS[5], colour)
            self._letter(y, right, CORNERS[5], colour)
        for corner, (y, x) in zip(CORNERS, ((top, left), (top, right), (bottom, left), (bottom, right)), strict=False):
            self._letter(y, x, corner, colour)

    def _letter(self, line: int, column: int, letter: str, colour: str) -> None:
        if 0 <= line < self.lines and 0 <= column < self.columns:
            self.letters[line, column] = letter, colour

    def text(self, mark: Mark, now: dict) -> None:
        column, pixel = self._place(now["x"], now["y"])
        self._write(column, pixel // 2, mark.still["text"], now["fill"], mark.still["anchor"])

    def _write(self, column: int, line: int, words: str, colour: str, anchor: str = "middle") -> None:
        column -= {"start": 0, "middle": len(words) // 2, "end": len(words)}[anchor]
        for i, letter in enumerate(words):
            self._letter(line, column + i, letter, colour)

    def line(self, mark: Mark, now: dict) -> None:
        for (x, y), (to_x, to_y) in pairwise(drawn(mark, now)):
            (column, pixel), (to_column, to_pixel) = self._place(x, y), self._place(to_x, to_y)
            count = max(abs(to_column - column), abs(to_pixel - pixel), 1)
            for i in range(count + 1):
                here, there = column + (to_column - column) * i // count, pixel + (to_pixel - pixel) * i // count
                if 0 <= here < self.columns and 0 <= there < 2 * self.lines:
                    self.pixels[there][here] = now["fill"], "."
        if "head" in mark.still and now["turn"] == 1:
            (x, y), *base = mark.still["head"]
            across, down = (2 * end - sum(part) for end, part in zip((x, y), zip(*base, strict=True), strict=True))
            sign = ("►" if across > 0 else "◄") if abs(across) > abs(down) else ("▼" if down > 0 else "▲")
            column, pixel = self._place(x + now["x"], y + now["y"])
            self._letter(pixel // 2, column, sign, now["fill"])

    def cell(self, line: int, column: int, colours: bool) -> tuple[str, Style]:
        """Return a character and its style: a letter over its background, or two pixels."""
        upper, lower = (self.pixels[2 * line + half][column] for half in (0, 1))
        letter, colour = self.letters.get((line, column), (None, "ink"))
        if not colours:
            return letter or (upper or lower or ("", " "))[1], Style()
        ground = lower and _colour(lower[0])
        if letter:
            if upper and upper[0].startswith("#") and colour == "ink":
                colour = "#000000" if ink_on(upper[0]) == "black" else "#FFFFFF"
            return letter, Style(color=_colour(colour), bgcolor=upper and _colour(upper[0]))
        if upper:
            return "▀", Style(color=_colour(upper[0]), bgcolor=ground)
        return ("▄", Style(color=ground)) if ground else (" ", Style())


def _colour(name: str) -> str:
    return TERMINAL.get(name, name)
