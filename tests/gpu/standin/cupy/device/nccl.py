"""``cupy.cuda.nccl`` for ranks that are processes of one machine: names, numbers and arguments as in CuPy's nccl.pyx.

The bytes go through sockets to a hub in the process that has made the unique id (nccl_hub.py). It is stricter than
NCCL: an address must lie in a living array of this device, with enough bytes behind it; arrays may overlap only where
NCCL defines it; calls that would hang because ranks call different things raise at the next synchronisation.
"""

import ctypes
import threading
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Client
from operator import index
from weakref import ref

from cupy.arrays import owner_of
from cupy.device import streams
from cupy.device.devices import Device
from cupy.device.nccl_hub import DTYPES, Hub, result

available = True
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)
NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 = range(6, 9)
UNIQUE_ID_BYTES = 128
ERRORS = {  # status -> its name in CuPy, and what NCCL says
    4: "NCCL_ERROR_INVALID_ARGUMENT: invalid argument (run with NCCL_DEBUG=WARN for details)",
    5: "NCCL_ERROR_INVALID_USAGE: invalid usage (run with NCCL_DEBUG=WARN for details)",
    6: "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error",
}


class HangsOnAGPU(RuntimeError):
    """Ranks call different things. NCCL does not notice."""


class NcclError(RuntimeError):
    def __init__(self, status: int, detail: str = "") -> None:
        super().__init__(ERRORS[status] + (f" [{detail}]" if detail else ""))


def get_unique_id() -> bytes:
    return str(Hub().port).encode().ljust(UNIQUE_ID_BYTES, b"\0")


class Group(threading.local):
    """The group call of this thread: how deep it is, and its (communicator, stream, kind, peer, span)."""

    depth, calls = 0, ()


_group = Group()


def groupStart() -> None:
    _group.calls = _group.calls if _group.depth else []
    _group.depth += 1


def groupEnd() -> None:
    """Only sends and receives of one communicator are grouped here."""
    if _group.depth == 0:
        raise NcclError(5)
    _group.depth -= 1
    if _group.depth == 0 and _group.calls:
        ((comm, stream),) = {call[:2] for call in _group.calls}
        messages = [call[2:] for call in _group.calls]
        read, written = ([span for one, _, span in messages if one == kind] for kind in ("send", "recv"))
        comm._submit(stream, lambda: comm._exchange(messages), read, written)


class Span:
    """Bytes of a device array, by their address."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.start, self.stop, self.nbytes = index(address), index(address) + nbytes, nbytes
        owner = owner_of(self.start, self.stop)
        if owner is None or owner.device != Device():
            raise NcclError(4, f"{nbytes} bytes at {address:#x} are in no array of this device")
        self.owner, self.allocated_on = ref(owner), owner._stream
        self._memory = owner._memory  # a GPU does not take freed memory away

    def read(self) -> bytes:
        return ctypes.string_at(self.start, self.nbytes)

    def write(self, content: bytes) -> None:
        assert len(content) == self.nbytes
        ctypes.memmove(self.start, content, len(content))


class NcclCommunicator:
    def __init__(self, ndev: int, commId: bytes, rank: int, config=None) -> None:
        self._connection, self._error, self._aborted = None, None, False
        if not isinstance(commId, bytes) or len(commId) != UNIQUE_ID_BYTES or not 0 <= index(rank) < index(ndev):
            raise NcclError(4, f"rank {rank} of {ndev}, id {commId!r}")
        self._ndev, self._rank, self._device = ndev, rank, Device()
        self._connection = Client(("127.0.0.1", int(commId.rstrip(b"\0"))))
        self._made: Counter[tuple[int, ...]] = Counter()  # messages between two ranks, and, of (), collectives
        devices = self._everyones(self._device.pci_bus_id)
        if len(set(devices)) < ndev:
            raise NcclError(5, f"Duplicate GPU detected: {devices}")

    def destroy(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    __del__ = destroy

    def abort(self) -> None:
        """End what runs on this device, whatever it has done."""
        self._aborted = True
        self.destroy()

    def check_async_error(self) -> None:
        if self._error is not None:
            raise self._error

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream) -> None:
        self._collective("allReduce", sendbuf, recvbuf, count, datatype, stream, op)

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream) -> None:
        self._collective("reduce", sendbuf, recvbuf if self._is(root) else None, count, datatype, stream, op, root)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream) -> None:
        source = sendbuff if self._is(root) else None
        self._collective("broadcast", source, recvbuff, count, datatype, stream, root=root)

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream) -> None:
        self._collective("reduceScatter", sendbuf, recvbuf, recvcount, datatype, stream, op)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream) -> None:
        self._collective("allGather", sendbuf, recvbuf, count, datatype, stream)

    def send(self, sendbuf, count, datatype, peer, stream) -> None:
        self._message("send", sendbuf, count, datatype, peer, stream)

    def recv(self, recvbuf, count, datatype, peer, stream) -> None:
        self._message("recv", recvbuf, count, datatype, peer, stream)

    def _message(self, kind: str, buffer, count, datatype, peer, stream) -> None:
        self._is(peer)
        span = Span(buffer, count * DTYPES[datatype].itemsize)
        groupStart()
        _group.calls.append((self, stream, kind, peer, span))
        groupEnd()

    def _is(self, rank: int) -> bool:
        if not 0 <= index(rank) < self._ndev:
            raise NcclError(4)
        return rank == self._rank

    def _collective(self, name: str, send, receive, count: int, datatype: int, stream: int, op=None, root=None) -> None:
        """An address is None where a rank has nothing to send, or receives nothing."""
        if _group.depth:
            raise NotImplementedError("a collective within a group call")
        nbytes = count * DTYPES[datatype].itemsize
        read = [] if send is None else [Span(send, nbytes * (self._ndev if name == "reduceScatter" else 1))]
        written = [] if receive is None else [Span(receive, nbytes * (self._ndev if name == "allGather" else 1))]
        # how far behind its source a target begins that is in place: other overlaps are undefined
        shift = {"reduceScatter": nbytes, "allGather": -nbytes}.get(name, 0) * self._rank
        for source, target in zip(read, written, strict=False):
            overlap = source.start < target.stop and target.start < source.stop
            if overlap and target.start - source.start != shift:
                raise NcclError(4, "buffers overlap, and not in place")

        def work() -> list[tuple[Span, bytes]]:
            told = name, count, datatype, op, root
            everyones = self._everyones((told, read[0].read() if read else None))
            if {other for other, _ in everyones} != {told}:
                raise HangsOnAGPU(f"ranks call different things: {[other for other, _ in everyones]}")
            contents = [content for _, content in everyones]
            return [(span, result(name, contents, self._rank, datatype, op, root)) for span in written]

        self._submit(stream, work, read, written)

    def _exchange(self, messages: list[tuple[str, int, Span]]) -> list[tuple[Span, bytes]]:
        """A send waits for its receive, which tells how many bytes it expects."""
        posted, awaited = {}, {}
        for kind, peer, span in messages:
            name = self._next(self._rank, peer) if kind == "send" else self._next(peer, self._rank)
            posted[kind, *name] = [1, span.read() if kind == "send" else span.nbytes]
            awaited["recv" if kind == "send" else "send", *name] = span
        found = [(name[0], awaited[name], value) for name, value in self._meet(posted, set(awaited)).items()]
        if wrong := [(span.nbytes, value) for kind, span, value in found if kind == "recv" and value != span.nbytes]:
            raise HangsOnAGPU(f"rank {self._rank} sends so many bytes, and others expect so many: {wrong}")
        return [(span, content) for kind, span, content in found if kind == "send"]

    def _submit(self, pointer: int, work: Callable, read: list[Span], written: list[Span]) -> None:
        """Put work into a stream: it returns what to write, and where. Others may read meanwhile what it reads."""
        if Device() != self._device:
            raise NcclError(5, f"device {Device().id} is current, but the communicator is of {self._device.id}")

        def run() -> None:
            try:
                before = [span.read() for span in read]
                found = work()
                if [span.read() for span in read] != before:
                    raise RuntimeError("an array has changed while a call reads it: nothing has waited for the call")
                for span, content in found:
                    span.write(content)
            except BaseException as error:
                if not self._aborted:
                    self._error = error
                    raise

        streams.by_pointer[pointer].submit(run, read, written)

    def _next(self, *ends: int) -> tuple[int, ...]:
        """The name of the next message between two ranks, or, of (), of the next collective."""
        self._made[ends] += 1
        return *ends, self._made[ends]

    def _everyones(self, mine) -> list:
        """Every rank's, for its next collective."""
        name = self._next()
        names = [(*name, rank) for rank in range(self._ndev)]
        found = self._meet({names[self._rank]: [self._ndev, mine]}, set(names))
        return [found[name] for name in names]

    def _meet(self, posted: dict[tuple, list], awaited: set[tuple]) -> dict:
        try:
            self._connection.send((posted, awaited))
            while not self._connection.poll(0.05):  # in steps, since another thread may abort
                pass
            found = self._connection.recv()
        except (EOFError, OSError, AttributeError):
            raise NcclError(6) from None
        if found is None:
            raise HangsOnAGPU(f"nobody has posted all of {awaited}")
        return found
