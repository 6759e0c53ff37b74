"""Process groups: some ranks of a run, which communicate without disturbing any other group.

A group is always an argument: there is no hidden default as in ``torch.distributed``. MPI calls it a communicator.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from minidist import trace
from minidist.comm.background import Background, BackgroundWork
from minidist.comm.transports.messages import shorten
from minidist.comm.transports.transport import Transport
from minidist.comm.work import Done, Work


@dataclass(slots=True)
class Running:
    """A collective in progress: the label by which its messages differ from others, and what this rank has sent."""

    label: str  # in words
    call: bytes  # the label, shortened to fit a message's header
    nbytes: int = 0  # of payload, sent by this rank
    between_nodes: int = 0  # the part of nbytes that went to ranks of other nodes


class ProcessGroup:
    """Some ranks of a run, in an order of their own. A rank function receives the world, the group of all ranks.

    Attributes:
        rank: this process's rank in the group, 0 to size - 1.
        size: the number of ranks in the group.
        ranks: the world rank of each member, in the group's order.
        context: the group's message space: a receive only takes messages of its own context (MPI's word).
        name: "world", a mesh dimension such as "dp", or "group": ``collectives`` counts this group's calls under it.
        report: only in the world: ``world.report(thing)`` sends anything to the parent process at once, which passes
            it to the ``on_report`` of ``Cluster.run``.
        kept: only in the world: a dict that belongs to the process and outlives the run. The next run, in another
            world, finds what this one puts there, even after a failure that this rank survived.
    """

    def __init__(self, transport: Transport, ranks: tuple[int, ...], context: int) -> None:
        self.transport, self.ranks, self.context = transport, ranks, context
        self.size = len(ranks)
        self.rank = ranks.index(transport.rank)
        self.running: Running | None = None  # the collective whose messages this group carries; None in a user's group
        self.report: Callable[[object], None]
        self.kept: dict = {}
        self.name = "world" if self.size == transport.size else "group"
        self._inside: ProcessGroup | None = None  # the group on which the algorithms of collectives run
        self._created: dict[tuple[int, ...], int] = {}
        self._calls = 0  # collectives called so far
        self._background: Background | None = None
        self._done: list[Done] = []  # in a group of one rank: works that nobody has waited for yet
        self.communicator: Any = None  # NCCL's, if it carries collectives of this group: see nccl/stream.py

    def __repr__(self) -> str:
        return f"ProcessGroup(rank={self.rank}, size={self.size}, ranks={list(self.ranks)})"

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of each rank of the group, in the group's order: see placement.py."""
        return tuple(self.transport.nodes[rank] for rank in self.ranks)

    @property
    def local_rank(self) -> int:
        """This rank's place among the group's ranks on its node: the GPU that it uses there."""
        return self.nodes[: self.rank].count(self.nodes[self.rank])

    @property
    def traffic(self) -> trace.Traffic:
        """A copy of this rank's traffic since the run began, over all groups. Its rows are world ranks."""
        nodes = np.array(self.transport.nodes)
        return self.transport.traffic.snapshot(nodes != nodes[self.transport.rank])

    @property
    def collectives(self) -> trace.Collectives:
        """A copy of this rank's counts since the run began: calls and bytes of its collectives and other sends."""
        return self.transport.collectives.snapshot()

    def new_group(self, ranks: Sequence[int]) -> "ProcessGroup | None":
        """Return a new group of some of this group's ranks; None on a rank that is not a member.

        It sends no message, so (unlike in torch) ranks outside the new group need not call it. Ranks that create
        several groups with the same members must create them in the same order.

        Raises:
            ValueError: for a rank that is not in this group, a rank given twice, or no rank at all.
        """
        ranks = tuple(index(rank) for rank in ranks)
        if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks):
            raise ValueError(
                f"new_group takes at least one rank, all different and from 0 to {self.size - 1}, but got {list(ranks)}"
            )
        again = self._created[ranks] = self._created.get(ranks, -1) + 1
        if self.rank not in ranks:
            return None
        members = tuple(self.ranks[rank] for rank in ranks)
        context = zlib.crc32(repr((self.context, members, again)).encode()) << 1  # the same number on every member
        group = ProcessGroup(self.transport, members, context)
        self.transport.groups.append(group)
        return group

    def duplicate(self) -> "ProcessGroup":
        """Return a group of the same ranks and name, with its own messages and background thread (MPI_Comm_dup)."""
        group = self.new_group(range(self.size))
        assert group is not None
        group.name = self.name
        return group

    def part(self, ranks: Iterable[int]) -> "ProcessGroup":
        """Return some of this group's ranks, this one among them, as a group for a phase of an algorithm.

        It costs little, because it uses the message space of the whole group: the ranks must order their messages as if
        the whole group sent them. What its ranks send counts as the whole group's.
        """
        part = ProcessGroup(self.transport, tuple(self.ranks[r] for r in ranks), self.context)
        part.running = self.running
        return part

    def run_collective(
        self, description: str, body: Callable, async_op=False, nbytes=0, kind: tuple[str, str, int] | None = None
    ) -> Work | None:
        """Run ``body(inside)``, a collective's sends and receives.

        ``inside`` is a second group of the same ranks with a context of its own, so no receive of the user takes a
        message of a collective. Each message carries the description and the number of the call, so ranks that call
        different collectives notice. A synchronous call waits its turn after asynchronous ones in flight. A group of
        one rank runs the body at once: it has nobody to wait for, and nothing to trace or count.

        Args:
            description: the call in words, the same on every rank.
            async_op: return a Work at once and run the body in the background.
            nbytes: size of the buffer, for the trace.
            kind: name, dtype and elements under which ``collectives`` counts the call; None to count nothing.
        """
        if self.size == 1:
            self.finish_background()
            body(self)
            return Done(description, self._done) if async_op else None
        self._calls += 1
        where = "the world" if self.size == self.transport.size else f"group {list(self.ranks)}"
        label = f"{description}, collective {self._calls} of {where}"
        call_id = f"{self.context:x}.{self._calls}"  # the same on every rank, and in no other group
        # one serves all collectives, since they run one after another
        inside = self._inside = self._inside or ProcessGroup(self.transport, self.ranks, self.context | 1)

        def program() -> None:
            running = inside.running = Running(label, shorten(label))
            with trace.span(description, "communication", bytes=nbytes, call=call_id):
                body(inside)
            if kind is not None:
                self.transport.collectives.count((self.name, *kind), running.nbytes, running.between_nodes)

        if async_op or (self._background is not None and self._background.busy):
            work = self.run_in_background(label, program)
            if async_op:
                return work
            work.wait()
        else:
            program()
        return None

    def run_in_background(self, label: str, body: Callable[[], None]) -> Work:
        """Run ``body()`` in the background, after what this group has in flight there.

        It may be a program of several collectives with computation between them, if these belong to other groups: a
        collective of this group would wait its turn after the program. Such a program uses a second group of the same
        ranks. ``label`` is the program in words, for errors and ``unwaited``.
        """
        if self._background is None:
            self._background = Background(self.transport)
        work = BackgroundWork(self._background, label, body)
        self._background.submit(work)
        return work

    def finish_background(self) -> None:
        """Complete what this group has in flight in the background."""
        if self._background is not None and self._background.busy:
            self._background.finish()

    @property
    def unwaited(self) -> list[str]:
        """The asynchronous collectives, in words, that this rank does not yet know to be done."""
        in_background = [] if self._background is None else self._background.unwaited
        return [work.label for work in (*in_background, *self._done)]

    def close(self) -> None:
        """End the background thread and NCCL's communicator once their collectives are complete."""
        if self._background is not None:
            self._background.close()
        if self.communicator is not None:
            self.transport.gpus.synchronize()
            self.communicator.close()

    def abandon(self, seconds: float) -> bool:
        """End the background thread of a run that was cut off; return whether it ends within ``seconds``."""
        if self.communicator is not None:
            self.communicator.abort()
        return self._background is None or self._background.abandon(seconds)


@contextmanager
def temporary_groups(group: ProcessGroup) -> Iterator[None]:
    """Close the groups that the ``with`` block makes, and their threads, when it ends."""
    groups = group.transport.groups
    earlier = len(groups)
    yield
    while len(groups) > earlier:
        groups.pop().close()


def end_run(world: ProcessGroup) -> bool:
    """Complete what all groups of the run have in flight; return whether messages arrived that nobody received."""
    transport = world.transport
    for group in transport.groups:
        group.close()
    transport.finish()
    return any(transport.unexpected.values()) or any(transport.arriving.values())


def check_group(group, function: str) -> None:
    """Raise TypeError if ``group`` is not a group, RuntimeError if this thread or run may not use it."""
    if not isinstance(group, ProcessGroup):
        hint = "None" if group is None else f"a {type(group).__name__}"
        raise TypeError(
            f"{function} needs group=, but got {hint}: pass the world that your rank function received, or a group "
            "made from it with new_group (which is None on a rank that is not a member)"
        )
    group.transport.check_usable()


def check_world(world, function: str) -> None:
    """Raise ValueError for a group that has fewer ranks than the world, and what ``check_group`` raises."""
    check_group(world, function)
    if world.size != world.transport.size:
        raise ValueError(
            f"{function} needs all {world.transport.size} ranks, but got a group of {world.size}: pass the world"
        )
