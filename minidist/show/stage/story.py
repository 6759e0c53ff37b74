"""A story: a question, marks on one clock, and the beats at which the lecturer stops."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from minidist.show.stage.marks import Mark


@dataclass(frozen=True)
class Question:
    """Question on which the audience votes before it sees the answer.

    Args:
        text: the question.
        choices: 2 to 6 different answers.
        answer: number of the right choice, from 0.
        reason: why it is right, in one or two sentences.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    reason: str

    def __post_init__(self) -> None:
        if not 2 <= len({*self.choices}) == len(self.choices) <= 6 or not 0 <= self.answer < len(self.choices):
            raise ValueError(f"the question {self.text!r} does not have 2 to 6 choices with the answer")

    @classmethod
    def number(cls, text: str, right: float, others: Iterable[float], reason: str, form: str = "{}") -> "Question":
        """Return a question about a number. Choices are sorted; numbers that are formatted alike become one choice."""
        values = {form.format(value): value for value in (*others, right)}
        choices = tuple(sorted(values, key=values.__getitem__))
        return cls(text, choices, choices.index(form.format(right)), reason)


@dataclass(frozen=True)
class Beat:
    """Moment at which the clock stops.

    Args:
        at: moment on the story's clock, in seconds.
        says: what has happened, in one short sentence.
        facts: name -> figure, shown on request.
        asks: question to ask here, before the clock goes on.
        answers: earlier question that is answered here.
        cue: words that the lecturer may say.
        lines: numbers of the program's lines that have run.
    """

    at: float
    says: str
    facts: dict[str, str] | None = None
    asks: Question | None = None
    answers: Question | None = None
    cue: str = ""
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dial:
    """Setting that the viewer can change, such as the bandwidth of a link.

    Args:
        values: values as text, the smallest first; a dozen or more.
        start: number of the initial value.
    """

    name: str
    values: tuple[str, ...]
    start: int = 0


@dataclass(frozen=True)
class Story:
    """Story of a run, or of a part of one, told with moving marks.

    Args:
        name: a word or two, for the button that selects it.
        question: question that the story answers; it is the title.
        marks: marks in the order in which they are drawn.
        beats: one beat or more; the first is at 0.
        verdict: the outcome in a few words.
        details: what was proved about the run, or where it first differs from the right one; shown on request.
        broken: the bug that was injected, in words; "" if there is none.
        code: lines of the program, lit up by ``Beat.lines``.
        key: meaning -> colour; see ``shown_key``.
        dials: settings that the viewer can change.
        variants: the story at every combination of the dials' positions; the last dial changes fastest.
    """

    name: str
    question: str
    marks: Sequence[Mark]
    beats: Sequence[Beat]
    verdict: str = ""
    broken: str = ""
    details: str = ""
    code: Sequence[str] = ()
    key: dict[str, str] | None = None
    dials: Sequence[Dial] = ()
    variants: Sequence["Story"] = ()

    def __post_init__(self) -> None:
        if [beat.at for beat in self.beats] != sorted({beat.at for beat in self.beats}) or self.beats[0].at != 0:
            raise ValueError(f"the beats of {self.name!r} do not begin at 0, or do not follow each other")
        if self.dials and len(self.variants) != prod(len(dial.values) for dial in self.dials):
            raise ValueError(f"{self.name!r} needs a variant for every position of its dials")

    @property
    def shown_key(self) -> dict[str, str]:
        """Entries of the key whose colours this story uses: a bug may leave some out."""
        used = {values["fill"] for mark in self.marks for _, values in mark.keys}
        return {name: colour for name, colour in (self.key or {}).items() if colour in used}

    def turned(self, positions: Sequence[int]) -> "Story":
        """Return the variant with the dials at these positions."""
        sizes = [len(dial.values) for dial in self.dials]
        return self.variants[sum(at * prod(sizes[i + 1 :]) for i, at in enumerate(positions))] if sizes else self

    @property
    def at_start(self) -> "Story":
        """The variant with all dials at their start."""
        return self.turned([dial.start for dial in self.dials])

    @property
    def ends(self) -> float:
        """The moment of the last beat."""
        return self.beats[-1].at


def with_dial(dial: Dial, variants: Sequence[Story]) -> Story:
    """Return one story with a dial that has a variant for each of its values."""
    return replace(variants[dial.start], marks=(), dials=(dial,), variants=variants)
