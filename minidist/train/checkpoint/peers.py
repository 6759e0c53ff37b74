"""Copies in peers' memory: the state of a dead rank need not come from a disk if another rank has it too.

Every few steps each rank takes a snapshot, keeps it, and sends it to the next rank, which keeps it as well:

    rank        0       1       2
    own         s0      s1      s2
    of a peer   s2      s0      s1          rank 1 dies: s1 is on rank 2

A rank keeps its snapshots in ``world.kept``, which outlives the failure of another rank. Any one rank may die, or two
that are not neighbours. Two *generations* are kept, because a rank may die while the newer one is in flight.

Going on from what the survivors hold:

1. The parent asks every survivor what it holds, and takes the newest step of which all arrays are whole (``survey``).
2. A survivor that the new layout has no place for hands over what it holds (``hand_over``).
3. In the new layout each rank knows which runs of which arrays it needs. It asks their holders for them, and gets one
   message from each (``recover``). It takes what it holds itself from its own memory. Like a file of a checkpoint, a
   snapshot is a list of slices of full arrays, so ``read_part`` plans the requests, with another ``read``.

GEMINI (Wang et al., SOSP 2023) does this in the memory of a machine's CPU, with groups of ranks in place of a ring, and
sends while the network is idle; here training waits.
"""

import time
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.comm.runtime.launch import Cluster
from minidist.parallel.tools.messages import all_gather_object, sendrecv_object
from minidist.train.checkpoint.manifest import ArrayEntry, Manifest, Progress, joined
from minidist.train.checkpoint.restore import missing_elements, read_part, restore, wanted
from minidist.train.checkpoint.saver import Part, Snapshots, described
from minidist.train.hooks import StepHook
from minidist.train.share import Share

KEY = "generations"  # in world.kept
GENERATIONS = 2

Parts = dict[str, Part]


@dataclass(frozen=True)
class PeerCopies:
    """Options: how often a run takes snapshots into memory, and how many peers keep them.

    Raises:
        ValueError: for ``every`` or ``copies`` below 1.
    """

    every: int  # steps between two snapshots
    copies: int = 1  # peers that keep each snapshot, in addition to its own rank

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"--save-every must be at least 1 step, got {self.every}")
        if self.copies < 1:
            raise ValueError(f"--peer-copies must be 0 (none) or more, got {self.copies}")


@dataclass
class Generation:
    """The snapshots of one step that a rank holds."""

    progress: Progress  # of the run at the end of that step
    arrays: dict[str, ArrayEntry]  # by name, with a slice for each snapshot that has a part of it, held here or not
    held: dict[str, Parts]  # the snapshots held here, by the names of their owners: rank 1 of dp=3

    def joined(self, other: "Generation") -> "Generation":
        """Return both together. If their layouts differ, the later one began with the state that the other left."""
        return Generation(self.progress, joined([self.arrays, other.arrays]), self.held | other.held)

    def available(self) -> dict[str, ArrayEntry]:
        """Return the arrays, with only the slices that are held here."""
        return {
            name: replace(entry, slices=tuple(part for part in entry.slices if part.file in self.held))
            for name, entry in self.arrays.items()
        }


def generations_of(world: ProcessGroup) -> list[Generation]:
    """Return the list of generations that this rank holds, oldest first, to change in place."""
    return world.kept.setdefault(KEY, [])


def forget(world: ProcessGroup) -> None:
    """Drop the generations that an earlier run has left."""
    world.kept.pop(KEY, None)


class Peers(StepHook):
    """Hook that keeps snapshots of this rank and of its peers. All ranks call it together.

    Args:
        world: all ranks.
        asked: the options: how often, and how many copies.
        snapshots: ``Snapshots`` of this rank's share of the run.
        layout: the layout in words, for the names of the snapshots.

    Attributes:
        verified: number of steps after which the numbers were last checked; None if nothing checks them. The newest
            generation up to there is kept too.
    """

    def __init__(self, world: ProcessGroup, asked: PeerCopies, snapshots: Snapshots, layout: str) -> None:
        self.world, self.every, self.snapshots = world, asked.every, snapshots
        self.copies = min(asked.copies, world.size - 1)
        self.owners = [f"rank {rank} of {layout}" for rank in range(world.size)]
        self.arrays: dict[str, ArrayEntry] = {}  # with the slices of all ranks; the same every time
        self.pauses: list[float] = []  # seconds that each exchange kept this rank from training
        self.verified: int | None = None

    def begin_run(self, share: Share) -> None:
        if share.losses:
            self.take(self.snapshots.progress)  # at once: the survivors of a ring have lost some copies

    def end_step(self, step: int, loss: float, last: bool) -> None:
        """Take and exchange snapshots if they are due."""
        progress = self.snapshots.progress
        if progress.step % self.every == 0 and not last:
            self.take(progress)

    def end_run(self) -> dict:
        return {"copy_pauses": self.pauses}

    def take(self, progress: Progress) -> None:
        """Take a snapshot, exchange it with the peers, and drop generations that are no longer needed."""
        began, rank = time.perf_counter(), self.world.rank
        parts = self.snapshots.take()
        if not self.arrays:
            self.arrays = joined(all_gather_object(described(parts, self.owners[rank]), self.world))
        generations = generations_of(self.world)
        generations.append(Generation(progress, self.arrays, {self.owners[rank]: parts}))
        newest = generations[-GENERATIONS:]
        right = [held for held in generations if self.verified is not None and held.progress.step <= self.verified]
        if right and right[-1].progress.step < newest[0].progress.step:
            newest.insert(0, right[-1])
        generations[:] = newest
        for distance in range(1, self.copies + 1):
            to, source = (rank + distance) % self.world.size, (rank - distance) % self.world.size
            generations[-1].held[self.owners[source]] = sendrecv_object(parts, to, source, self.world)
        self.pauses.append(time.perf_counter() - began)


Request = tuple[str, str, int, int]  # snapshot, array, start, stop: elements of the snapshot's part of the array
NAMED = 3  # at most this many arrays are named in a message


def survey(cluster: Cluster, not_after: int | None, patience: float) -> tuple[int | None, str]:
    """Find the newest generation that the ranks of a cluster hold whole, of at most ``not_after`` steps unless None.

    Returns:
        Its number of steps, or None if there is none; and what is missing of newer ones, in words.
    """
    lost = []
    for generation in reversed(merged(cluster.run(holdings, patience=patience))):
        if not_after is None or generation.progress.step <= not_after:
            problem = losses_of(generation)
            if not problem:
                return generation.progress.step, "; ".join(lost)
            lost.append(problem)
    return None, "; ".join(lost)


def holdings(world: ProcessGroup) -> list[Generation]:
    """Return the generations that this rank holds, without the values."""
    return list(map(without_values, generations_of(world)))


def without_values(generation: Generation) -> Generation:
    return replace(generation, held={owner: {} for owner in generation.held})


def merged(ranks: Iterable[list[Generation]]) -> list[Generation]:
    """Return the generations that several ranks hold together, oldest first: one for each step."""
    together: dict[int, Generation] = {}
    for generation in chain.from_iterable(ranks):
        known = together.get(generation.progress.step)
        together[generation.progress.step] = generation if known is None else known.joined(generation)
    return [together[step] for step in sorted(together)]


def losses_of(generation: Generation) -> str:
    """Return a message about the elements that no rank holds; "" if all are there."""
    missing = {name: count for name, entry in generation.available().items() if (count := missing_elements(entry))}
    if not missing:
        return ""
    owners = {part.file for entry in generation.arrays.values() for part in entry.slices}
    gone = " and ".join(sorted(owners - generation.held.keys()))
    names = ", ".join(list(missing)[:NAMED]) + (f" and {len(missing) - NAMED} more" if len(missing) > NAMED else "")
    return (
        f"no rank holds the snapshots after {generation.progress.step} steps of {gone}: "
        f"{sum(missing.values()):,} elements of {names} are lost"
    )


def hand_over(world: ProcessGroup, staying: int) -> None:
    """Pass the generations of ranks ``staying`` and above to the ranks below."""
    generations = generations_of(world)
    for leaving in range(staying, world.size):
        heir = leaving % staying
        if world.rank == leaving:
            sendrecv_object(generations, heir, heir, world)
        elif world.rank == heir:
            generations[:] = merged([generations, sendrecv_object(None, leaving, leaving, world)])


def recover(world: ProcessGroup, step: int, share: Share) -> Progress:
    """Put the snapshots of a step into this rank's share of a run, and return the run's progress.

    All ranks call it together; some may hold nothing. ``survey`` found that step whole; newer ones are forgotten.
    """
    generations = generations_of(world)
    generations[:] = [generation for generation in generations if generation.progress.step <= step]
    here = [generation for generation in generations if generation.progress.step == step]
    everyone = all_gather_object([without_values(generation) for generation in here], world)
    owners = [{owner for generation in rank for owner in generation.held} for rank in everyone]
    (whole,) = merged(everyone)
    manifest = Manifest("", {}, "", {}, whole.progress, arrays=whole.available())
    mine = dict(ChainMap(*(generation.held for generation in here)))
    holders = {owner: holder_of(owner, owners, world.rank) for owner in whole.held}
    found = fetch(world, mine, [(request, holders[request[0]]) for request in requests_of(manifest, share)])
    return restore(manifest, lambda *request: found[request], share)


def holder_of(owner: str, held: list[set[str]], rank: int) -> int:
    """Return the rank from which ``rank`` takes a snapshot: itself, or one that has it."""
    holders = [holder for holder, owners in enumerate(held) if owner in owners]
    return rank if rank in holders else holders[rank % len(holders)]


def requests_of(manifest: Manifest, share: Share) -> list[Request]:
    """Return what ``restore`` will read on this rank, in order."""
    requests: list[Request] = []

    def note(owner: str, name: str, start: int, stop: int) -> np.ndarray:
        requests.append((owner, name, start, stop))
        return np.zeros(stop - start, manifest.arrays[name].dtype)

    for name, runs, _ in wanted(share):
        read_part(manifest.arrays[name], name, runs, note)
    return requests


def fetch(
    world: ProcessGroup, mine: dict[str, Parts], requests: list[tuple[Request, int]]
) -> dict[Request, np.ndarray]:
    """Fetch what this rank requests, each from the rank paired with it, and send the others what they request."""
    asked = [[request for request, holder in requests if holder == rank] for rank in range(world.size)]
    everyone, found = all_gather_object(asked, world), {}
    for distance in range(world.size):
        to, source = (world.rank + distance) % world.size, (world.rank - distance) % world.size
        outgoing = [mine[owner][name].values[start:stop] for owner, name, start, stop in everyone[to][world.rank]]
        found |= zip(asked[source], sendrecv_object(outgoing, to, source, world), strict=True)
    return found
