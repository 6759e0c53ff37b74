"""A message at its two ends: its header, and how much of it each end has moved."""

import contextvars
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

import numpy as np

# number in this direction, context, tag, bytes, elements, the sender's clock (ns), the call in words after its length
HEADER = struct.Struct("<QQqQQq144p")
HEADER_BYTES = HEADER.size  # 192
SHORT = 4 << 10  # bytes: a payload up to this size leaves together with its header (MPI libraries call this eager)
CALL_BYTES = 143

Combine = Callable[..., np.ndarray]  # a ufunc such as np.add: combine(mine, arriving, out=mine)


def shorten(call: str) -> bytes:
    """A description that fits a message header: if it is too long, its two ends and a checksum of the whole."""
    encoded = call.encode()
    if len(encoded) <= CALL_BYTES:
        return encoded
    checksum = b" ... %08x ... " % zlib.crc32(encoded)
    half = (CALL_BYTES - len(checksum)) // 2
    return encoded[:half] + checksum + encoded[-half:]


class Part:
    """One end of a message."""

    __slots__ = ()

    @property
    def awaited(self) -> int:
        """The ranks that it waits for, as bits."""
        return 1 << self.peer


class Send(Part):
    """A posted outgoing message: flat, of any dtype.

    Attributes:
        header: the header, with a short payload behind it; None once it has left.
        payload: (nbytes,) uint8, of a message that is not short.
        offset: bytes of the payload that have left, or are behind the header.
    """

    __slots__ = ("done", "elements", "header", "label", "nbytes", "number", "offset", "payload", "peer")

    def __init__(
        self, array: np.ndarray, peer: int, number: int, context: int, tag: int, call: bytes, label: str, short: int
    ) -> None:
        self.peer, self.number, self.label = peer, number, label
        self.nbytes, self.elements = array.nbytes, array.size
        self.header: bytes | None = HEADER.pack(
            number, context, tag, self.nbytes, self.elements, time.perf_counter_ns(), call
        )
        if self.nbytes <= short:
            self.header += array.tobytes()
            self.payload, self.offset = None, self.nbytes
        else:
            self.payload, self.offset = array.view(np.uint8), 0
        self.done = False

    def waits(self) -> str:
        return f"{self.label}: waits for rank {self.peer} to take {self.nbytes:,} bytes"


class Receive(Part):
    """A posted receive.

    With ``combine`` the payload is combined into ``target`` as it arrives, without an intermediate copy, instead of
    overwriting it. NCCL calls this primitive recvReduce.
    """

    __slots__ = ("call", "combine", "context", "done", "error", "label", "number", "peer", "settings", "tag", "target")

    def __init__(self, peer, target, context, tag, call: bytes, label: str, combine: Combine | None) -> None:
        self.peer, self.target, self.context, self.tag = peer, target, context, tag
        self.call, self.label, self.combine = call, label, combine
        # any thread may combine, in any call: NumPy is to handle errors as in this one
        self.settings = None if combine is None else contextvars.copy_context()
        self.number = -1  # the message's, once one has matched
        self.error: Exception | None = None
        self.done = False

    @property
    def nbytes(self) -> int:
        return self.target.nbytes

    def waits(self) -> str:
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
            self.settings.run(self.combine, mine, arriving, out=mine)


class AnyOf:
    """Several messages, of which one is enough to wait for."""

    def __init__(self, parts: Sequence[Send | Receive]) -> None:
        self.parts = parts

    @property
    def done(self) -> bool:
        return any(part.done for part in self.parts)

    @property
    def peer(self) -> int:
        """The other rank of the first that is done, or of the first if none is."""
        return next((part.peer for part in self.parts if part.done), self.parts[0].peer)

    @property
    def awaited(self) -> int:
        """The ranks that it waits for, as bits."""
        return reduce(or_, (part.awaited for part in self.parts))

    def waits(self) -> str:
        return "any of: " + "; ".join(part.waits() for part in self.parts)


class Arriving:
    """An incoming message whose header has been read, but not its whole payload."""

    __slots__ = ("buffer", "call", "context", "elements", "nbytes", "number", "offset", "receive", "sent_at", "tag")

    def __init__(self, header: bytes | memoryview | np.ndarray) -> None:
        fields = HEADER.unpack(header)
        self.number, self.context, self.tag, self.nbytes, self.elements, self.sent_at, self.call = fields
        self.offset = 0
        self.receive: Receive | None = None
        self.buffer: np.ndarray | None = None  # (nbytes,) uint8, while no receive has matched it
