"""The communicator of one group, and each collective as calls of NCCL (``cupy.cuda.nccl``, docs.nvidia.com/nccl).

NCCL takes addresses, so the arrays here are flat and contiguous, on this process's GPU. Nothing is called for arrays
without elements. Reductions pass the array's dtype to NCCL. Everything else moves as bytes, so it takes any dtype.

Where ``input`` and ``output`` share memory, NCCL takes them if ``output`` of a rank is exactly its part of ``input``,
or the other way around ("In-place operations" in its user guide). Other overlaps are undefined there, so such an
``input`` is copied first.

Traffic. NCCL does not report how many bytes it has moved, and chooses by itself between rings, trees and sums in the
switch. Its collectives are counted as its ring, which is that of algorithms.py: 2 (N-1)/N M for an all-reduce,
(N-1)/N M for each of its halves, all to the right neighbour (nccl-tests counts the same in doc/PERFORMANCE.md, for its
bus bandwidth). Direct messages from rank to rank are counted as they are.
"""

from collections.abc import Callable

import numpy as np

from minidist import backend
from minidist.backend import address, xp
from minidist.comm.algorithms import broadcast_naive
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import disseminate, overlap

UNIQUE_ID_BYTES = 128
OPS = {np.add: "NCCL_SUM", np.multiply: "NCCL_PROD", np.minimum: "NCCL_MIN", np.maximum: "NCCL_MAX"}
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


class Communicator:
    """The NCCL communicator of one group, which all its ranks make at their first call on arrays on GPUs.

    Rank 0 makes a unique id, which travels to the others through host memory; NCCL then finds the paths between the
    GPUs. The methods are the collectives of collectives.py, with their arguments: arrays, root, ufunc, and last the
    group that algorithms run on, which counts the traffic. AVG is SUM here, divided afterwards, as everywhere in the
    library: NCCL_AVG multiplies every term by 1/N before it adds.
    """

    def __init__(self, group: ProcessGroup) -> None:
        nccl = backend.nccl()
        assert nccl is not None
        unique_id = np.zeros(UNIQUE_ID_BYTES, np.uint8)
        if group.rank == 0:
            unique_id[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
        group.run_collective("a communicator for NCCL", lambda inside: broadcast_naive(unique_id, 0, inside))
        self._nccl, self._comm = nccl, nccl.NcclCommunicator(group.size, unique_id.tobytes(), group.rank)
        self.check = self._comm.check_async_error  # raises an error that NCCL has noticed, such as a lost connection
        self.close = self._comm.destroy  # once nothing is in flight any longer
        self.abort = self._comm.abort  # even if other ranks never come: NCCL ends what runs on this GPU
        self._compared: set[str] = set()
        self._stream, self._bytes = group.transport.gpus.stream.ptr, nccl.NCCL_UINT8

    def compare(self, description: str, group: ProcessGroup) -> None:
        """Compare the first call of each description with the calls of the other ranks; raise Mismatch if they differ.

        NCCL itself does not notice: ranks that call different things hang. Messages through host memory carry the
        description (transports/messages.py), so one empty round of them is enough. Comparing every call would take as
        long as a small collective.
        """
        if description not in self._compared:
            self._compared.add(description)
            group.run_collective(f"first {description}", disseminate)

    def broadcast(self, flat, src: int, group: ProcessGroup) -> None:
        if flat.size:
            self._comm.broadcast(address(flat), address(flat), flat.nbytes, self._bytes, src, self._stream)
        self._count_chain(group, flat, (src - 1) % group.size)

    def reduce(self, flat, dst: int, combine: np.ufunc, group: ProcessGroup) -> None:
        if flat.size:
            numbers = self._numbers(flat, combine)
            self._comm.reduce(address(flat), address(flat), flat.size, *numbers, dst, self._stream)
        self._count_chain(group, flat, dst)

    def all_reduce(self, flat, combine: np.ufunc, group: ProcessGroup) -> None:
        if drops_nan(flat.dtype, combine):
            return self._all_reduce_gathered(flat, combine, group)
        if flat.size:
            numbers = self._numbers(flat, combine)
            self._comm.allReduce(address(flat), address(flat), flat.size, *numbers, self._stream)
        count_ring(group, lambda rank: sent_by_ring(flat.size, group.size, rank), flat.itemsize)

    def _all_reduce_gathered(self, flat, combine: np.ufunc, group: ProcessGroup) -> None:
        """Gather all ranks' arrays, and combine them here in rank order, as ``all_reduce_direct`` does."""
        everyone = xp.empty((group.size, flat.size), flat.dtype)  # (N, elements)
        self.all_gather_into_tensor(everyone.ravel(), flat, group)
        flat[...] = everyone[0]
        for contribution in everyone[1:]:
            getattr(xp, combine.__name__)(flat, contribution, out=flat)

    def reduce_scatter_tensor(self, output, input, combine: np.ufunc, group: ProcessGroup) -> None:
        if output.size:
            input = _apart(input, output, address(input) + group.rank * output.nbytes == address(output))
            numbers = self._numbers(output, combine)
            self._comm.reduceScatter(address(input), address(output), output.size, *numbers, self._stream)
        count_ring(group, lambda _: output.size * (group.size - 1), input.itemsize)

    def all_gather_into_tensor(self, output, input, group: ProcessGroup) -> None:
        if input.size:
            input = _apart(input, output, address(output) + group.rank * input.nbytes == address(input))
            self._comm.allGather(address(input), address(output), input.nbytes, self._bytes, self._stream)
        count_ring(group, lambda _: input.size * (group.size - 1), input.itemsize)

    def all_to_all_single(self, outgoing: list, incoming: list, group: ProcessGroup) -> None:
        incoming[group.rank][...] = outgoing[group.rank]
        self._exchange(dict(enumerate(outgoing)), dict(enumerate(incoming)), group)

    def scatter(self, mine, pieces: list, src: int, group: ProcessGroup) -> None:
        if group.rank != src:
            return self._exchange({}, {src: mine}, group)
        self._exchange(dict(enumerate(pieces)), {}, group)
        mine[...] = pieces[src]  # last: it may be one of the pieces

    def gather(self, mine, pieces: list, dst: int, group: ProcessGroup) -> None:
        if group.rank != dst:
            return self._exchange({dst: mine}, {}, group)
        pieces[dst][...] = mine  # first: it may be one of the pieces
        self._exchange({}, dict(enumerate(pieces)), group)

    def _exchange(self, outgoing: dict, incoming: dict, group: ProcessGroup) -> None:
        """Send ``outgoing[r]`` to each other rank r, and receive ``incoming[r]`` from it, all at once.

        In NCCL these collectives are sends and receives in one group call, in which none waits for another (its user
        guide, "Point-to-point communication").
        """
        self._nccl.groupStart()
        for arrays, move, count in (
            (outgoing, self._comm.send, count_sent),
            (incoming, self._comm.recv, count_received),
        ):
            for rank, array in arrays.items():
                if rank != group.rank and array.size:
                    move(address(array), array.nbytes, self._bytes, rank, self._stream)
                    count(group, rank, array.size, array.itemsize)
        self._nccl.groupEnd()

    def _numbers(self, flat, combine: np.ufunc) -> tuple[int, int]:
        """Return NCCL's constants for a dtype and an operation."""
        return getattr(self._nccl, f"NCCL_{flat.dtype.name.upper()}"), getattr(self._nccl, OPS[combine])

    def _count_chain(self, group: ProcessGroup, flat, last: int) -> None:
        """Count an array that passes along the ring once, up to the rank ``last``."""
        count_ring(group, lambda rank: 0 if rank == last else flat.size, flat.itemsize)


def drops_nan(dtype: np.dtype, combine: np.ufunc) -> bool:
    """Return whether NCCL may drop a NaN. NumPy and CuPy keep it, and it shows that a run diverges.

    NCCL's MIN and MAX of floats are C's ``fmin`` and ``fmax`` (src/device/reduce_kernel.h), which prefer any number.
    """
    return dtype.kind == "f" and combine in (np.minimum, np.maximum)


def _apart(input, output, in_place: bool):
    """Return ``input``, or a copy if it overlaps ``output`` in a way that NCCL does not support."""
    return input.copy() if overlap(input, output) and not in_place else input


def sent_by_ring(elements: int, size: int, rank: int) -> int:
    """Return the elements that a rank sends in ``all_reduce_ring``: in both halves every chunk but one."""
    return 2 * elements - sum(elements // size + (chunk % size < elements % size) for chunk in (rank, rank + 1))


def count_ring(group: ProcessGroup, elements_of: Callable[[int], int], itemsize: int) -> None:
    """Count what this rank sends to its right neighbour, ``elements_of(rank)``, and receives from its left one."""
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    count_sent(group, right, elements_of(group.rank), itemsize)
    count_received(group, left, elements_of(left), itemsize)


def count_sent(group: ProcessGroup, rank: int, elements: int, itemsize: int) -> None:
    """Count what this rank sends to a rank of the group within one of the group's collectives."""
    transport, peer, running = group.transport, group.ranks[rank], group.running
    assert running is not None
    running.nbytes += elements * itemsize
    if transport.nodes[peer] != transport.nodes[transport.rank]:
        running.between_nodes += elements * itemsize
    if elements:
        with transport.lock:
            transport.traffic.count(transport.traffic.sent[peer], elements * itemsize, elements)


def count_received(group: ProcessGroup, rank: int, elements: int, itemsize: int) -> None:
    """Count what this rank receives from a rank of the group."""
    if elements:
        transport, peer = group.transport, group.ranks[rank]
        with transport.lock:
            transport.traffic.count(transport.traffic.received[peer], elements * itemsize, elements)
