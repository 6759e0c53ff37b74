"""An animation as plain data: scenes of frames, frames of shapes, on a grid of characters.

Every place is in characters, from the top left: x to the right, up to WIDTH, and y downwards in lines, of which one is
twice as high as a character is wide. So a terminal shows a frame as it is, and a page or a picture the same to scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

WIDTH = 72  # characters; with its frame it fits a terminal of 80
USUAL_SPEED = 3  # of the players' 1 to 9, each half as fast again as the one before
THEME = ("ink", "faint", "paper", "wrong", "right")  # colours that are others on a dark ground


@dataclass(frozen=True)
class Box:
    """A rectangle, with a text in its middle.

    Args:
        x, y, w, h: its left top corner, its width and its height.
        fill: a colour, "#RRGGBB" or one of THEME; None for a frame alone, through which one sees what lies below.
        text: is cut where it does not fit.
        mark: one character that a terminal without colours fills it with.
        outline: the colour of a frame around it.
    """

    x: float
    y: float
    w: float
    h: float
    fill: str | None = "faint"
    text: str = ""
    mark: str = "#"
    outline: str | None = None


@dataclass(frozen=True)
class Arrow:
    """From one place to another. A terminal writes its label instead of drawing it, so that has to say it all."""

    x: float
    y: float
    to_x: float
    to_y: float
    colour: str = "ink"
    label: str = ""
    bend: float = 0.0  # how far to the right of the straight line its middle lies, in characters


@dataclass(frozen=True)
class Label:
    """A text that begins at (x, y), the left end of its line; or ends or has its middle there."""

    x: float
    y: float
    text: str
    colour: str = "ink"
    anchor: str = "start"  # "middle" or "end"


Shape = Box | Arrow | Label


@dataclass(frozen=True)
class Frame:
    """What is seen at once.

    Args:
        shapes: later ones lie above earlier ones.
        note: what happens in this step, in a sentence.
        facts: figures by what they are, "bytes so far" say, in the same order in every frame of a scene.
    """

    shapes: tuple[Shape, ...]
    note: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scene:
    """A run, or a part of one, from its first frame to its last.

    Args:
        name: a word or two, on the button that chooses it.
        title: what is seen, in a line.
        frames: at least one.
        height: of the grid, in lines.
        key: meanings of colours, by name; shown below the picture.
        verdict: what came of the run; of a broken one where it parts from one process: step, parameter, ulps.
        parts_at: the first frame that is wrong; None where none is.
        stills: which frames a picture shows; the last one, if not said.
    """

    name: str
    title: str
    frames: tuple[Frame, ...]
    height: float
    key: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    parts_at: int | None = None
    stills: tuple[int, ...] = (-1,)

    def __post_init__(self) -> None:
        if not self.frames:
            raise ValueError(f"scene {self.name!r} has no frames")

    def marks(self) -> list[tuple[str, str, str | None]]:
        """The key: each name, its colour, and the mark of a box that is filled so; None for the colour of frames."""
        boxes = {shape: None for frame in self.frames for shape in frame.shapes if isinstance(shape, Box)}
        fills = {box.fill: box.mark for box in reversed(boxes)}
        return [(name, colour, fills.get(colour)) for name, colour in self.key.items()]


@dataclass(frozen=True, repr=False)
class Animation:
    """A demonstration: scenes to choose from, and one in which something is broken. Jupyter shows it as a player.

    Args:
        name: of the demonstration, as the command line has it.
        title: the question that it answers, or what it shows.
        scenes: the run as it should be, or several to be compared.
        broken: the same with a bug planted; the "break it" switch shows it.
        bug: what was planted, in a line.
        logs: of the first scene's run what each rank traced, for Perfetto.
    """

    name: str
    title: str
    scenes: tuple[Scene, ...]
    broken: Scene
    bug: str
    logs: Sequence[list] = ()

    def __repr__(self) -> str:
        return f"<animation {self.name}: {', '.join(scene.name for scene in self.scenes)}; to be broken>"

    def only(self, *names: str) -> "Animation":
        """The same with these scenes alone.

        Raises:
            ValueError: if a scene has no such name.
        """
        known = {scene.name: scene for scene in self.scenes}
        for name in names:
            if name not in known:
                raise ValueError(f"{self.name} has no scene {name!r}: choose from {', '.join(map(repr, known))}")
        logs = self.logs if names[0] == self.scenes[0].name else ()  # they are the first scene's
        return replace(self, scenes=tuple(known[name] for name in names), logs=logs)

    def figure(self):
        """A matplotlib Figure of the scenes' stills."""
        from minidist.show.player import still

        return still.draw(self)

    def html(self, first: Scene | None = None) -> str:
        """One page with everything in it, that works without a network; ``first`` is the scene that it begins with."""
        from minidist.show.player import page

        return page.whole(self, first)

    def _repr_html_(self) -> str:
        from minidist.show.player import page

        return page.in_notebook(self)
