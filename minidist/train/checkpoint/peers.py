"""Copies in peers' memory: what a dead rank held need not come from a disk if another rank has it too.

Every few steps each rank takes a snapshot, keeps it, and sends it to the next rank, which keeps it as well:

    rank        0       1       2
    own         s0      s1      s2
    of a peer   s2      s0      s1          rank 1 dies: s1 is on rank 2

All that a rank keeps is in ``world.kept``, which outlives the failure of another rank. Any one rank may die, and two
that are no neighbours. Two *generations* are kept, because a rank may die while the newer one is in flight.

Going on from what the survivors hold:

1. The parent asks every survivor what it holds, and takes the newest step of which all arrays are whole (``survey``).
2. A survivor that the new layout has no place for hands over what it holds (``hand_over``).
3. In the new layout each rank knows which runs of which arrays it needs. It asks their holders for them, and gets one
   message from each (``recover``). What it holds itself it takes from there. A snapshot is a list of slices of full
   arrays, as a file of a checkpoint is, so ``read_part`` plans them, with another ``read``.

GEMINI (Wang et al., SOSP 2023) does this in the memory of a machine's CPU, with groups of ranks in place of a ring, and
sends while the network has nothing else to do; here training waits.
"""

import json
import pickle
import time
from dataclasses import asdict, dataclass, field

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import recv, send, sendrecv
from minidist.comm.runtime.launch import Cluster
from minidist.parallel.tools.messages import texts_of_all
from minidist.train.checkpoint.manifest import ArrayEntry, Manifest, Progress, Slice
from minidist.train.checkpoint.restore import missing_elements, read_part, restore, wanted
from minidist.train.checkpoint.saver import Part, Snapshots
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
        progress: progress of the run at the end of that step.
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
        snapshots: ``Snapshots`` of this rank's share of the run.
        layout: the layout in words, for the names of the snapshots.

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


Request = tuple[str, str, int, int]  # snapshot, array, start, stop: those elements of the part that it has of the array
NAMED = 3  # arrays in a message


def survey(cluster: Cluster, not_after: int | None, patience: float | None = None) -> tuple[int | None, str]:
    """What the ranks of a cluster hold together.

    Args:
        not_after: steps after which the numbers are not to be relied on; None for none.
        patience: as for ``Cluster.run``.

    Returns:
        The number of steps of the newest generation that is whole, or None; and which newer ones are not, in words.
    """
    together: dict[int, Generation] = {}  # the held parts without their values
    for rank in cluster.run(holdings, patience=patience):
        for generation in rank:
            known = together.setdefault(generation.progress.step, generation)
            known.held |= generation.held
            known.owners = list(dict.fromkeys([*known.owners, *generation.owners]))
    lost = []
    for step in sorted(together, reverse=True):
        if not_after is not None and step > not_after:
            continue
        problem = losses_of(together[step])
        if not problem:
            return step, "; ".join(lost)
        lost.append(problem)
    return None, "; ".join(lost)


def holdings(world: ProcessGroup) -> list[Generation]:
    """What this rank holds, without the values."""
    return [
        Generation(generation.progress, generation.owners, generation.arrays, {
            owner: {name: part.described() for name, part in parts.items()} for owner, parts in generation.held.items()
        })
        for generation in generations_of(world)
    ]  # fmt: skip


def losses_of(generation: Generation) -> str:
    """Which elements nobody holds, in words; "" if all are there. Its parts are as ``holdings`` describes them."""
    missing = {}
    for name, (shape, dtype) in generation.arrays.items():
        slices = [Slice(owner, parts[name]["runs"]) for owner, parts in generation.held.items() if name in parts]
        if count := missing_elements(ArrayEntry(shape, dtype, tuple(slices))):
            missing[name] = count
    if not missing:
        return ""
    owners = [owner for owner in generation.owners if owner not in generation.held]
    names = ", ".join(list(missing)[:NAMED]) + (f" and {len(missing) - NAMED} more" if len(missing) > NAMED else "")
    return (
        f"of the snapshots after {generation.progress.step} steps nobody has those of {' and '.join(owners)}: "
        f"{sum(missing.values()):,} elements of {names} are lost"
    )


def hand_over(world: ProcessGroup, staying: int) -> None:
    """Pass what ranks ``staying`` and above hold to those below."""
    for rank in range(staying, world.size):
        if world.rank == rank:
            content = np.frombuffer(pickle.dumps(generations_of(world)), np.uint8)
            send(np.array([len(content)]), rank % staying, world)
            send(content, rank % staying, world)
        elif world.rank == rank % staying:
            length = np.empty(1, np.int64)
            recv(length, rank, world)
            content = np.empty(length[0], np.uint8)
            recv(content, rank, world)
            for generation in pickle.loads(content.tobytes()):
                add(generation, generations_of(world))


def add(generation: Generation, generations: list[Generation]) -> None:
    """Put another rank's generation to those that are here."""
    for here in generations:
        if here.progress.step == generation.progress.step:  # of two layouts the later began with what the other left
            here.held |= generation.held
            here.owners = list(dict.fromkeys([*here.owners, *generation.owners]))
            return
    generations.append(generation)
    generations.sort(key=lambda generation: generation.progress.step)


def recover(world: ProcessGroup, step: int, share: Share) -> Progress:
    """Put the snapshots of a step that the ranks hold into this rank's share of a run. All ranks call it together.

    Args:
        world: all ranks, of which some may hold nothing.
        step: step of a generation that ``survey`` found whole; newer generations are forgotten.
        share: this rank's share of a run that begins; changed in place.

    Returns:
        How far the run is.
    """
    generations = generations_of(world)
    generations[:] = [generation for generation in generations if generation.progress.step <= step]
    here = [generation for generation in generations if generation.progress.step == step]
    mine: dict[str, Parts] = {owner: parts for generation in here for owner, parts in generation.held.items()}
    text = {
        "progress": asdict(here[0].progress) if here else None,
        "held": {owner: {name: part.described() for name, part in parts.items()} for owner, parts in mine.items()},
    }
    everyone = [json.loads(text) for text in texts_of_all(json.dumps(text), world)]
    known = next(rank["progress"] for rank in everyone if rank["progress"])
    progress = Progress(**known | {"losses": tuple(known["losses"])})
    manifest = Manifest("", {}, "", {}, progress, arrays=entries_of([rank["held"] for rank in everyone]))
    requests = requests_of(manifest, share)
    holders = holders_of([rank["held"] for rank in everyone], world.rank)
    dtypes = {name: np.dtype(entry.dtype) for name, entry in manifest.arrays.items()}
    found = fetch(world, mine, [(request, holders[request[0]]) for request in requests], dtypes)
    return restore(manifest, lambda *request: found[request], share)


def entries_of(held: list[dict]) -> dict[str, ArrayEntry]:
    """The full arrays, and the snapshots that have slices of them: each slice once."""
    entries: dict[str, ArrayEntry] = {}
    for owner, parts in {owner: parts for rank in held for owner, parts in rank.items()}.items():
        for name, part in parts.items():
            entry = entries.setdefault(name, ArrayEntry(tuple(part["shape"]), part["dtype"], ()))
            new = ArrayEntry(entry.shape, entry.dtype, (*entry.slices, Slice(owner, part["runs"])))
            if missing_elements(new) < missing_elements(entry):  # two layouts may have left the same
                entries[name] = new
    return entries


def holders_of(held: list[dict], rank: int) -> dict[str, int]:
    """Return the rank from which this rank takes each snapshot: itself, or one that has it."""
    found: dict[str, int] = {}
    for owner in {owner: None for parts in held for owner in parts}:
        holders = [holder for holder, parts in enumerate(held) if owner in parts]
        found[owner] = rank if rank in holders else holders[rank % len(holders)]
    return found


def requests_of(manifest: Manifest, share: Share) -> list[Request]:
    """What ``restore`` will read on this rank, in order."""
    requests: list[Request] = []

    def note(owner: str, name: str, start: int, stop: int) -> np.ndarray:
        requests.append((owner, name, start, stop))
        return np.zeros(stop - start, manifest.arrays[name].dtype)

    for name, runs, _ in wanted(share):
        read_part(manifest.arrays[name], name, runs, note)
    return requests


def fetch(
    world: ProcessGroup, mine: dict[str, Parts], requests: list[tuple[Request, int]], dtypes: dict[str, np.dtype]
) -> dict[Request, np.ndarray]:
    """Get what this rank asks for, and send the others what they ask this rank for.

    Args:
        mine: the snapshots that this rank holds.
        requests: and for each the rank that holds it.
        dtypes: array name -> dtype.
    """
    asked = [[request for request, holder in requests if holder == rank] for rank in range(world.size)]
    everyone = [json.loads(text) for text in texts_of_all(json.dumps(asked), world)]

    def values(owner: str, name: str, start: int, stop: int) -> np.ndarray:
        return mine[owner][name].values[start:stop]

    found = {request: values(*request) for request in asked[world.rank]}
    for distance in range(1, world.size):
        to, source = (world.rank + distance) % world.size, (world.rank - distance) % world.size
        outgoing = packed([values(*request) for request in everyone[to][world.rank]])
        sizes = [(stop - start) * dtypes[name].itemsize for _, name, start, stop in asked[source]]
        incoming = np.empty(sum(sizes), np.uint8)
        sendrecv(outgoing, to, incoming, source, world)
        pieces = np.split(incoming, np.cumsum(sizes)[:-1])
        found |= {
            request: piece.view(dtypes[request[1]]) for request, piece in zip(asked[source], pieces, strict=False)
        }
    return found
