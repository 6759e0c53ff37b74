"""Resuming with one thing reset, as if the checkpoint did not have it."""

from unittest.mock import patch

import numpy as np

import minidist as md
from minidist.train.hooks import StepHook
from minidist.train.share import Share


class Forgets(StepHook):
    """Resets one thing after the checkpoint was read, before the first step."""

    def __init__(self, what: str) -> None:
        self.what = what

    def begin_run(self, share) -> None:
        if self.what == "moments":
            for arrays in share.optimizer.kinds.values():
                for array in arrays.values():
                    array[...] = 0
        if self.what == "updates":
            share.optimizer.steps = 0
        if self.what == "loss scale":
            share.scaler.scale, share.scaler.good_steps = 2.0**16, 0
        if self.what == "router biases":
            share.gpt.load_extra_state({name: 0 * array for name, array in share.gpt.extra_state().items()})
        if self.what == "master weights":  # only their float16 copies are left
            for parameter in share.model.trained:
                parameter.data[...] = parameter.data.astype(np.float16)


def without(what: str, step: int):
    """Return a ``md.train_rank`` that forgets one thing when it resumes after ``step`` steps."""

    def forgetful(world, config, layout, options):
        draw = Share.batch

        def batch(share, number, samples):
            return draw(share, number - step if what == "data order" else number, samples)

        with patch.object(Share, "batch", batch):
            return md.train_rank(world, config, layout, options, [Forgets(what)])

    return forgetful
