"""The second door of the core: hooks around a step.

Whoever measures, saves, checks, shows or breaks a run is a ``StepHook``. The loop (trainer.py) calls all of them before
the first step, around each step, and after the last one. They nest: the hook that is first before a step is last after
it.

(PyTorch Lightning's ``Callback`` and torchtitan's ``train_step`` with its profiler, checkpointer and fault tolerance
around it are such doors, too. The first door is a mode around an operation: nn/tensor.py.)
"""

from minidist.train.fingerprint import digest
from minidist.train.share import Share


class StepHook:
    """What one rank does around the steps of a run. All ranks call the same hooks in the same order."""

    def begin_run(self, share: Share) -> None:
        """The state is there, and no step of this run has been taken."""

    def begin_step(self, step: int, last: bool) -> None:
        """A step, counted from 0 over the whole run, is about to begin; ``last``: of this run."""

    def end_step(self, step: int, loss: float, last: bool) -> None:
        """The step has ended, with this loss."""

    def end_run(self) -> dict:
        """Return what was found, under the names of ``RankResult``'s fields."""
        return {}


class Digests(StepHook):
    """Hashes the weights and the optimizer's state after each step. All ranks do it together."""

    def begin_run(self, share: Share) -> None:
        self.share, self.found = share, []

    def end_step(self, step: int, loss: float, last: bool) -> None:
        share = self.share
        self.found.append(digest(share.gpt, share.optimizer, share.model.full_state).hexdigest())

    def end_run(self) -> dict:
        return {"step_digests": self.found}
