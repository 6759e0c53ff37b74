"""The replay: steps that were taken are computed again, from a copy of the state before them, on other ranks.

Equal state and equal batches give equal bits on any rank. So ranks exchange their roles, each playing the part of its
neighbour, and every digest must come out as it did the first time. If one does not, one of two ranks was wrong. A third
computation, with roles shifted once more, says which.

Google expects silent corruption in its large runs "every week or two", and finds it by deterministic replay (Gemini
Team, 2023). Computing everything twice is what finds errors in arithmetic; a checksum finds them only in storage and on
the way. A run with replays takes twice the FLOPs.

A wrong rank shows in its own gradients, before they are summed. After that every rank is wrong. So among the parts that
differ, those that the step makes first count: own gradients, then the optimizer's moments, then weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup, temporary_groups
from minidist.parallel.tools.messages import sendrecv_object
from minidist.train.checkpoint.manifest import Progress
from minidist.train.resilience.vote import EXTRA, IN_A_STEP, MODEL, Key, Noted, Notes, odd_ones_out
from minidist.train.share import Share
from minidist.train.step import take_step


def to_the_right(arrays: list[np.ndarray], shift: int, world: ProcessGroup) -> list[np.ndarray]:
    """Send arrays to the rank ``shift`` places to the right, and return those from the rank as far to the left."""
    return sendrecv_object(arrays, (world.rank + shift) % world.size, (world.rank - shift) % world.size, world)


class Kept:
    """A copy of a rank's state, from which steps can be taken again. (It leaves out weights that can be derived.)"""

    def __init__(self, share: Share, notes: Notes) -> None:
        keys = [key for key in notes.parts.get if key.kind != MODEL]
        self.arrays = [notes.parts.on_host(key).copy() for key in keys]
        self.progress = Progress.of((), share.optimizer, share.scaler)  # the same on all ranks

    def give(self, share: Share, notes: Notes, shift: int, world: ProcessGroup) -> None:
        """Give the kept state of the rank ``shift`` places to the left to a share that plays that rank's role."""
        keys = [key for key in notes.parts.get if key.kind != MODEL]
        arrays = dict(zip(keys, to_the_right(self.arrays, shift, world), strict=True))
        for key, array in arrays.items():
            if key.kind != EXTRA:
                target = notes.parts.get[key]()
                backend.copy_from_host(target, array.reshape(target.shape))
        share.model.sync_params()
        share.gpt.load_extra_state({key.name: a.reshape(key.shape) for key, a in arrays.items() if key.kind == EXTRA})
        self.progress.put_into(share.optimizer, share.scaler)


def replay(usual: Share, shift: int, kept: Kept, steps: Sequence[int]) -> Notes:
    """Take steps again with roles shifted: this rank plays the role of the rank ``shift`` places to its left.

    Returns:
        The notes of this rank in that role; ``Notes.parts`` has the state at the end.
    """
    world = usual.world
    with temporary_groups(world), _nodes_of_roles(world, shift):
        players = world.new_group([(role + shift) % world.size for role in range(world.size)])
        assert players is not None  # every rank is in it
        share = Share.of(players, usual.config, usual.layout)
        notes = Notes(share, gradients=True)
        kept.give(share, notes, shift, world)
        notes.begin()
        for step in steps:
            notes.after_step(take_step(share, step))
    return notes


@contextmanager
def _nodes_of_roles(world: ProcessGroup, shift: int) -> Iterator[None]:
    """Context manager: put each rank on the node of the role that it plays, since float32 sums depend on the nodes."""
    nodes = world.transport.nodes
    world.transport.nodes = tuple(nodes[(rank - shift) % world.size] for rank in range(world.size))
    try:
        yield
    finally:
        world.transport.nodes = nodes


def first_difference(one: list[Noted], other: list[Noted]) -> int | None:
    """Return the first place in the notes at which two computations differ, in any role; None if they never do."""
    times = range(len(one[0]))
    return next((time for time in times if any(a[time] != b[time] for a, b in zip(one, other, strict=True))), None)


def wrong_computation(digests: Sequence[str], ranks: Sequence[int]) -> int | None:
    """Return which of three computations of one thing, each by one of ``ranks``, was wrong; None if none can be named.

    Two computations outvote the third only if two different ranks made them: a broken rank repeats its error.
    """
    odd = odd_ones_out(list(digests))
    if not odd or len({rank for place, rank in enumerate(ranks) if place not in odd}) < 2:
        return None
    return odd[0]


def judge(keys: list[list[Key]], computations: list[list[Noted]], time: int) -> tuple[int | None, dict[int, list[Key]]]:
    """Say which rank was wrong at the first difference, and what differs.

    Args:
        keys: each role's keys, in the order of its notes.
        computations: each computation's digests, by role. In computation c, rank (r + c) mod N played role r.
        time: the place in the notes at which they first differ.

    Returns:
        The rank, or None if none can be named; and for each role that differs, the keys that differ, only of the kinds
        that a step makes first.

    Raises:
        ValueError: if nothing differs there.
    """
    size = len(keys)
    for kinds in IN_A_STEP:
        different: dict[int, list[Key]] = {}
        accused = set()
        for role, mine in enumerate(keys):
            for place, key in enumerate(mine):
                digests = [noted[role][time][place] for noted in computations]
                if key.kind in kinds and len(set(digests)) > 1:
                    different.setdefault(role, []).append(key)
                    ranks = [(role + number) % size for number in range(len(digests))]
                    wrong = wrong_computation(digests, ranks) if size > 1 else 0
                    accused.add(None if wrong is None else ranks[wrong])
        if different:
            return accused.pop() if len(accused) == 1 else None, different
    raise ValueError("the computations do not differ there")
