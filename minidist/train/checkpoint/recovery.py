"""Going on from what the surviving ranks hold (peers.py), without a disk.

1. The parent asks every survivor what it holds, and takes the newest step of which all arrays are whole (``survey``).
2. A survivor that the new layout has no place for hands over what it holds (``hand_over``).
3. In the new layout each rank knows which runs of which arrays it needs. It asks their holders for them, and gets one
   message from each (``recover``). What it holds itself it takes from there.

A snapshot is a list of slices of full arrays, as a file of a checkpoint is, so the layout may be another. The slices
are planned by what reads files, ``read_part``, with another ``read``.
"""

import json
import pickle
from dataclasses import asdict

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import recv, send, sendrecv
from minidist.comm.runtime.launch import Cluster
from minidist.parallel.tools.messages import texts_of_all
from minidist.train.checkpoint.manifest import ArrayEntry, Manifest, Progress, Slice
from minidist.train.checkpoint.peers import Generation, Parts, generations_of, packed
from minidist.train.checkpoint.restore import missing_elements, read_part, restore, wanted
from minidist.train.share import Share

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
        step: of a generation that ``survey`` found whole. What is newer is forgotten.
        share: of the run as it begins; changed in place.

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
        dtypes: of the arrays, by name.
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
