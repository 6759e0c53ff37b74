"""The library's ZeRO stage 3, watched: it notes at every relevant moment which units are unsharded."""

import minidist as md
from minidist.parallel.zero import ZeroStage3
from minidist.train.parallelize import forward_backward
from minidist.train.share import batch_of

from .moments import UnitState


class Watched(ZeroStage3):
    """ZeRO stage 3 that appends (moment, state of each unit) to ``notes``."""

    def note(self, moment: str) -> None:
        states = []
        for unit in (self.root, *self.blocks):
            parameters = "unsharded" if unit.full is not None else "in flight" if unit in self.gathering else "sharded"
            states.append(UnitState(parameters, "sharded" if unit.grads is None else "unsharded"))
        self.notes.append((moment, states))

    def before_forward(self, unit) -> None:
        super().before_forward(unit)
        self.note(f"forward\n{self.name_of(unit)}")

    def complete(self, unit) -> None:
        self.note(f"backward\n{self.name_of(unit)}")
        super().complete(unit)

    def name_of(self, unit) -> str:
        return "root" if unit is self.root else f"block {self.blocks.index(unit)}"


def notes_of_a_step(world, config, prefetch: bool) -> list[tuple[str, list[UnitState]]]:
    """Run one step on every rank of the world, and return this rank's notes."""
    model, alone = md.GPT(config.model, seed=0), world.new_group([world.rank])
    watched = Watched(model, model.blocks, world, alone, 1, prefetch=prefetch)
    watched.notes = []
    watched.zero_grad()
    watched.note("at rest")
    forward_backward(model, batch_of(md.load_corpus(None, config.context), config, 0, world.rank))
    watched.wait_for_gradients()
    watched.note("step done")
    return watched.notes
