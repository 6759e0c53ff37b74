"""Copies in peers' memory: what a dead rank held need not come from a disk if another rank has it too.

Every few steps each rank takes a snapshot, keeps it, and sends it to the next rank, which keeps it as well:

    rank        0       1       2
    own         s0      s1      s2
    of a peer   s2      s0      s1          rank 1 dies: s1 is on rank 2

All that a rank keeps is in ``world.kept``, which outlives the failure of another rank. Any one rank may die, and two
that are no neighbours. Two *generations* are kept, because a rank may die while the newer one is in flight.

GEMINI (Wang et al., SOSP 2023) does this in the memory of a machine's CPU, with groups of ranks in place of a ring, and
sends while the network has nothing else to do; here training waits.
"""

import json
import time
from dataclasses import dataclass, field

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import sendrecv
from minidist.parallel.tools.messages import texts_of_all
from minidist.train.checkpoint.manifest import Progress
from minidist.train.checkpoint.snapshot import Part, Snapshots
from minidist.train.hooks import StepHook
from minidist.train.share import Share

KEY = "generations"  # in world.kept
GENERATIONS = 2

Parts = dict[str, Part]


@dataclass(frozen=True)
class PeerCopies:
    """What a run is asked to keep in memory.

    Attributes:
        every: steps between two snapshots.
        copies: ranks that keep each snapshot, beside its own.
    """

    every: int
    copies: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"a snapshot is taken every 1 step or more, not every {self.every}: change --save-every")
        if self.copies < 1:
            raise ValueError(f"--peer-copies must be 0, for none, or more, but is {self.copies}")


@dataclass
class Generation:
    """The snapshots of one step that a rank holds.

    Attributes:
        progress: of the run at the end of that step.
        owners: the names of all its snapshots, whoever holds them: ``rank 1 of dp=3``.
        arrays: name -> shape and dtype of every array that they make up together.
        held: those that are here, by name.
    """

    progress: Progress
    owners: list[str]
    arrays: dict[str, tuple[tuple[int, ...], str]]
    held: dict[str, Parts] = field(default_factory=dict)


def generations_of(world: ProcessGroup) -> list[Generation]:
    """What this rank holds, oldest first; a list to change in place."""
    return world.kept.setdefault(KEY, [])


def forget(world: ProcessGroup) -> None:
    """Let go of what an earlier run has left."""
    world.kept.pop(KEY, None)


class Peers(StepHook):
    """Keeps snapshots on one rank. All ranks call it together.

    Args:
        world: all ranks.
        asked: how often, and how many copies.
        snapshots: of this rank's share of the run.
        layout: in words, for the names of the snapshots.

    Attributes:
        pauses: seconds that each exchange kept this rank from training.
        verified: the steps after which the numbers were last checked; None where nobody checks them. The newest
            generation up to there is kept too.
    """

    def __init__(self, world: ProcessGroup, asked: PeerCopies, snapshots: Snapshots, layout: str) -> None:
        self.world, self.every, self.snapshots = world, asked.every, snapshots
        self.copies = min(asked.copies, world.size - 1)
        self.owners = [f"rank {rank} of {layout}" for rank in range(world.size)]
        self.pauses: list[float] = []
        self.verified: int | None = None
        self.described: list[dict] | None = None  # of each rank: name -> runs, shape and dtype; the same every time

    def begin_run(self, share: Share) -> None:
        if share.losses:
            self.take(self.snapshots.progress)  # at once: what is left of a ring has lost some copies

    def end_step(self, step: int, loss: float, last: bool) -> None:
        """Take and exchange snapshots, if they are due."""
        progress = self.snapshots.progress
        if progress.step % self.every == 0 and not last:
            self.take(progress)

    def end_run(self) -> dict:
        return {"copy_pauses": self.pauses}

    def take(self, progress: Progress) -> None:
        """Take a snapshot, and return when the peers have it. An older generation makes room."""
        began = time.perf_counter()
        parts = self.snapshots.take()
        if self.described is None:
            texts = texts_of_all(json.dumps({name: part.described() for name, part in parts.items()}), self.world)
            self.described = [json.loads(text) for text in texts]
        arrays = {name: (tuple(part["shape"]), part["dtype"]) for rank in self.described for name, part in rank.items()}
        generations = generations_of(self.world)
        generations.append(Generation(progress, self.owners, arrays, {self.owners[self.world.rank]: parts}))
        newest = generations[-GENERATIONS:]
        right = [held for held in generations if self.verified is not None and held.progress.step <= self.verified]
        if right and right[-1].progress.step < newest[0].progress.step:
            newest.insert(0, right[-1])
        generations[:] = newest
        outgoing = packed([part.values for part in parts.values()])
        for distance in range(1, self.copies + 1):
            source = (self.world.rank - distance) % self.world.size
            incoming = np.empty(sum(map(nbytes, self.described[source].values())), np.uint8)
            sendrecv(outgoing, (self.world.rank + distance) % self.world.size, incoming, source, self.world)
            generations[-1].held[self.owners[source]] = unpacked(incoming, self.described[source])
        self.pauses.append(time.perf_counter() - began)


def nbytes(part: dict) -> int:
    """How many bytes the values of a described part take."""
    return sum(stop - start for start, stop in part["runs"]) * np.dtype(part["dtype"]).itemsize


def packed(arrays: list[np.ndarray]) -> np.ndarray:
    """The bytes of flat arrays, end to end."""
    return np.concatenate([np.empty(0, np.uint8), *(array.view(np.uint8) for array in arrays)])


def unpacked(content: np.ndarray, parts: dict[str, dict]) -> Parts:
    """The parts that ``packed`` laid end to end, from their descriptions in that order."""
    found, start = {}, 0
    for name, part in parts.items():
        stop = start + nbytes(part)
        values = content[start:stop].view(part["dtype"])
        found[name] = Part(values, tuple(map(tuple, part["runs"])), tuple(part["shape"]))
        start = stop
    return found
