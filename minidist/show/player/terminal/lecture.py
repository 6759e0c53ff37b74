"""What a player shows, without a screen: scene, step, question, dials. The page's player (web/) does the same."""

from math import prod

from minidist.show.player.animation import Animation
from minidist.show.player.scene import Question, Scene


class Lecture:
    """A walk through an animation, with questions on the way.

    Attributes:
        scene: the chosen scene.
        frame: the number of the one that is shown.
        dials: the number of the value of each of the scene's dials.
        dial: the number of the one that is turned.
        asks: whether questions are asked.
        question: the open one, if any.
        votes: votes for each of its choices.
        waiting: the text of a question that a later frame answers -> its votes.
    """

    def __init__(self, animation: Animation, scene: Scene) -> None:
        self.animation = animation
        self.unbroken = animation.scenes[0] if animation.is_broken(scene) else scene  # to return to from a broken one
        self.asks, self.answered = True, set()
        self.waiting: dict[str, list[int]] = {}
        self.choose(scene)

    @property
    def shown(self) -> Scene:
        """The scene with its dials where they are."""
        if not self.scene.dials:
            return self.scene
        sizes = [len(dial.values) for dial in self.scene.dials]
        return self.scene.variants[sum(at * prod(sizes[i + 1 :]) for i, at in enumerate(self.dials))]

    @property
    def is_broken(self) -> bool:
        return self.animation.is_broken(self.scene)

    @property
    def at_end(self) -> bool:
        return self.frame == len(self.shown.frames) - 1

    @property
    def correct(self) -> Scene:
        """The scene itself, or the one that the broken run belongs to."""
        if not self.is_broken:
            return self.scene
        return next((one for one in self.animation.scenes if one.name == self.scene.twin), self.unbroken)

    # ── scenes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def choose(self, scene: Scene, time: float | None = None, dials: list[int] | None = None) -> None:
        """Show a scene from its beginning, or at a moment of the clock that scenes share."""
        starts = [dial.start for dial in scene.dials]
        self.scene, self.dials, self.dial = scene, dials if dials and len(dials) == len(starts) else starts, 0
        if not self.is_broken:
            self.unbroken = scene
        self.question, self.votes = None, []
        self.frame = 0 if time is None else self._frame_at(time)

    def next_scene(self) -> None:
        scenes = self.animation.scenes
        self.choose(scenes[(scenes.index(self.correct) + 1) % len(scenes)])

    def break_it(self) -> None:
        """Show this moment with the bug, or without it; do nothing if the bug cannot be shown in this scene."""
        if self.can_break:
            other = self.correct if self.is_broken else self.animation.own_twin(self.scene)
            self.choose(other, _times(self.shown)[self.frame], self.dials)

    @property
    def can_break(self) -> bool:
        """Whether there is the same scene with the bug, or without it."""
        return self.is_broken or self.animation.own_twin(self.scene) is not None

    def _frame_at(self, time: float) -> int:
        """The last frame that has begun."""
        return max((number for number, start in enumerate(_times(self.shown)) if start <= time), default=0)

    # ── steps and questions ──────────────────────────────────────────────────────────────────────────────────────────

    def go(self, frame: int) -> None:
        """Show a frame; numbers beyond the ends are the ends."""
        self.question = None
        self.frame = min(max(0, frame), len(self.shown.frames) - 1)

    def forward(self) -> None:
        """A step, or the question before it, or its answer."""
        question = self.question
        if question is None and (asked := self._question_before(self.frame + 1)) is not None:
            self.question = asked
            self.votes = self.waiting.get(asked.text, [0] * len(asked.choices))
            if asked.text in self.waiting:
                self._reveal(asked)
        elif question is None:
            self.go(self.frame + 1)
        elif self.is_revealed:
            self.question = None
        elif self.is_answered_later:
            self.waiting[question.text] = self.votes
            self.go(self.frame + 1)
        else:
            self._reveal(question)

    def _reveal(self, question: Question) -> None:
        self.answered.add(question.text)
        self.go(self.frame + 1)
        self.question = question  # with its answer, until the next step

    def backward(self) -> None:
        """A step back, or the end of a question."""
        self.go(self.frame - (self.question is None))

    def vote(self, number: int) -> None:
        """Count a raised hand for a choice, from 0 on, until the answer is known."""
        if self.question is not None and not self.is_revealed and number < len(self.votes):
            self.votes[number] += 1

    def toggle_questions(self) -> None:
        self.asks, self.question = not self.asks, None

    @property
    def is_revealed(self) -> bool:
        return self.question is not None and self.question.text in self.answered

    @property
    def is_answered_later(self) -> bool:
        """Whether the open question is answered by a frame after the next one."""
        return self.question is not None and not self.is_revealed and self.question.frame > self.frame + 1

    def _question_before(self, frame: int) -> Question | None:
        """What is asked, or answered, on the step to a frame."""
        if not self.asks:
            return None
        left = [one for one in self.shown.questions if one.text not in self.answered]
        answered = [one for one in left if one.frame == frame and (one.before == frame or one.text in self.waiting)]
        asked = [one for one in left if one.before == frame and one.text not in self.waiting]
        return next(iter([*answered, *asked]), None)

    # ── dials ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def choose_dial(self, by: int) -> None:
        """Go to the next dial, or to the one before."""
        if self.dials:
            self.dial = (self.dial + by) % len(self.dials)

    def turn(self, by: int) -> None:
        """Turn the chosen dial; the moment stays, and the end stays the end."""
        if not self.dials:
            return
        at_end, time = self.at_end, _times(self.shown)[self.frame]
        most = len(self.scene.dials[self.dial].values) - 1
        self.dials[self.dial] = min(max(0, self.dials[self.dial] + by), most)
        self.question = None
        self.frame = len(self.shown.frames) - 1 if at_end else self._frame_at(time)


def _times(scene: Scene) -> list[float]:
    """The moment of each frame on the clock that scenes share."""
    return [number if frame.at is None else frame.at for number, frame in enumerate(scene.frames)]
