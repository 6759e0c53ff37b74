"""A story: a question, marks on one clock, and the beats at which the lecturer stops."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.stage.marks import Mark


@dataclass(frozen=True)
class Question:
    """What the audience predicts.

    Args:
        text: the question.
        choices: 2 to 6 answers.
        answer: the number of the right one.
        reason: why, in one or two sentences.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    reason: str

    def __post_init__(self) -> None:
        if not 2 <= len(self.choices) <= 6 or not 0 <= self.answer < len(self.choices):
            raise ValueError(f"the question {self.text!r} does not have 2 to 6 choices with the answer")


@dataclass(frozen=True)
class Beat:
    """A moment at which the clock stops.

    Args:
        at: the moment, in seconds of the story's clock.
        says: what has happened, in one short sentence.
        facts: name -> figure, for those who ask.
        asks: asked here, before the clock goes on.
        answers: the question that was asked earlier and is answered here.
        cue: what the lecturer may say.
        lines: numbers of the lines of the program that have run.
    """

    at: float
    says: str
    facts: dict[str, str] | None = None
    asks: Question | None = None
    answers: Question | None = None
    cue: str = ""
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Story:
    """A run, or a part of one, as moving marks.

    Args:
        name: a word or two, for the button that selects it.
        question: what it is about, as a question; it is the title.
        marks: from the lowest to the uppermost.
        beats: at least one; the first is at the beginning.
        verdict: the outcome in a few words.
        broken: what bug was injected; "" if none was.
        texts: for each beat, the picture as lines for a terminal.
        code: lines of the program, lit up by ``Beat.lines``.
        key: meaning -> colour.
    """

    name: str
    question: str
    marks: Sequence[Mark]
    beats: Sequence[Beat]
    verdict: str = ""
    broken: str = ""
    texts: Sequence[Sequence[str]] = ()
    code: Sequence[str] = ()
    key: dict[str, str] | None = None

    @property
    def ends(self) -> float:
        """The moment of the last beat."""
        return self.beats[-1].at
