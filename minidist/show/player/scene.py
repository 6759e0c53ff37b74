"""A scene as plain data: frames of shapes on a grid of characters.

Every coordinate is in characters from the top left: x to the right, up to WIDTH, and y downwards in lines. A line is
twice as high as a character is wide. A terminal shows a frame as it is; a page or a picture shows the same to scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

WIDTH = 72  # characters; with the player's margins this fits a terminal of 80
USUAL_SPEED = 3  # of the players' 1 to 9, each half as fast again as the one before
THEME = ("ink", "faint", "paper", "wrong", "right")  # colours that depend on whether the background is light or dark


@dataclass(frozen=True)
class Box:
    """A rectangle with a text in its middle.

    Args:
        x, y, w, h: its upper left corner, its width and its height.
        fill: a colour, "#RRGGBB" or one of THEME; None for an outline alone, with whatever is below visible inside.
        text: cut off if it does not fit.
        mark: the character that a terminal without colours fills it with.
        outline: colour of the outline, if any.
        id: the name of the thing that it is, such as "chunk b of rank 2": boxes with one id in successive frames are
            one thing that moves, and a click on it tells its history. "" if it is no thing of its own.
    """

    x: float
    y: float
    w: float
    h: float
    fill: str | None = "faint"
    text: str = ""
    mark: str = "#"
    outline: str | None = None
    id: str = ""


@dataclass(frozen=True)
class Arrow:
    """An arrow from one place to another. A terminal prints its label instead, so the label must say everything."""

    x: float
    y: float
    to_x: float
    to_y: float
    colour: str = "ink"
    label: str = ""
    bend: float = 0.0  # distance of its middle to the right of the straight line, in characters


@dataclass(frozen=True)
class Label:
    """A text at (x, y), which is the left end, the middle or the right end of its line."""

    x: float
    y: float
    text: str
    colour: str = "ink"
    anchor: str = "start"  # "middle" or "end"


@dataclass(frozen=True)
class Curve:
    """A line through points. A terminal draws it in the dots of Braille characters.

    Args:
        points: (x, y) of each.
        width: width in pixels of the page.
    """

    points: tuple[tuple[float, float], ...]
    colour: str = "ink"
    width: float = 3


Shape = Box | Arrow | Label | Curve


@dataclass(frozen=True)
class Question:
    """What the audience predicts before a frame shows it.

    Args:
        frame: the number of the frame that answers it.
        text: the question.
        choices: 2 to 6 answers.
        answer: the number of the right one.
        reason: why, in one or two sentences; shown with the answer.
        asked: the number of the frame before which it is asked; 0 for the one that answers it. From an earlier one on,
            the frames between are what the audience watches to see who was right.
    """

    frame: int
    text: str
    choices: tuple[str, ...]
    answer: int
    reason: str
    asked: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.asked <= self.frame:
            raise ValueError(f"the question {self.text!r} is asked before frame {self.asked}, after its answer")
        if self.frame < 1 or not 2 <= len(self.choices) <= 6 or not 0 <= self.answer < len(self.choices):
            raise ValueError(
                f"the question {self.text!r} has no frame before it, or not 2 to 6 choices with the answer"
            )

    @property
    def before(self) -> int:
        """The frame before which it is asked."""
        return self.asked or self.frame


@dataclass(frozen=True)
class Cue:
    """What a speaker says or asks from a frame on, and for about how many minutes."""

    frame: int
    minutes: float
    text: str


@dataclass(frozen=True)
class Dial:
    """Something that the viewer sets, such as the bandwidth of a link.

    Args:
        values: the values in words, from the smallest on.
        start: the number of the value that it begins with.
    """

    name: str
    values: tuple[str, ...]
    start: int = 0


@dataclass(frozen=True)
class Frame:
    """What is visible at one moment.

    Args:
        shapes: later ones cover earlier ones.
        note: what happens in this step, in one sentence.
        facts: name -> figure, such as "bytes so far"; the names are the same in every frame of a scene.
        at: the moment on the clock that all scenes of an animation share, such as ms; by default, the frame's number.
        lines: numbers of the lines of the scene's code that this step runs.
    """

    shapes: tuple[Shape, ...]
    note: str
    facts: Mapping[str, str] = field(default_factory=dict)
    at: float | None = None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scene:
    """A run, or a part of one, from its first frame to its last.

    Args:
        name: a word or two, for the button that selects it.
        title: what it shows, in one line.
        frames: one frame or more.
        height: height of the grid, in lines.
        key: meaning -> colour, shown below the picture.
        verdict: the outcome of the run in a few words, such as "wrong sum in 8 of 16 chunks".
        first_wrong: the number of the first wrong frame; None if no frame is wrong.
        stills: numbers of the frames that a still picture shows; the last one by default.
        twin: name of the scene that a broken one matches moment by moment; "" if it matches each of them.
        details: where a broken run diverges: after which step, in which parameter, by how many ulps. Folded.
        questions: what is asked before some frames.
        cues: what a speaker says at some frames.
        code: lines of the program that the steps run, to be lit up by ``Frame.lines``.
        dials: what the viewer sets.
        variants: the scene for every position of the dials, the last dial's first. This scene is one of them.
        bug: what was injected into a broken scene, if it is not the animation's bug.
    """

    name: str
    title: str
    frames: tuple[Frame, ...]
    height: float
    key: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    first_wrong: int | None = None
    stills: tuple[int, ...] = (-1,)
    twin: str = ""
    details: str = ""
    questions: tuple[Question, ...] = ()
    cues: tuple[Cue, ...] = ()
    code: tuple[str, ...] = ()
    dials: tuple[Dial, ...] = ()
    variants: Sequence["Scene"] = ()
    bug: str = ""

    def __post_init__(self) -> None:
        if not self.frames:
            raise ValueError(f"scene {self.name!r} has no frames")
        for what in (*self.questions, *self.cues):
            if what.frame >= len(self.frames):
                raise ValueError(f"scene {self.name!r} has no frame {what.frame}, which {what.text!r} is about")
        if self.dials and len(self.variants) != prod(len(dial.values) for dial in self.dials):
            raise ValueError(f"scene {self.name!r} needs a variant for every position of its dials")

    def marks(self) -> list[tuple[str, str, str | None]]:
        """The key as (meaning, colour, mark of a box with that fill); the mark is None for a colour of outlines."""
        boxes = {shape: None for frame in self.frames for shape in frame.shapes if isinstance(shape, Box)}
        fills = {box.fill: box.mark for box in reversed(boxes)}
        return [(name, colour, fills.get(colour)) for name, colour in self.key.items()]
