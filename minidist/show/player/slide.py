"""One step of a scene as a slide: 16:9, with a title, a note and a key that the last row can read.

They are in type of at least 24 points; the words in the picture are as large as its grid of 72 characters allows, about
19 points. A flat picture has its words below it, a tall one beside it: whichever leaves the picture larger.
"""

from textwrap import wrap

from minidist.show.player.scene import WIDTH, Scene
from minidist.show.player.still import LIGHT, LINE, draw_frame, type_size

SIZE = (13.333, 7.5)  # inches, as a slide of PowerPoint, Keynote or Google
TITLE, TEXT = 28, 24  # type sizes in points
MARGIN = 0.4  # inches, on every side
SIDE = 4.0  # inches, of the words beside a tall picture
LEADING = 1.25 / 72  # inches from line to line, per point of type
LETTER = 0.58 / 72  # mean width of a letter in inches, per point of type
PATCH = (0.45, 0.25)  # inches, of a colour in the key
GAP = 0.15  # inches, between a patch and its name and below the picture; twice as much between names
LARGE = 0.6  # of the slide's width: a picture that is smaller makes room by leaving out the verdict

Words = list[tuple[str, float, str]]  # text, type size, colour


def draw(scene: Scene, step: int, bug: str = ""):
    """A matplotlib Figure of one frame of a scene; ``bug`` is what was injected, if anything."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, facecolor=LIGHT["paper"])
    width = SIZE[0] - 2 * MARGIN
    headings = [(scene.title, TITLE, "ink")] + [(f"Broken: {bug}", TEXT, "wrong")] * bool(bug)
    top = _write(figure, MARGIN, SIZE[1] - MARGIN, width, headings)
    words = [(scene.frames[step].note, TEXT, "ink")]
    if step == len(scene.frames) - 1 and scene.verdict:
        outcome = (scene.verdict, TEXT, "right" if scene.first_wrong is None else "wrong")
        if _best(scene, top, [*words, outcome])[0] * WIDTH >= LARGE * SIZE[0]:
            words.append(outcome)
    character, is_beside = _best(scene, top, words)
    board = character * (WIDTH + 1), character * (LINE * scene.height + 0.5)
    axes = figure.add_axes(_fraction(MARGIN, top - board[1], *board))
    axes.axis("off")
    draw_frame(axes, scene.frames[step], scene.height, type_size(character), TEXT)
    if is_beside:
        _write(figure, 2 * MARGIN + board[0], top, width - MARGIN - board[0], words)
    else:
        _write(figure, MARGIN, top - board[1] - GAP, width, words)
    _write_key(figure, scene)
    return figure


def _best(scene: Scene, top: float, words: Words) -> tuple[float, bool]:
    """The largest width of a character with the words below the picture, or beside it, and which of both it is."""
    width, height = SIZE[0] - 2 * MARGIN, top - MARGIN / 2 - len(_key_lines(scene)) * LEADING * TEXT
    sizes = [(_character(scene, width, height - GAP - _height(words, width)), False)]
    if _height(words, SIDE) < height:
        sizes.append((_character(scene, width - MARGIN - SIDE, height), True))
    return max(sizes)


def _character(scene: Scene, width: float, height: float) -> float:
    """How wide a character may be so that the picture fits a place; all in inches."""
    return min(width / (WIDTH + 1), max(height, 1) / (LINE * scene.height + 0.5))


def _lines(text: str, size: float, width: float) -> list[str]:
    return wrap(text, int(width / (LETTER * size)), break_on_hyphens=False)


def _height(words: Words, width: float) -> float:
    return sum(len(_lines(text, size, width)) * LEADING * size for text, size, _ in words)


def _write(figure, x: float, y: float, width: float, words: Words) -> float:
    """Write texts from (x, y) inches downwards. Returns where the next would begin."""
    for text, size, colour in words:
        for line in _lines(text, size, width):
            figure.text(*_fraction(x, y), line, size=size, color=LIGHT[colour], va="top", parse_math=False)
            y -= LEADING * size
    return y


def _key_lines(scene: Scene) -> list[list[tuple[float, str, str, str | None]]]:
    """The key's lines, each a list of (x in inches, meaning, colour, mark), as many to a line as fit."""
    lines, x = [], SIZE[0]
    for name, colour, mark in scene.marks():
        width = PATCH[0] + GAP + LETTER * TEXT * len(name)
        if x + width > SIZE[0] - MARGIN:
            lines, x = [*lines, []], MARGIN
        lines[-1].append((x, name, colour, mark))
        x += width + 2 * GAP
    return lines


def _write_key(figure, scene: Scene) -> None:
    """Write the key at the bottom: a patch of each colour, or an outline where it is one, and its meaning."""
    from matplotlib.patches import Rectangle

    lines = _key_lines(scene)
    for number, line in enumerate(lines):
        y = MARGIN / 2 + (len(lines) - number - 0.5) * LEADING * TEXT
        for x, name, colour, mark in line:
            shown = LIGHT.get(colour, colour)
            (left, bottom), (wide, high) = _fraction(x, y - PATCH[1] / 2), _fraction(*PATCH)
            look = {"facecolor": "none" if mark is None else shown, "edgecolor": shown, "linewidth": 2}
            figure.add_artist(Rectangle((left, bottom), wide, high, transform=figure.transFigure, **look))
            place = _fraction(x + PATCH[0] + GAP, y)
            figure.text(*place, name, size=TEXT, color=LIGHT["ink"], va="center_baseline", parse_math=False)


def _fraction(*inches: float) -> tuple[float, ...]:
    """Inches across, up, across, up as fractions of the slide."""
    return tuple(part / SIZE[i % 2] for i, part in enumerate(inches))
