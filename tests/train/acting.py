"""A rank function for tests in which something happens around a step."""

from minidist.train.hooks import StepHook
from minidist.train.trainer import train_rank


def train_acting(world, *arguments, begin=lambda step: None, end=lambda step: None):
    """Train, and call ``begin(step)`` as a step begins, ``end(step)`` once it has ended and what it saves is there."""
    hook = StepHook()
    hook.begin_step, hook.end_step = lambda step, _: begin(step), lambda step, *_: end(step)
    return train_rank(world, *arguments, [hook])
