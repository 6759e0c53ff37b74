"""The second extension point of the core: hooks around a step.

Everything that measures, saves, checks, shows or breaks a run is a ``StepHook``. The loop (trainer.py) calls all hooks
before the first step, around each step, and after the last one. They nest: the hook that is first before a step is last
after it.

(PyTorch Lightning's ``Callback`` does the same, and torchtitan wraps its profiler, checkpointer and fault tolerance
around ``train_step``. The first extension point is a mode around an operation: nn/tensor.py.)
"""

from minidist.train.fingerprint import digest
from minidist.train.share import Share


class StepHook:
    """Base class of hooks around the steps of a run. All ranks call the same hooks in the same order."""

    def begin_run(self, share: Share) -> None:
        """Called once the state is restored, before the first step of this run."""

    def begin_step(self, step: int, last: bool) -> None:
        """Called before a step, counted from 0 over the whole run; ``last``: it is the last one of this run."""

    def end_step(self, step: int, loss: float, last: bool) -> None:
        """Called after a step, with its loss."""

    def end_run(self) -> dict:
        """Return the results, under the names of ``RankResult``'s fields."""
        return {}


class Digests(StepHook):
    """Hook that hashes the weights and the optimizer's state after each step. All ranks do it together."""

    def begin_run(self, share: Share) -> None:
        self.share, self.found = share, []

    def end_step(self, step: int, loss: float, last: bool) -> None:
        share = self.share
        self.found.append(digest(share.gpt, share.optimizer, share.model.full_state).hexdigest())

    def end_run(self) -> dict:
        return {"step_digests": self.found}
