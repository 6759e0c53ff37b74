"""A scene as an animated GIF, for a README or a slide: one picture per frame, in an endless loop."""

from textwrap import fill

from minidist.show.player.animation import Animation
from minidist.show.player.scene import WIDTH, Frame, Scene
from minidist.show.player.still import FAINT_TEXT, LIGHT, LINE, draw_frame, draw_key, type_size

INCHES, DPI = 8.0, 100
STEP, LAST = 1500, 5000  # milliseconds per frame; the last one stays longer, so that it can be read
COLOURS = 128  # in the palette; the scenes use a dozen, the others smooth edges
SAMPLED = 4  # pixels between those that decide the palette, across and down
TITLE, TEXT = 11, 9.5  # type sizes in points
CHARACTERS = 108  # in a line of text


def save(animation: Animation, scene: Scene, path) -> None:
    """Write a scene's frames as a GIF that loops forever and pauses on the last frame, above the scene's verdict."""
    bug = f"Broken: {animation.bug_of(scene)}." if animation.is_broken(scene) else ""
    *early, last = scene.frames
    pictures = [_picture(scene, bug, frame, "") for frame in early] + [_picture(scene, bug, last, scene.verdict)]
    palette = _samples(pictures).quantize(COLOURS)  # the same for all frames: with one each, colours would flicker
    first, *others = [picture.quantize(palette=palette, dither=0) for picture in pictures]
    durations = [STEP] * len(early) + [LAST]
    first.save(path, format="GIF", save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


def _samples(pictures: list):
    """Every few pixels of all frames in one image: it has all plain colours, also those that the last frame lacks."""
    from PIL import Image

    width, height = (side // SAMPLED for side in pictures[0].size)
    joined = Image.new("RGB", (width, height * len(pictures)))
    for number, picture in enumerate(pictures):
        joined.paste(picture.resize((width, height), Image.Resampling.NEAREST), (0, number * height))
    return joined


def _picture(scene: Scene, bug: str, frame: Frame, verdict: str):
    """One frame as a PIL image: title, shapes, note, facts, verdict. All frames of a scene have the same size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    character = INCHES / (WIDTH + 4)
    board = (LINE * scene.height + 0.5) * character
    below = 1.15 + 0.17 * len(fill(scene.verdict, CHARACTERS).splitlines())
    height = (0.6 if bug else 0.4) + board + below
    figure = Figure(figsize=(INCHES, height), dpi=DPI, facecolor=LIGHT["paper"])
    axes = figure.add_axes((0, below / height, 1, board / height))
    axes.axis("off")
    draw_frame(axes, frame, scene.height, type_size(character))

    def write(y: float, text: str, size: float, colour: str) -> None:
        figure.text(2 * character / INCHES, y / height, fill(text, CHARACTERS), size=size, color=colour, va="top")

    write(height - 0.12, scene.title, TITLE, LIGHT["ink"])
    write(height - 0.35, bug, TEXT, LIGHT["wrong"])
    write(below - 0.1, frame.note, TEXT, LIGHT["ink"])
    write(below - 0.45, "    ".join(f"{name}: {value}" for name, value in frame.facts.items()), TEXT, FAINT_TEXT)
    write(below - 0.75, verdict, TEXT, LIGHT["right" if scene.first_wrong is None else "wrong"])
    draw_key(figure, scene.key, loc="lower right")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
