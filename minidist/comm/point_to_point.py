"""Messages between two ranks of a group, and the barrier, which consists of nothing else.

Names and argument order are those of ``torch.distributed``, with two differences: the group is always an argument, and
a rank is always counted within that group, as in MPI (torch calls these arguments ``group_src`` and ``group_dst``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import index

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup, check_group
from minidist.comm.transports.messages import AnyOf, Combine, Receive, Send
from minidist.comm.work import Work


def send(tensor: np.ndarray, dst: int, group: ProcessGroup, tag: int = 0) -> None:
    """Send an array to rank ``dst``; return when the array may change again.

    That may be before the receiver has it: a message that fits the queue is buffered, and a larger one waits for the
    receiver. MPI_Send has the same freedom, and a program that relies on the buffer deadlocks one day.
    """
    _isend(tensor, dst, group, tag, "send").wait()


def recv(tensor: np.ndarray, src: int, group: ProcessGroup, tag: int = 0) -> None:
    """Receive a message of the same dtype and number of elements from rank ``src`` into ``tensor``, in place."""
    _irecv(tensor, src, group, tag, "recv").wait()


def isend(tensor: np.ndarray, dst: int, group: ProcessGroup, tag: int = 0) -> Work:
    """Start a send. ``tensor`` must not change until the returned Work's ``wait`` returns."""
    return _isend(tensor, dst, group, tag, "isend")


def irecv(tensor: np.ndarray, src: int, group: ProcessGroup, tag: int = 0) -> Work:
    """Start a receive. ``tensor`` holds the message once the returned Work's ``wait`` returns."""
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
    """Start many sends and receives together, so that none waits for another. Wait for each returned Work.

    Rings and pipelines need this: if every rank sends before it receives, all of them may wait in their sends. On NCCL
    the batch becomes one group call (``ncclGroupStart``), and the ranks deadlock without it.

    Raises:
        TypeError: for an entry that is not a P2POp of ``isend`` or ``irecv``.
    """
    for entry in p2p_op_list:
        if not isinstance(entry, P2POp) or entry.op not in (isend, irecv):
            raise TypeError(f"batch_isend_irecv takes P2POp(isend or irecv, tensor, peer, group), but got {entry!r}")
    return [entry.op(entry.tensor, entry.peer, entry.group, entry.tag) for entry in p2p_op_list]


def sendrecv(outgoing, dst: int, incoming, src: int, group: ProcessGroup, combine: Combine | None = None) -> None:
    """Send one array and receive another at the same time (MPI_Sendrecv).

    With ``combine``, a ufunc such as ``np.add``, the message is combined into ``incoming`` instead of overwriting it.
    """
    receiving = _irecv(incoming, src, group, 0, "sendrecv", combine)
    _isend(outgoing, dst, group, 0, "sendrecv").wait()
    receiving.wait()


def recv_reduce(tensor: np.ndarray, src: int, group: ProcessGroup, combine: Combine, tag: int = 0) -> None:
    """Receive a message from rank ``src`` and combine it into ``tensor`` (NCCL's recvReduce primitive)."""
    _irecv(tensor, src, group, tag, "recv_reduce", combine).wait()


def wait_any(works: Sequence[Work]) -> int:
    """Block until one of several messages is done, and return its place in the list (MPI_Waitany).

    If several are done, the first of them counts: a caller that wants to be fair begins its list with the rank that was
    served longest ago. Call ``wait`` on the work that it names.

    Args:
        works: ``Work`` objects of ``isend`` and ``irecv``.

    Raises:
        TypeError: for the work of a collective. ValueError: for an empty list.
    """
    ends = [work for work in works if isinstance(work, Send | Receive)]
    if len(ends) < len(works):
        raise TypeError("wait_any takes what isend and irecv return")
    if not ends:
        raise ValueError("wait_any needs at least one work to wait for")
    transport = ends[0].transport
    transport.check_usable()
    transport.wait(AnyOf(ends))
    return next(place for place, end in enumerate(ends) if end.done)


def barrier(group: ProcessGroup, async_op: bool = False) -> Work | None:
    """Return once every rank of the group has called it.

    The dissemination algorithm (Hensgen, Finkel and Manber, 1988): in round k each rank sends an empty message to the
    rank 2^k places to its right. After ceil(log2 N) rounds, word of every rank has reached all others.
    """
    check_group(group, "barrier")
    return group.run_collective("barrier()", disseminate, async_op)


def disseminate(group: ProcessGroup) -> None:
    """Exchange the barrier's empty messages."""
    nothing, distance = np.empty(0, np.uint8), 1
    while distance < group.size:
        right, left = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        sendrecv(nothing, right, np.empty(0, np.uint8), left, group)
        distance *= 2


def check_array(array, argument: str, function: str, written: bool = False) -> None:
    """Refuse an array that could not be moved correctly; the error names the argument and the fix.

    Raises:
        TypeError: not an array, or a dtype that is not numeric, bool or in native byte order.
        ValueError: not C-contiguous, or read-only although it is ``written``.
    """
    kind = type(array)
    if kind is not np.ndarray and kind not in (np.memmap, backend.xp.ndarray):  # a subclass may change what + means
        inner = None if isinstance(array, np.ndarray) else getattr(array, "data", None)
        way = "pass its .data" if isinstance(inner, backend.xp.ndarray) else "wrap it in np.asarray()"
        raise TypeError(f"{function}: {argument} must be an array, got {kind.__name__}; {way}")
    dtype, flags = array.dtype, array.flags
    if dtype.kind not in "biufc" or not dtype.isnative:
        raise TypeError(
            f"{function}: {argument} must hold numbers or bools in native byte order, but its dtype is {dtype!r};"
            " convert it with .astype()"
        )
    if not flags.c_contiguous:
        raise ValueError(
            f"{function}: {argument} must be C-contiguous, but is a view with strides {array.strides}; "
            f"pass np.ascontiguousarray({argument})" + (" and copy the result back" if written else "")
        )
    if written and isinstance(array, np.ndarray) and not flags.writeable:
        raise ValueError(f"{function}: {argument} is written in place, but is read-only; pass a copy")


def overlap(a, b) -> bool:
    """Return whether two contiguous arrays on one device share memory."""
    start_a, start_b = backend.address(a), backend.address(b)
    return start_a < start_b + b.nbytes and start_b < start_a + a.nbytes


@cache
def dtype_name(dtype: np.dtype) -> str:
    """Return a dtype's name, such as "float32"."""
    return dtype.name  # NumPy computes it anew each time, which takes longer than a small message


def _isend(tensor, dst: int, group: ProcessGroup, tag: int, label: str) -> Work:
    peer, call, label = _check_message(tensor, dst, group, tag, label, written=False)
    flat = backend.to_host(tensor).ravel()  # a view of a contiguous array
    transport, nbytes, running = group.transport, flat.nbytes, group.running
    between_nodes = nbytes if transport.nodes[peer] != transport.nodes[transport.rank] else 0
    if running is None:  # the user's own message, not part of a collective
        kind = group.name, "send", dtype_name(flat.dtype), flat.size
        transport.collectives.count(kind, nbytes, between_nodes)
    else:
        running.nbytes += nbytes
        running.between_nodes += between_nodes
    message = transport.isend(flat, peer, group.context, tag, call, label)
    transport.unwaited.add(message)
    message.record("post")
    return message


def _irecv(tensor, src: int, group: ProcessGroup, tag: int, label: str, combine: Combine | None = None) -> Work:
    peer, call, label = _check_message(tensor, src, group, tag, label, written=True)
    on_host, host = backend.on_host(tensor), tensor
    if not on_host:
        host = backend.to_host(tensor) if combine else np.empty(tensor.shape, tensor.dtype)
    message = group.transport.irecv(host.ravel(), peer, group.context, tag, call, label, combine)
    if not on_host:
        message.finish = partial(backend.copy_from_host, tensor, host)
    return message


def _check_message(
    tensor, rank: int, group: ProcessGroup, tag: int, label: str, written: bool
) -> tuple[int, bytes, str]:
    """Check one end of a message; return the peer's world rank, what both ends must agree on, and this end's name."""
    check_group(group, label)
    check_array(tensor, "tensor", label, written)
    if not 0 <= index(rank) < group.size:
        raise ValueError(f"{label}: there is no rank {rank} in a group of {group.size} (0 to {group.size - 1})")
    if rank == group.rank:
        raise ValueError(
            f"{label}: rank {rank} of {group.size} cannot exchange a message with itself; copy the array instead"
        )
    if not 0 <= index(tag) < 1 << 31:
        raise ValueError(f"tag must be from 0 to 2^31 - 1, got {tag}")
    if group.running is not None:
        return group.ranks[rank], group.running.call, group.running.label
    return group.ranks[rank], b"a message of " + dtype_name(tensor.dtype).encode(), label
