"""``cupy.cuda.nccl`` for ranks that are processes of one machine: names, numbers and arguments as in CuPy's nccl.pyx.

The bytes go through sockets to a hub in the process that has made the unique id (nccl_hub.py). It is stricter than
NCCL: an address must lie in a living array of this device, with enough bytes behind it; arrays may overlap only where
NCCL defines it; calls that would hang because ranks call different things raise at the next synchronisation.
"""

import ctypes
import threading
from collections import Counter
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
ERRORS = {  # status: its name in CuPy, what NCCL says
    4: ("NCCL_ERROR_INVALID_ARGUMENT", "invalid argument (run with NCCL_DEBUG=WARN for details)"),
    5: ("NCCL_ERROR_INVALID_USAGE", "invalid usage (run with NCCL_DEBUG=WARN for details)"),
    6: ("NCCL_ERROR_REMOTE_ERROR", "remote process exited or there was a network error"),
}
_group = threading.local()


class HangsOnAGPU(RuntimeError):
    """Ranks call different things. NCCL does not notice."""


class NcclError(RuntimeError):
    def __init__(self, status: int, detail: str = "") -> None:
        super().__init__(": ".join(ERRORS[status]) + (f" [{detail}]" if detail else ""))


def get_unique_id() -> bytes:
    return f"127.0.0.1 {Hub().port}".encode().ljust(UNIQUE_ID_BYTES, b"\0")


def groupStart() -> None:
    _group.calls = getattr(_group, "calls", None) or []
    _group.depth = getattr(_group, "depth", 0) + 1


def groupEnd() -> None:
    """Only sends and receives of one communicator are grouped here."""
    if getattr(_group, "depth", 0) == 0:
        raise NcclError(5)
    _group.depth -= 1
    if _group.depth == 0 and _group.calls:
        calls, _group.calls = _group.calls, []
        (comm,) = {call[0] for call in calls}
        (stream,) = {call[1] for call in calls}
        outgoing = {peer: span for _, _, kind, peer, span in calls if kind == "send"}
        incoming = {peer: span for _, _, kind, peer, span in calls if kind == "recv"}
        comm._submit(stream, lambda: comm._exchange(outgoing, incoming), outgoing.values(), incoming.values())


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
        self._connection = None
        if not isinstance(commId, bytes) or len(commId) != UNIQUE_ID_BYTES or not 0 <= index(rank) < index(ndev):
            raise NcclError(4, f"rank {rank} of {ndev}, id {commId!r}")
        self._ndev, self._rank, self._device = ndev, rank, Device()
        self._error: BaseException | None = None
        self._aborted = False
        host, port = commId.rstrip(b"\0").decode().split()
        self._connection = Client((host, int(port)))
        self._collectives, self._messages = 0, Counter()
        devices = self._everyones(self._device.pci_bus_id)
        if len(set(devices)) < ndev:
            raise NcclError(5, f"Duplicate GPU detected: {devices}")

    def __del__(self) -> None:
        self.destroy()

    def destroy(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abort(self) -> None:
        """What runs on this device ends, whatever it has done."""
        self._aborted = True
        self.destroy()

    def check_async_error(self) -> None:
        if self._error is not None:
            raise self._error

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream) -> None:
        nbytes = count * DTYPES[datatype].itemsize
        self._collective("allReduce", (datatype, op), stream, Span(sendbuf, nbytes), Span(recvbuf, nbytes))

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream) -> None:
        nbytes = count * DTYPES[datatype].itemsize
        self._check_root(root)
        target = Span(recvbuf, nbytes) if self._rank == root else None
        self._collective("reduce", (datatype, op, root), stream, Span(sendbuf, nbytes), target)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream) -> None:
        nbytes = count * DTYPES[datatype].itemsize
        self._check_root(root)
        source = Span(sendbuff, nbytes) if self._rank == root else None
        self._collective("broadcast", (datatype, nbytes, root), stream, source, Span(recvbuff, nbytes))

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream) -> None:
        nbytes = recvcount * DTYPES[datatype].itemsize
        source, target = Span(sendbuf, nbytes * self._ndev), Span(recvbuf, nbytes)
        self._collective("reduceScatter", (datatype, op), stream, source, target, self._rank * nbytes)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream) -> None:
        nbytes = count * DTYPES[datatype].itemsize
        source, target = Span(sendbuf, nbytes), Span(recvbuf, nbytes * self._ndev)
        self._collective("allGather", (datatype,), stream, source, target, -self._rank * nbytes)

    def send(self, sendbuf, count, datatype, peer, stream) -> None:
        self._message("send", sendbuf, count, datatype, peer, stream)

    def recv(self, recvbuf, count, datatype, peer, stream) -> None:
        self._message("recv", recvbuf, count, datatype, peer, stream)

    def _message(self, kind: str, buffer, count, datatype, peer, stream) -> None:
        self._check_root(peer)
        groupStart()
        _group.calls.append((self, stream, kind, peer, Span(buffer, count * DTYPES[datatype].itemsize)))
        groupEnd()

    def _check_root(self, rank: int) -> None:
        if not 0 <= index(rank) < self._ndev:
            raise NcclError(4)

    def _collective(
        self, name: str, arguments: tuple, stream: int, source: Span | None, target: Span | None, shift: int = 0
    ) -> None:
        """``shift``: how far behind its source a target begins that is in place. Other overlaps are undefined."""
        if getattr(_group, "depth", 0):
            raise NotImplementedError("a collective within a group call")
        overlap = source and target and source.start < target.stop and target.start < source.stop
        if overlap and target.start - source.start != shift:
            raise NcclError(4, "buffers overlap, and not in place")

        def work() -> list[tuple[Span, bytes]]:
            calls = self._everyones((name, arguments, source and source.read()))
            lengths = {len(content) for *_, content in calls if content is not None}
            if len({call[:2] for call in calls}) > 1 or len(lengths) > 1:
                raise HangsOnAGPU(f"ranks call different things: {[call[:2] for call in calls]}, {lengths} bytes")
            return (
                [] if target is None else [(target, result(name, arguments, [call[2] for call in calls], self._rank))]
            )

        self._submit(stream, work, [source] if source else [], [target] if target else [])

    def _exchange(self, outgoing: dict[int, Span], incoming: dict[int, Span]) -> list[tuple[Span, bytes]]:
        """A send waits for its receive, which tells how many bytes it expects."""
        names = {peer: (self._rank, peer, self._sent(self._rank, peer)) for peer in outgoing}
        theirs = {peer: (peer, self._rank, self._sent(peer, self._rank)) for peer in incoming}
        posted = {("bytes", *names[peer]): [1, span.read()] for peer, span in outgoing.items()}
        posted |= {("size", *theirs[peer]): [1, span.nbytes] for peer, span in incoming.items()}
        awaited = {("size", *name) for name in names.values()} | {("bytes", *name) for name in theirs.values()}
        found = self._meet(posted, awaited)
        expected = {peer: found[("size", *names[peer])] for peer in outgoing}
        if expected != {peer: span.nbytes for peer, span in outgoing.items()}:
            raise HangsOnAGPU(f"other ranks expect {expected} bytes of rank {self._rank}, which sends others")
        return [(span, found[("bytes", *theirs[peer])]) for peer, span in incoming.items()]

    def _submit(self, pointer: int, work, read, written) -> None:
        """Put work into a stream: ``work()`` reads some bytes and returns what to write to others.

        The stream knows who may not touch the latter meanwhile. The former may be read, and must not change.
        """
        stream = streams.by_pointer[pointer]
        streams.check_seen(stream)
        if Device() != self._device:
            raise NcclError(5, f"device {Device().id} is current, but the communicator is of {self._device.id}")
        uses = [
            streams.Use(stream.place + 1, span.start, span.stop, spans is written, span.owner)
            for spans in (read, written)
            for span in spans
            if span.allocated_on != pointer  # what this stream has allocated only this stream gets again
        ]
        stream.submit(lambda: self._run(work, read), uses)

    def _run(self, work, read) -> None:
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

    def _sent(self, source: int, destination: int) -> int:
        """The number of a message between two ranks."""
        self._messages[source, destination] += 1
        return self._messages[source, destination]

    def _everyones(self, mine) -> list:
        """Every rank's, for its next collective."""
        self._collectives += 1
        names = [(self._collectives, rank) for rank in range(self._ndev)]
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
