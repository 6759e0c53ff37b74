"""One step of a scene as a slide: 16:9, with words that the last row can read.

All of them, also those in the picture, are in type of at least 24 points. The picture's grid of 72 characters leaves a
character the width of about 20, so letters are narrowed where they need to be (condensed.py). A high picture makes its
lines lower, and if they were too low for the type, words around it are left out: first the verdict, then the key.
"""

from functools import partial
from textwrap import wrap

from minidist.show.player.scene import WIDTH, Scene
from minidist.show.player.still import LIGHT, LINE, ORDER, draw_frame

SIZE = (13.333, 7.5)  # inches, as a slide of PowerPoint, Keynote or Google
TITLE, TEXT = 28, 24  # type sizes in points
MARGIN = 0.25  # inches, on every side
LEADING = 1.2 / 72  # inches from line to line, per point of type
NARROW = 0.8  # of a letter's width: what words around the picture may be narrowed to, before they take another line
LETTER = 0.58 / 72  # mean width of a letter in inches, per point of type
PATCH = (0.45, 0.25)  # inches, of a colour in the key
GAP = 0.15  # inches, between a patch and its name and around the picture; twice as much between names
CHARACTER = (SIZE[0] - 2 * MARGIN) / (WIDTH + 1)  # inches, its width in the picture
LEAST = 0.8 * TEXT / 72  # inches: lines of the picture that are lower would run into each other
MOST = 1.25  # times as high as they are on a page: lines of a flat picture that has more room

Words = list[tuple[str, float, str]]  # text, type size, colour


def draw(scene: Scene, step: int, bug: str = ""):
    """A matplotlib Figure of one frame of a scene; ``bug`` is what was injected, if anything."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, facecolor=LIGHT["paper"])
    headings = [(scene.title, TITLE, "ink")] + [(f"Broken: {bug}", TEXT, "wrong")] * bool(bug)
    top = _write(figure, SIZE[1] - MARGIN, headings) - GAP
    words, key = _chosen(scene, step, top)
    room = top - MARGIN - _height(words) - len(key) * LEADING * TEXT - GAP
    board = (WIDTH + 1) * CHARACTER, min(room, MOST * (LINE * scene.height + 0.5) * CHARACTER)
    axes = figure.add_axes(_fraction(MARGIN, top - board[1], *board))
    axes.axis("off")
    draw_frame(axes, scene.frames[step], scene.height, TEXT, partial(_in_picture, figure))
    axes.set_aspect("auto")
    _write(figure, top - board[1] - GAP, words)
    _write_key(figure, key)
    return figure


def _chosen(scene: Scene, step: int, top: float) -> tuple[Words, list]:
    """The words below the picture and the lines of the key, as many as leave its lines high enough."""
    note = [(scene.frames[step].note, TEXT, "ink")]
    verdict = [(scene.verdict, TEXT, "right" if scene.first_wrong is None else "wrong")]
    over = step == len(scene.frames) - 1 and scene.verdict
    key = _key_lines(scene)
    choices = [([*note, *verdict], key)] * bool(over) + [(note, key), (note, [])]
    for words, lines in choices:
        room = top - MARGIN - _height(words) - len(lines) * LEADING * TEXT - GAP
        if room >= LEAST * scene.height:
            break
    return words, lines


def _lines(text: str, size: float) -> list[str]:
    return wrap(text, int((SIZE[0] - 2 * MARGIN) / (NARROW * LETTER * size)), break_on_hyphens=False)


def _height(words: Words) -> float:
    return sum(len(_lines(text, size)) * LEADING * size for text, size, _ in words)


def _write(figure, y: float, words: Words) -> float:
    """Write texts from a height of y inches downwards. Returns where the next would begin."""
    for text, size, colour in words:
        for line in _lines(text, size):
            figure.add_artist(_text(figure, MARGIN, y - LEADING * size / 2, line, size, SIZE[0] - 2 * MARGIN, colour))
            y -= LEADING * size
    return y


def _text(figure, x: float, y: float, text: str, size: float, room: float, colour: str):
    """A line of text at (x, y) inches, as an artist."""
    from minidist.show.player.condensed import Condensed

    return Condensed(figure, (x, y), figure.dpi_scale_trans, text, size, room, color=LIGHT[colour])


def _in_picture(figure, axes, place, text: str, size: float, room: float, anchor: str, colour: str) -> None:
    from minidist.show.player.condensed import Condensed

    axes.add_artist(
        Condensed(figure, place, axes.transData, text, size, room * CHARACTER, anchor, color=colour, zorder=ORDER)
    )


def _key_lines(scene: Scene) -> list[list[tuple[float, float, str, str, str | None]]]:
    """The key's lines, each a list of (x and width in inches, meaning, colour, mark), as many to a line as fit."""
    lines, x = [], SIZE[0]
    for name, colour, mark in scene.marks():
        width = NARROW * LETTER * TEXT * len(name)
        if x + PATCH[0] + GAP + width > SIZE[0] - MARGIN:
            lines, x = [*lines, []], MARGIN
        lines[-1].append((x, width, name, colour, mark))
        x += PATCH[0] + width + 3 * GAP
    return lines


def _write_key(figure, lines: list) -> None:
    """Write the key at the bottom: a patch of each colour, or an outline where it is one, and its meaning."""
    from matplotlib.patches import Rectangle

    for number, line in enumerate(lines):
        y = MARGIN + (len(lines) - number - 0.5) * LEADING * TEXT
        for x, width, name, colour, mark in line:
            shown = LIGHT.get(colour, colour)
            look = {"facecolor": "none" if mark is None else shown, "edgecolor": shown, "linewidth": 2}
            patch = Rectangle((x, y - PATCH[1] / 2), *PATCH, transform=figure.dpi_scale_trans, **look)
            figure.add_artist(patch)
            figure.add_artist(_text(figure, x + PATCH[0] + GAP, y, name, TEXT, width, "ink"))


def _fraction(*inches: float) -> tuple[float, ...]:
    """Inches across, up, across, up as fractions of the slide."""
    return tuple(part / SIZE[i % 2] for i, part in enumerate(inches))
