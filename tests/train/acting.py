"""A hook for tests: something happens as a step begins, or once it has ended and what it saves is committed."""

from collections.abc import Callable

from minidist.train.hooks import StepHook
from minidist.train.trainer import train_rank


class Act(StepHook):
    """Calls ``begin(step)`` and ``end(step)`` on this rank."""

    def __init__(self, begin: Callable | None, end: Callable | None) -> None:
        self.begin, self.end = begin, end

    def begin_step(self, step, *_):
        if self.begin:
            self.begin(step)

    def end_step(self, step, *_):
        if self.end:
            self.end(step)


def train_acting(world, *arguments, begin=None, end=None):
    """``train_rank`` with such a hook."""
    return train_rank(world, *arguments, [Act(begin, end)])
