"""Mixed precision with one bug: no master weights."""

from functools import partial

from minidist.parallel.zero import ZeroStage1
from minidist.show.demos.bf16.run import train_recording

BUG = "no master weights: each update is added to the 16-bit weights"


def forget_masters(optimizer: ZeroStage1) -> None:
    """What the master knew beyond the 16 bits is lost."""
    for unit in optimizer.units:
        assert unit.format is not None
        unit.master[...] = unit.format.decode(unit.shard)


train_without_masters = partial(train_recording, after_sync=forget_masters)
