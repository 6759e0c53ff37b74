"""A walk through an animation without a screen: clock, beats, questions. In a page stage.js does the same."""

from collections.abc import Sequence

from minidist.show.stage.animation import Animation
from minidist.show.stage.story import Question, Story


class Lecture:
    """State of a lecture: the story that is shown, its clock, and its questions.

    Attributes:
        whole: story that is shown, with its dials.
        dials: positions of the dials.
        story: variant of ``whole`` at these positions; without dials, ``whole`` itself.
        time: moment on the story's clock, in seconds.
        question: the open question, or None; the audience votes until its answer is revealed.
        votes: number of votes for each choice of the open question.
        revealed: whether the answer is shown.
        asking: whether questions are asked.
    """

    def __init__(self, animation: Animation, story: Story) -> None:
        self.animation = animation
        self.asking = True
        self.asked: set[tuple[str, int, bool]] = set()
        self.counted: dict[str, list[int]] = {}
        self.show(story)

    def show(self, story: Story, time: float = 0.0, dials: Sequence[int] = ()) -> None:
        """Show a story at a moment, with its dials at these positions; by default where they start."""
        self.whole, self.dials = story, list(dials) or [dial.start for dial in story.dials]
        self.story = story.turned(self.dials)
        self.go(time)

    def go(self, time: float) -> None:
        """Set the clock and close the open question."""
        self.time = min(max(0.0, time), self.story.ends)
        self.question: Question | None = None
        self.votes, self.revealed = [], False

    @property
    def beat(self) -> int:
        """Number of the last beat that the clock has reached."""
        return max(i for i, beat in enumerate(self.story.beats) if beat.at <= self.time + 1e-6)

    def onward(self) -> float | None:
        """Close the open question, or open one that is due; return the moment that the clock should run to, or None."""
        if self.question is not None:
            self.go(self.time)
        else:
            number, beat = self.beat, self.story.beats[self.beat]
            asking = self.asking and self.time <= beat.at + 1e-6
            for reveals, question in ((True, beat.answers), (False, beat.asks)):
                if asking and question and (name := (question.text, number, reveals)) not in self.asked:
                    self.asked.add(name)  # once in a lecture, even after going back
                    self.votes = self.counted.setdefault(question.text, [0] * len(question.choices))
                    self.question, self.revealed = question, reveals
                    return None
        later = self.story.beats[self.beat + 1 :]
        return later[0].at if later else None

    def back(self) -> None:
        """Go to the previous beat."""
        before = [beat.at for beat in self.story.beats if beat.at < self.time - 1e-6]
        self.go(before[-1] if before else 0.0)

    def vote(self, number: int) -> None:
        """Count a vote for a choice, numbered from 0."""
        if self.question is not None and not self.revealed and number < len(self.votes):
            self.votes[number] += 1

    def break_it(self) -> bool:
        """Switch between the right and the broken run at this moment; return whether there is such a run."""
        twin = self.animation.twin(self.whole)
        if twin:
            self.show(twin, self.time, self.dials if twin.dials else ())
        return twin is not None

    def turn(self, by: int) -> None:
        """Turn the first dial, if any, by a number of values; the clock stays at the same share of the story."""
        if self.whole.dials:
            share, most = self.time / self.story.ends, len(self.whole.dials[0].values) - 1
            self.show(self.whole, dials=[min(max(0, self.dials[0] + by), most), *self.dials[1:]])
            self.go(share * self.story.ends)

    def next_scene(self) -> None:
        right = self.animation.right
        number = next(i for i, story in enumerate(right) if story.name == self.story.name)
        self.show(right[(number + 1) % len(right)])


def notes(animation: Animation) -> str:
    """Return the lecturer's notes as plain text: what to say and ask at every beat of every scene."""
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
