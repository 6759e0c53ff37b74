"""``cupy.cuda.nccl`` for ranks that are processes of one machine: names, numbers and arguments as in CuPy's nccl.pyx.

The bytes go through sockets to a hub in the process that has made the unique id (nccl_hub.py). It is stricter than
NCCL: an address must lie in a living array of this device, with enough bytes behind it; arrays may overlap only where
NCCL defines it; calls that would hang because ranks call different things raise at the next synchronisation.
"""

import ctypes
import threading
import time
from multiprocessing.connection import Client
from operator import index
from weakref import ref

import numpy as np

from cupy.device import streams
from cupy.device.devices import Device
from cupy.device.nccl_hub import HangsOnAGPU, Hub

available = True
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
NCCL_INT8 = NCCL_CHAR = 0
NCCL_UINT8 = 1
NCCL_INT32 = NCCL_INT = 2
NCCL_UINT32 = 3
NCCL_INT64, NCCL_UINT64 = 4, 5
NCCL_FLOAT16 = NCCL_HALF = 6
NCCL_FLOAT32 = NCCL_FLOAT = 7
NCCL_FLOAT64 = NCCL_DOUBLE = 8
NCCL_BFLOAT16 = 9
DTYPES = dict(enumerate(map(np.dtype, ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8"))))  # NumPy has no bfloat16
UNIQUE_ID_BYTES = 128
ERRORS = {  # status: its name in CuPy, what NCCL says
    1: ("NCCL_ERROR_UNHANDLED_CUDA_ERROR", "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
    2: ("NCCL_ERROR_SYSTEM_ERROR", "unhandled system error (run with NCCL_DEBUG=INFO for details)"),
    4: ("NCCL_ERROR_INVALID_ARGUMENT", "invalid argument (run with NCCL_DEBUG=WARN for details)"),
    5: ("NCCL_ERROR_INVALID_USAGE", "invalid usage (run with NCCL_DEBUG=WARN for details)"),
    6: ("NCCL_ERROR_REMOTE_ERROR", "remote process exited or there was a network error"),
}
_group = threading.local()


class NcclError(RuntimeError):
    def __init__(self, status: int, detail: str = "") -> None:
        self.status = status
        super().__init__(": ".join(ERRORS[status]) + (f" [{detail}]" if detail else ""))

    def __reduce__(self):
        return NcclError, (self.status,)


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
        self.start, self.stop = index(address), index(address) + nbytes
        owner = _owner_of(self.start, self.stop)
        self.owner, self.allocated_on = ref(owner), owner._stream
        self._memory = owner._memory  # a GPU does not take freed memory away

    def read(self) -> bytes:
        return ctypes.string_at(self.start, self.stop - self.start)

    def write(self, content: bytes) -> None:
        assert len(content) == self.stop - self.start
        ctypes.memmove(self.start, content, len(content))


def _owner_of(start: int, stop: int):
    from cupy.arrays import owners

    for weak in owners.valuerefs():
        array = weak()
        if array is not None:
            begin = array._memory.__array_interface__["data"][0]
            if begin <= start and stop <= begin + array._memory.nbytes:
                if array._device != Device().id:
                    raise NcclError(4, f"memory of device {array._device} on device {Device().id}")
                return array
    raise NcclError(4, f"{stop - start} bytes at {start:#x} are in no array of this device")


class NcclCommunicator:
    def __init__(self, ndev: int, commId: bytes, rank: int, config=None) -> None:
        self._connection = None
        if not isinstance(commId, bytes):
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(commId).__name__})")
        if len(commId) != UNIQUE_ID_BYTES:
            raise ValueError(f"commId length {len(commId)} != {UNIQUE_ID_BYTES}.")
        if not 0 <= index(rank) < index(ndev):
            raise NcclError(4)
        self._ndev, self._rank, self._device = ndev, rank, Device()
        self._error: BaseException | None = None
        self._aborted = False
        host, port = commId.rstrip(b"\0").decode().split()
        self._connection = Client((host, int(port)))
        self._ask(ndev, rank, self._device.pci_bus_id)

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
        _check_apart(source, target, source.start + self._rank * nbytes == target.start)
        self._collective("reduceScatter", (datatype, op), stream, source, target)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream) -> None:
        nbytes = count * DTYPES[datatype].itemsize
        source, target = Span(sendbuf, nbytes), Span(recvbuf, nbytes * self._ndev)
        _check_apart(source, target, target.start + self._rank * nbytes == source.start)
        self._collective("allGather", (datatype,), stream, source, target)

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

    def _collective(self, name: str, arguments: tuple, stream: int, source: Span | None, target: Span | None) -> None:
        if getattr(_group, "depth", 0):
            raise NotImplementedError("a collective within a group call")
        if source and target:
            _check_apart(source, target, name in ("reduceScatter", "allGather") or source.start == target.start)

        def work() -> list[tuple[Span, bytes]]:
            found = self._ask("collective", name, arguments, source and source.read())
            return [] if target is None else [(target, found)]

        self._submit(stream, work, [source] if source else [], [target] if target else [])

    def _exchange(self, outgoing: dict[int, Span], incoming: dict[int, Span]) -> list[tuple[Span, bytes]]:
        sizes = {peer: span.stop - span.start for peer, span in incoming.items()}
        found = self._ask("exchange", {peer: span.read() for peer, span in outgoing.items()}, sizes)
        return [(span, found[peer]) for peer, span in incoming.items()]

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

    def _ask(self, *question):
        deadline = time.monotonic() + streams.LIMIT
        try:
            self._connection.send(question)
            while not self._connection.poll(0.05):  # in steps, since another thread may abort
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no answer to {question[:2]} for {streams.LIMIT:g} s: on a GPU it hangs")
            status, answer = self._connection.recv()
        except (EOFError, OSError, AttributeError):
            raise NcclError(6) from None
        if status == "hangs":
            raise HangsOnAGPU(answer)
        if status:
            raise NcclError(status, answer)
        return answer


def _check_apart(source: Span, target: Span, in_place: bool) -> None:
    """NCCL says nothing about other overlaps than those in place."""
    if source.start < target.stop and target.start < source.stop and not in_place:
        raise NcclError(4, "buffers overlap, and not in place")
