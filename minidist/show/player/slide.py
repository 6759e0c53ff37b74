"""One step of a scene as a slide: 16:9, with a title, a note and a key that the last row can read.

They are in type of at least 24 points; the words in the picture are as large as its grid of 72 characters allows, about
19 points. A flat picture has its words below it, a tall one beside it: whichever leaves the picture larger.
"""

from textwrap import shorten, wrap

from minidist.show.player.scene import WIDTH, Scene
from minidist.show.player.still import LIGHT, LINE, draw_frame, draw_key, type_size

SIZE = (13.333, 7.5)  # inches, as a slide of PowerPoint, Keynote or Google
TITLE, TEXT = 28, 24  # type sizes in points
VERDICT = 90  # letters of it
MARGIN = 0.4  # inches, on every side
SIDE = 4.0  # inches, of the words beside a tall picture
LEADING = 1.25 / 72  # inches from line to line, per point of type
KEY_LEADING = 1.8 / 72  # the same in the key
LETTER = 0.57 / 72  # mean width of a letter in inches, per point of type


def draw(scene: Scene, step: int, bug: str = ""):
    """A matplotlib Figure of one frame of a scene; ``bug`` is what was injected, if anything."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, facecolor=LIGHT["paper"])
    width, height = SIZE[0] - 2 * MARGIN, SIZE[1] - MARGIN
    headings = [(scene.title, TITLE, "ink")] + [(f"Broken: {bug}", TEXT, "wrong")] * bool(bug)
    words = [(scene.frames[step].note, TEXT, "ink")]
    if step == len(scene.frames) - 1:
        words.append(
            (shorten(scene.verdict, VERDICT, placeholder=" …"), TEXT, "right" if scene.first_wrong is None else "wrong")
        )
    top = _write(figure, MARGIN, height, width, headings)
    columns = _key_columns(scene, width)
    aside = [count for count in (1, columns) if _height(words, SIDE) + (count == 1) * _key_height(scene, 1) < top]
    rooms = [(width, top - _height(words, width) - _key_height(scene, columns), False, columns)]
    for count in aside:  # the words beside the picture: with the key below them, or below the picture
        bottom = MARGIN if count == 1 else _key_height(scene, columns)
        rooms.append((width - MARGIN - SIDE, top - bottom, True, count))
    character, is_beside, columns = max(
        (_character(scene, wide, high), is_beside, count) for wide, high, is_beside, count in rooms
    )
    board = character * (WIDTH + 1), character * (LINE * scene.height + 0.5)
    axes = figure.add_axes(_fraction(MARGIN, top - board[1], *board))
    axes.axis("off")
    draw_frame(axes, scene.frames[step], scene.height, type_size(character), TEXT)
    if is_beside:
        _write(figure, 2 * MARGIN + board[0], top, width - MARGIN - board[0], words)
    else:
        _write(figure, MARGIN, top - board[1], width, words)
    draw_key(figure, scene.key, "lower right" if is_beside else "lower left", TEXT, columns)
    return figure


def _character(scene: Scene, width: float, height: float) -> float:
    """How wide a character may be so that the picture fits a place; all in inches."""
    return min(width / (WIDTH + 1), height / (LINE * scene.height + 0.5))


def _lines(text: str, size: float, width: float) -> list[str]:
    return wrap(text, int(width / (LETTER * size)))


def _height(words: list[tuple[str, float, str]], width: float) -> float:
    return sum(len(_lines(text, size, width)) * LEADING * size for text, size, _ in words)


def _write(figure, x: float, y: float, width: float, words: list[tuple[str, float, str]]) -> float:
    """Write texts, each with its size and colour, from (x, y) inches downwards. Returns where the next would begin."""
    for text, size, colour in words:
        for line in _lines(text, size, width):
            figure.text(*_fraction(x, y), line, size=size, color=LIGHT[colour], va="top", parse_math=False)
            y -= LEADING * size
    return y


def _key_columns(scene: Scene, width: float) -> int:
    longest = max([LETTER * TEXT * (5 + len(name)) for name in scene.key], default=width)  # 5: its patch of colour
    return max(1, int(width / longest))


def _key_height(scene: Scene, columns: int) -> float:
    return 0.3 + -(-len(scene.key) // columns) * KEY_LEADING * TEXT


def _fraction(*inches: float) -> tuple[float, ...]:
    """Inches across, up, across, up as fractions of the slide."""
    return tuple(part / SIZE[i % 2] for i, part in enumerate(inches))
