"""Process groups, and messages between the ranks of a group.

Names and argument order are those of ``torch.distributed``, with two differences on purpose: the group is always
given (there is no hidden default), and a rank is always counted within that group (torch calls these arguments
``group_src`` and ``group_dst``; MPI counts as we do).
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import index

import numpy as np

from minidist import backend, trace
from minidist.comm.transports.messages import CALL_BYTES, Combine
from minidist.comm.transports.transport import Transport
from minidist.comm.work import Background, BackgroundWork, MessageWork, Work


class ProcessGroup:
    """Some ranks of a run, in an order of their own. A rank function receives the group of all: the world.

    Attributes:
        rank: this process's place in the group, 0 to size - 1.
        size: the number of ranks in the group.
        ranks: for each place, the rank in the world.
        axis: what its calls count as in ``collectives``: the mesh's dimension that it is a line of, if it is one.
        report: of the world alone: ``world.report(thing)`` hands anything to the parent process at once, where it
            reaches the ``on_report`` of ``Cluster.run``.
    """

    def __init__(
        self, transport: Transport, ranks: tuple[int, ...], context: int, collective: str | None = None
    ) -> None:
        self.transport, self.ranks, self.context = transport, ranks, context
        self.size = len(ranks)
        self.rank = ranks.index(transport.rank)
        self.call = None if collective is None else shorten(collective)
        self.collective = collective  # the call that this group is the inside of, in words; None for a group of a user
        self.report: Callable[[object], None] | None = None
        self.axis = "world" if self.size == transport.size else "group"
        self.bytes_sent = 0  # within a collective, by this rank
        self._created: dict[tuple[int, ...], int] = {}
        self._collectives = 0
        self._background: Background | None = None

    def __repr__(self) -> str:
        return f"ProcessGroup(rank={self.rank}, size={self.size}, ranks={list(self.ranks)})"

    @property
    def traffic(self) -> trace.Traffic:
        """A copy of this rank's counters since the run began, over all groups; its rows are ranks of the world."""
        return self.transport.traffic.snapshot()

    @property
    def collectives(self) -> trace.Collectives:
        """A copy of this rank's counts of collectives, and of sends, since the run began, over all groups."""
        return self.transport.collectives.snapshot()

    def new_group(self, ranks: list[int]) -> "ProcessGroup | None":
        """The group of some of this group's ranks; None on a rank that is not among them.

        No message is sent, so (unlike in torch) ranks outside the new group need not call it. Ranks that make several
        groups of the same members must make them in the same order.
        """
        ranks = tuple(index(rank) for rank in ranks)
        if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks):
            raise ValueError(
                f"new_group takes different ranks from 0 to {self.size - 1}, at least one, but got {list(ranks)}"
            )
        again = self._created[ranks] = self._created.get(ranks, -1) + 1
        if self.rank not in ranks:
            return None
        members = tuple(self.ranks[rank] for rank in ranks)
        context = zlib.crc32(repr((self.context, members, again)).encode()) << 1  # the same number on every member
        group = ProcessGroup(self.transport, members, context)
        self.transport.groups.append(group)
        return group

    def run_collective(
        self, description: str, nbytes: int, async_op: bool, body: Callable, kind: tuple[str, str, int] | None = None
    ) -> Work | None:
        """Run ``body(inside)``, where ``inside`` is this group in a space of messages of its own.

        ``kind`` is what to count it as, if at all: the collective's name, its dtype and its elements.

        Every message carries the description and the number of the call, so ranks that call different things find
        out. A synchronous call that finds asynchronous ones under way goes behind them.
        """
        self._collectives += 1
        where = "the world" if self.size == self.transport.size else f"group {list(self.ranks)}"
        label = f"{description}, collective {self._collectives} of {where}"
        inside = ProcessGroup(self.transport, self.ranks, self.context | 1, label)

        def traced() -> None:
            if self.size == 1:  # nobody to communicate with
                return body(inside)
            with trace.span(description, "communication", bytes=nbytes):
                body(inside)
            if kind is not None:
                self.transport.collectives.count(trace.Collective(self.axis, *kind), inside.bytes_sent)

        if not async_op and (self._background is None or not self._background.busy):
            traced()
            return None
        if self._background is None:
            self._background = Background(self.transport)
        work = BackgroundWork(self.transport, label, traced)
        self._background.submit(work)
        if async_op:
            return work
        work.wait()
        return None

    def close(self) -> None:
        """End the background thread, when all that it was given is done."""
        if self._background is not None:
            self._background.close()


def send(tensor: np.ndarray, dst: int, group: ProcessGroup, tag: int = 0) -> None:
    """Send an array to rank ``dst`` and return when it may be changed again.

    That may be before the receiver has it: a message that fits the queue is buffered, a larger one waits until the
    receiver takes it. MPI's MPI_Send has the same latitude, and programs that rely on the buffer deadlock one day.
    """
    _isend(tensor, dst, group, tag, "send").wait()


def recv(tensor: np.ndarray, src: int, group: ProcessGroup, tag: int = 0) -> None:
    """Receive into ``tensor`` (in place) a message of the same dtype and number of elements from rank ``src``."""
    _irecv(tensor, src, group, tag, "recv").wait()


def isend(tensor: np.ndarray, dst: int, group: ProcessGroup, tag: int = 0) -> Work:
    """Begin to send; ``tensor`` must not change before the returned Work's ``wait``."""
    return _isend(tensor, dst, group, tag, "isend")


def irecv(tensor: np.ndarray, src: int, group: ProcessGroup, tag: int = 0) -> Work:
    """Begin to receive; ``tensor`` holds the message after the returned Work's ``wait``."""
    return _irecv(tensor, src, group, tag, "irecv")


@dataclass(frozen=True)
class P2POp:
    """One message of a batch: ``op`` is ``isend`` or ``irecv``, ``peer`` the other rank."""

    op: Callable
    tensor: np.ndarray
    peer: int
    group: ProcessGroup
    tag: int = 0


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Begin many sends and receives together, so that none waits for another; wait for each of the returned Works.

    This is what rings and pipelines use: with a lone send before a receive, every rank may wait in its send. On NCCL
    the batch becomes one group call, and without it the ranks deadlock.
    """
    for entry in p2p_op_list:
        if not isinstance(entry, P2POp) or entry.op not in (isend, irecv):
            raise TypeError(f"batch_isend_irecv takes P2POp(isend or irecv, tensor, peer, group), but got {entry!r}")
    return [entry.op(entry.tensor, entry.peer, entry.group, entry.tag) for entry in p2p_op_list]


def sendrecv(outgoing, dst: int, incoming, src: int, group: ProcessGroup, combine: Combine | None = None) -> None:
    """Send one array and receive another at the same time (MPI_Sendrecv).

    With ``combine``, a ufunc such as ``np.add``, what arrives is combined into ``incoming`` rather than stored there.
    """
    receiving = _irecv(incoming, src, group, 0, "sendrecv", combine)
    _isend(outgoing, dst, group, 0, "sendrecv").wait()
    receiving.wait()


def recv_reduce(tensor: np.ndarray, src: int, group: ProcessGroup, combine: Combine) -> None:
    """Receive from rank ``src`` and combine into ``tensor`` (NCCL's recvReduce primitive)."""
    _irecv(tensor, src, group, 0, "recv_reduce", combine).wait()


def barrier(group: ProcessGroup, async_op: bool = False) -> Work | None:
    """Return when every rank of the group has called it.

    The dissemination algorithm (Hensgen, Finkel and Manber, 1988): in round k a rank tells the one 2^k places to the
    right; after ceil(log2 N) rounds the news of every rank has reached all others. Each rank sends that many empty
    messages.
    """

    def disseminate(inside: ProcessGroup) -> None:
        nothing, distance = np.empty(0, np.uint8), 1
        while distance < inside.size:
            right, left = (inside.rank + distance) % inside.size, (inside.rank - distance) % inside.size
            sendrecv(nothing, right, np.empty(0, np.uint8), left, inside)
            distance *= 2

    check_group(group, "barrier")
    return group.run_collective("barrier()", 0, async_op, disseminate)


def _isend(tensor, dst: int, group: ProcessGroup, tag: int, label: str) -> Work:
    check_group(group, label)
    check_array(tensor, "tensor", label)
    peer = _peer(dst, group, label)
    flat = backend.to_host(tensor).reshape(-1)
    call, label = _names(flat, group, label)
    group.bytes_sent += flat.nbytes
    if group.collective is None:  # a message of its own, not part of a collective
        group.transport.collectives.count(
            trace.Collective(group.axis, "send", dtype_name(flat.dtype), flat.size), flat.nbytes
        )
    return MessageWork(group.transport, group.transport.isend(flat, peer, group.context, _tag(tag), call, label))


def _irecv(tensor, src: int, group: ProcessGroup, tag: int, label: str, combine: Combine | None = None) -> Work:
    check_group(group, label)
    check_array(tensor, "tensor", label, written=True)
    peer = _peer(src, group, label)
    host = backend.to_host(tensor)
    flat = host.reshape(-1)
    call, label = _names(flat, group, label)
    receive = group.transport.irecv(flat, peer, group.context, _tag(tag), call, label, combine)
    finish = None if host is tensor else lambda: backend.copy_from_host(tensor, host)
    return MessageWork(group.transport, receive, finish)


def _names(flat: np.ndarray, group: ProcessGroup, label: str) -> tuple[bytes, str]:
    """What the two ends of a message must agree on, and what to call this end's part in an error."""
    if group.collective is not None:
        return group.call, group.collective
    return b"a message of " + dtype_name(flat.dtype).encode(), label


@cache
def dtype_name(dtype: np.dtype) -> str:
    return dtype.name  # NumPy works it out anew each time, for longer than a small message takes


def _tag(tag: int) -> int:
    if not 0 <= index(tag) < 1 << 31:
        raise ValueError(f"a tag must be from 0 to 2^31 - 1, but is {tag}")
    return tag


def _peer(rank: int, group: ProcessGroup, function: str) -> int:
    if not 0 <= index(rank) < group.size:
        raise ValueError(f"{function}: there is no rank {rank} in a group of {group.size} (0 to {group.size - 1})")
    if rank == group.rank:
        raise ValueError(f"{function}: rank {rank} cannot exchange a message with itself; copy the array instead")
    return group.ranks[rank]


def shorten(call: str) -> bytes:
    """A description that fits a message's header; of a longer one the beginning, and a checksum of the whole."""
    encoded = call.encode()
    if len(encoded) <= CALL_BYTES:
        return encoded
    return encoded[: CALL_BYTES - 9] + b" %08x" % zlib.crc32(encoded)


def check_group(group, function: str) -> None:
    if not isinstance(group, ProcessGroup):
        hint = "None" if group is None else f"a {type(group).__name__}"
        raise TypeError(
            f"{function} needs group=, but got {hint}: pass the world that your rank function received, or a group "
            "made from it with new_group (which is None on a rank that is not a member)"
        )
    group.transport.check_usable()


def check_array(array, argument: str, function: str, written: bool = False) -> None:
    """Refuse what could not be moved correctly, naming the argument and the mend."""
    if type(array) not in (np.ndarray, np.memmap, backend.xp.ndarray):  # a subclass may give operations another meaning
        kind = type(array).__name__
        raise TypeError(f"{function}: {argument} must be an array, but is {kind}; wrap it in np.asarray()")
    if array.dtype.kind not in "biufc" or not array.dtype.isnative:
        raise TypeError(
            f"{function}: {argument} must hold numbers or bools in native byte order, but its dtype is {array.dtype!r};"
            " convert it with .astype()"
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{function}: {argument} must be C-contiguous, but is a view with strides {array.strides}; "
            f"pass np.ascontiguousarray({argument})" + (" and copy the result back" if written else "")
        )
    if written and isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError(f"{function}: {argument} is written in place, but is read-only; pass a copy")
