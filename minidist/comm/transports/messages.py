"""A message at its two ends: its header, and how much of it each end has moved."""

import contextvars
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from minidist import trace
from minidist.comm.work import Work

# number in this direction, context, tag, bytes, elements, the call in words after its length
HEADER = struct.Struct("<QQqQQ152p")
HEADER_BYTES = HEADER.size  # 192
SHORT = 4 << 10  # bytes: a payload up to this size leaves together with its header (MPI libraries call this eager)
CALL_BYTES = 151

Combine = Callable[..., np.ndarray]  # a ufunc such as np.add: combine(mine, arriving, out=mine)


def shorten(call: str) -> bytes:
    """Return a description that fits a message header: if it is too long, its two ends and a checksum of the whole."""
    encoded = call.encode()
    if len(encoded) <= CALL_BYTES:
        return encoded
    checksum = b" ... %08x ... " % zlib.crc32(encoded)
    half = (CALL_BYTES - len(checksum)) // 2
    return encoded[:half] + checksum + encoded[-half:]


class MessageEnd(Work):
    """One end of a message, in flight."""

    __slots__ = ("done", "finish", "label", "nbytes", "number", "peer", "transport", "waited")

    def __init__(self, transport, peer: int, number: int, label: str, nbytes: int) -> None:
        self.transport, self.peer, self.number, self.label, self.nbytes = transport, peer, number, label, nbytes
        self.done = False
        self.waited = False  # whether the program knows that it is done
        self.finish: Callable[[], None] | None = None  # called once it is waited for

    def is_completed(self) -> bool:
        self.transport.check_usable()
        if not self.done:
            self.transport.progress()
        if self.done:
            self._mark_waited()  # from here on the program may use what it knows
        return self.done

    def wait(self) -> bool:
        self.transport.check_usable()
        self.transport.wait(self)
        if self.finish is not None:
            self.finish()
            self.finish = None
        self._mark_waited()
        return True

    def _mark_waited(self) -> None:
        if not self.waited:
            self.waited = True
            self.transport.unwaited.discard(self)
            self.record("wait")

    def record(self, call: str) -> None:
        """Record a point in the life of this message, if recording."""
        if trace.log is not None:
            ends = self.peer, self.transport.rank
            kind, (source, destination) = ("send", ends[::-1]) if isinstance(self, Send) else ("receive", ends)
            trace.record(trace.PointToPoint(call, kind, source, destination, self.number, self.nbytes, trace.stream()))

    @property
    def awaited(self) -> int:
        """The ranks that it waits for, as bits."""
        return 1 << self.peer


class Send(MessageEnd):
    """A posted outgoing message: flat, of any dtype.

    Attributes:
        header: the packed header, followed by a short payload; None once it has left.
        offset: bytes of the payload that have left, or travel with the header.
    """

    __slots__ = ("elements", "header", "offset", "payload")

    def __init__(self, transport, array, peer: int, number: int, context: int, tag: int, call: bytes, label) -> None:
        super().__init__(transport, peer, number, label, array.nbytes)
        self.elements = array.size
        self.header: bytes | None = HEADER.pack(number, context, tag, self.nbytes, self.elements, call)
        if self.nbytes <= transport.short:
            self.header += array.tobytes()
            self.offset = self.nbytes
        else:
            self.payload, self.offset = array.view(np.uint8).data, 0

    def describe_wait(self) -> str:
        return f"{self.label}: waits for rank {self.peer} to take {self.nbytes:,} bytes"


class Receive(MessageEnd):
    """A posted receive.

    With ``combine`` the payload is combined into ``target`` as it arrives, without an intermediate copy, instead of
    overwriting it. NCCL calls this primitive recvReduce.
    """

    __slots__ = ("call", "combine", "context", "error", "tag", "target")

    def __init__(self, transport, peer, target, context, tag, call: bytes, label, combine: Combine | None) -> None:
        super().__init__(transport, peer, -1, label, target.nbytes)  # the number is the message's, once one has matched
        self.target, self.context, self.tag, self.call = target, context, tag, call
        # any thread may combine, during any call: NumPy must handle errors as set where the receive is posted
        self.combine = None if combine is None else partial(contextvars.copy_context().run, combine)
        self.error: Exception | None = None

    def describe_wait(self) -> str:
        return f"{self.label}: waits for a message from rank {self.peer}"

    def take(self, piece: np.ndarray, offset: int) -> None:
        """Store or combine a piece of uint8 payload that starts at byte ``offset`` of the message."""
        mine = self.target
        if len(piece) < mine.nbytes:
            mine = mine[offset // mine.itemsize : (offset + len(piece)) // mine.itemsize]
        arriving = piece.view(mine.dtype)
        if self.combine is None:
            mine[...] = arriving
        else:
            self.combine(mine, arriving, out=mine)


class AnyOf:
    """Several messages, waited for until any one of them is done."""

    def __init__(self, ends: Sequence[Send | Receive]) -> None:
        self.ends = ends

    @property
    def done(self) -> bool:
        return any(end.done for end in self.ends)

    @property
    def peer(self) -> int:
        """The other rank of the first message that is done, or of the first message if none is."""
        return next((end.peer for end in self.ends if end.done), self.ends[0].peer)

    @property
    def awaited(self) -> int:
        """The ranks that it waits for, as bits."""
        return sum({end.awaited for end in self.ends})

    def describe_wait(self) -> str:
        return "any of: " + "; ".join(end.describe_wait() for end in self.ends)


class Arriving:
    """An incoming message whose header has been read, but not its whole payload."""

    __slots__ = ("buffer", "call", "context", "elements", "nbytes", "number", "offset", "receive", "tag")

    def __init__(self, header: bytes | memoryview) -> None:
        self.number, self.context, self.tag, self.nbytes, self.elements, self.call = HEADER.unpack(header)
        self.offset = 0
        self.receive: Receive | None = None
        self.buffer: np.ndarray  # (nbytes,) uint8, while no receive has matched it
