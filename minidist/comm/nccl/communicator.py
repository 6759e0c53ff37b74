"""The communicator of one group, and each collective as calls of NCCL (``cupy.cuda.nccl``, docs.nvidia.com/nccl).

NCCL takes addresses, so the arrays here are flat and contiguous, on this process's GPU. Nothing is called for arrays
without elements. Numbers are combined as their dtype says; everything else moves as bytes, which NCCL has for any
dtype.

Where ``input`` and ``output`` share memory, NCCL takes them if ``output`` of a rank is exactly its part of ``input``,
or the other way around ("In-place operations" in its user guide). Other overlaps are undefined there, so such an
``input`` is copied first.
"""

import numpy as np

from minidist import backend
from minidist.backend import address, xp
from minidist.comm.algorithms import broadcast_naive
from minidist.comm.arrays import overlap
from minidist.comm.group import ProcessGroup
from minidist.comm.nccl import traffic
from minidist.comm.point_to_point import disseminate

UNIQUE_ID_BYTES = 128

# How NCCL combines. AVG is SUM here, and divided afterwards, as everywhere in the library: NCCL_AVG multiplies every
# term by 1/N before it adds.
OPS = {"SUM": "NCCL_SUM", "AVG": "NCCL_SUM", "PRODUCT": "NCCL_PROD", "MIN": "NCCL_MIN", "MAX": "NCCL_MAX"}
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


class Communicator:
    """One group's communicator. All ranks of the group make it, by their first call on arrays of GPUs.

    A rank makes a unique id, which travels to the others through host memory, and NCCL then finds the ways between the
    GPUs.

    Attributes:
        inside: the group on which the running collective counts its traffic.
    """

    def __init__(self, group: ProcessGroup) -> None:
        nccl = backend.nccl()
        unique_id = np.zeros(UNIQUE_ID_BYTES, np.uint8)
        if group.rank == 0:
            unique_id[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
        group.run_collective("a communicator for NCCL", 0, False, lambda inside: broadcast_naive(unique_id, 0, inside))
        self._nccl, self._comm = nccl, nccl.NcclCommunicator(group.size, unique_id.tobytes(), group.rank)
        self._compared: set[str] = set()
        self.inside = group
        self._stream = 0

    def compare(self, description: str, group: ProcessGroup) -> None:
        """Compare the first call of each description with what the other ranks call: a Mismatch if they differ.

        NCCL itself does not notice: ranks that call different things hang. Messages through host memory carry the
        description (transports/messages.py), so one empty round of them is enough. To compare every call would cost as
        much as small collectives take.
        """
        if description not in self._compared:
            self._compared.add(description)
            group.run_collective(f"first {description}", 0, False, disseminate)

    def bind(self, stream: int, inside: ProcessGroup) -> None:
        """Set the stream, and the group within a collective, of the calls that follow."""
        self._stream, self.inside = stream, inside

    def check(self) -> None:
        """Raise what NCCL has noticed since, such as a lost connection."""
        self._comm.check_async_error()

    def close(self) -> None:
        """Free the communicator, on which nothing is in flight any longer."""
        self._comm.destroy()

    def abort(self) -> None:
        """Free the communicator although other ranks never come: NCCL ends what runs on this GPU."""
        self._comm.abort()

    # The collectives, whose arguments are those of collectives.py

    def broadcast(self, flat, src: int) -> None:
        if flat.size:
            self._comm.broadcast(address(flat), address(flat), flat.nbytes, self._bytes, src, self._stream)
        size = self.inside.size
        traffic.count_ring(self.inside, traffic.chain(flat.size, (src - 1) % size), flat.itemsize)

    def reduce(self, flat, dst: int, op) -> None:
        if flat.size:
            self._comm.reduce(address(flat), address(flat), flat.size, *self._combining(flat, op), dst, self._stream)
        if self.inside.rank == dst:
            self._average(flat, op)
        traffic.count_ring(self.inside, traffic.chain(flat.size, dst), flat.itemsize)

    def all_reduce(self, flat, op) -> None:
        if drops_nan(flat.dtype, op):
            return self._all_reduce_gathered(flat, op)
        if flat.size:
            self._comm.allReduce(address(flat), address(flat), flat.size, *self._combining(flat, op), self._stream)
        self._average(flat, op)
        traffic.count_ring(self.inside, traffic.all_reduce(flat.size, self.inside.size), flat.itemsize)

    def _all_reduce_gathered(self, flat, op) -> None:
        """Gather all ranks' arrays, and combine them here in rank order, as ``all_reduce_direct`` does."""
        everyone = xp.empty((self.inside.size, flat.size), flat.dtype)  # (N, elements)
        self.all_gather(everyone.ravel(), flat)
        combine = getattr(xp, op.ufunc.__name__)
        flat[...] = everyone[0]
        for contribution in everyone[1:]:
            combine(flat, contribution, out=flat)

    def reduce_scatter(self, output, input, op) -> None:
        if output.size:
            input = _apart(input, output, address(input) + self.inside.rank * output.nbytes == address(output))
            self._comm.reduceScatter(
                address(input), address(output), output.size, *self._combining(output, op), self._stream
            )
        self._average(output, op)
        traffic.count_ring(self.inside, traffic.half(input.size, self.inside.size), input.itemsize)

    def all_gather(self, output, input) -> None:
        if input.size:
            input = _apart(input, output, address(output) + self.inside.rank * input.nbytes == address(input))
            self._comm.allGather(address(input), address(output), input.nbytes, self._bytes, self._stream)
        traffic.count_ring(self.inside, traffic.half(output.size, self.inside.size), input.itemsize)

    def all_to_all(self, outgoing: list, incoming: list) -> None:
        rank = self.inside.rank
        incoming[rank][...] = outgoing[rank]
        self._exchange(dict(enumerate(outgoing)), dict(enumerate(incoming)))

    def scatter(self, mine, pieces: list | None, src: int) -> None:
        if self.inside.rank != src:
            return self._exchange({}, {src: mine})
        self._exchange(dict(enumerate(pieces)), {})
        mine[...] = pieces[src]  # last: it may be one of the pieces

    def gather(self, mine, pieces: list | None, dst: int) -> None:
        if self.inside.rank != dst:
            return self._exchange({dst: mine}, {})
        pieces[dst][...] = mine  # first: it may be one of the pieces
        self._exchange({}, dict(enumerate(pieces)))

    def _exchange(self, outgoing: dict, incoming: dict) -> None:
        """Send ``outgoing[r]`` to each other rank r, and receive ``incoming[r]`` from it, all at once.

        In NCCL these collectives are sends and receives in one group call, in which none waits for another (its user
        guide, "Point-to-point communication").
        """
        inside = self.inside
        self._nccl.groupStart()
        for rank, array in outgoing.items():
            if rank != inside.rank and array.size:
                self._comm.send(address(array), array.nbytes, self._bytes, rank, self._stream)
                traffic.count_sent(inside, rank, array.size, array.itemsize)
        for rank, array in incoming.items():
            if rank != inside.rank and array.size:
                self._comm.recv(address(array), array.nbytes, self._bytes, rank, self._stream)
                traffic.count_received(inside, rank, array.size, array.itemsize)
        self._nccl.groupEnd()

    @property
    def _bytes(self) -> int:
        return self._nccl.NCCL_UINT8

    def _combining(self, flat, op) -> tuple[int, int]:
        """The numbers of a dtype and of an operation."""
        return getattr(self._nccl, f"NCCL_{flat.dtype.name.upper()}"), getattr(self._nccl, OPS[op.name])

    def _average(self, flat, op) -> None:
        if op.name == "AVG":
            flat /= self.inside.size


def drops_nan(dtype: np.dtype, op) -> bool:
    """Whether NCCL's result could differ from NumPy's, and CuPy's, which keep a NaN: a run that diverges shows by it.

    NCCL's MIN and MAX of floats are C's ``fmin`` and ``fmax`` (src/device/reduce_kernel.h), which prefer any number.
    """
    return dtype.kind == "f" and op.name in ("MIN", "MAX")


def _apart(input, output, in_place: bool):
    """``input``, or a copy of it where NCCL does not take it with this ``output``."""
    return input.copy() if overlap(input, output) and not in_place else input
