"""A walk through an animation without a screen: clock, beats, questions. In a page stage.js does the same."""

from collections.abc import Sequence

from minidist.show.stage.animation import Animation
from minidist.show.stage.story import Question, Story


class Lecture:
    """Where a lecture is.

    Attributes:
        whole: the story that is shown, with its dials.
        dials: their positions.
        story: the variant at these positions; without dials, the same story.
        time: the moment on its clock.
        question: the open one, if any; the audience votes until it is revealed.
        votes: hands for each of its choices.
        revealed: whether its answer is shown.
        asking: whether questions are asked.
    """

    def __init__(self, animation: Animation, story: Story) -> None:
        self.animation = animation
        self.asking = True
        self.asked: set[tuple[str, int, bool]] = set()
        self.counted: dict[str, list[int]] = {}
        self.show(story)

    def show(self, story: Story, time: float = 0.0, dials: Sequence[int] = ()) -> None:
        """Show a story at a moment, its dials at these positions, or where they begin."""
        self.whole, self.dials = story, list(dials) or [dial.start for dial in story.dials]
        self.story = story.turned(self.dials)
        self.go(time)

    def go(self, time: float) -> None:
        """Set the clock; a question that is open is closed."""
        self.time = min(max(0.0, time), self.story.ends)
        self.question: Question | None = None
        self.votes, self.revealed = [], False

    @property
    def beat(self) -> int:
        """The number of the last beat that has come."""
        return max(i for i, beat in enumerate(self.story.beats) if beat.at <= self.time + 1e-6)

    def onward(self) -> float | None:
        """Open or close what is asked or answered here; return the moment to which the clock is to run, or None."""
        if self.question is not None:
            self.go(self.time)
        else:
            number, beat = self.beat, self.story.beats[self.beat]
            asking = self.asking and self.time <= beat.at + 1e-6
            for reveals, question in ((True, beat.answers), (False, beat.asks)):
                if asking and question and (name := (question.text, number, reveals)) not in self.asked:
                    self.asked.add(name)  # once in a lecture: who comes back has heard it
                    self.votes = self.counted.setdefault(question.text, [0] * len(question.choices))
                    self.question, self.revealed = question, reveals
                    return None
        later = self.story.beats[self.beat + 1 :]
        return later[0].at if later else None

    def back(self) -> None:
        """Go to the beat before."""
        before = [beat.at for beat in self.story.beats if beat.at < self.time - 1e-6]
        self.go(before[-1] if before else 0.0)

    def vote(self, number: int) -> None:
        """Count a hand for a choice, from 0 on."""
        if self.question is not None and not self.revealed and number < len(self.votes):
            self.votes[number] += 1

    def break_it(self) -> bool:
        """Show this moment with the bug, or without it again; return whether there is such a run."""
        twin = self.animation.twin(self.whole)
        if twin:
            self.show(twin, self.time, self.dials if twin.dials else ())
        return twin is not None

    def turn(self, by: int) -> None:
        """Turn the first dial, if there is one, by so many values; the clock stays at the same share of the story."""
        if self.whole.dials:
            share, most = self.time / self.story.ends, len(self.whole.dials[0].values) - 1
            self.show(self.whole, dials=[min(max(0, self.dials[0] + by), most), *self.dials[1:]])
            self.go(share * self.story.ends)

    def next_scene(self) -> None:
        right = self.animation.right
        number = next(i for i, story in enumerate(right) if story.name == self.story.name)
        self.show(right[(number + 1) % len(right)])


def notes(animation: Animation) -> str:
    """Every scene with what a lecturer says and asks at its beats, as plain text to print."""
    parts = [f"{animation.name}: {animation.title}"]
    for story in animation.scenes:
        lines = [f"{story.name}{', broken' * bool(story.broken)}: {story.question}"]
        lines += [f"  b breaks it: {story.broken}"] if story.broken else []
        for number, beat in enumerate(story.beats):
            lines.append(f"  {number}  {beat.says}")
            lines += [f"     say: {beat.cue}"] if beat.cue else []
            if question := beat.asks:
                lines.append(f"     ask: {question.text}")
                answer = question.choices[question.answer]
                lines += [f"        {choice}{'   <- the answer' * (choice == answer)}" for choice in question.choices]
                lines.append(f"        because: {question.reason}")
        lines += [f"  end: {story.verdict}"] if story.verdict else []
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
