"""A message at its two ends: its header, and how much of it each end has moved."""

import contextvars
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import or_

import numpy as np

# number in this direction, context, tag, bytes, elements, the sender's clock (ns), the call in words
HEADER = struct.Struct("<QQqQQq144s")
HEADER_BYTES = HEADER.size  # 192
CALL_BYTES = 144

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
    """A posted outgoing message."""

    __slots__ = ("done", "elements", "header", "label", "nbytes", "number", "offset", "payload", "peer")

    def __init__(self, peer: int, payload: np.ndarray, elements: int, label: str) -> None:
        self.peer, self.payload, self.elements, self.label = peer, payload, elements, label
        self.nbytes = len(payload)
        self.offset = 0  # payload bytes already in the queue
        self.header: bytes | None = None  # None once it is in the queue
        self.number = 0
        self.done = False

    def waits(self) -> str:
        return f"{self.label}: waits for rank {self.peer} to take {self.nbytes:,} bytes"


class Receive(Part):
    """A posted receive.

    With ``combine`` the payload is combined into ``target`` as it arrives, without an intermediate copy, instead of
    overwriting it. NCCL calls this primitive recvReduce.
    """

    __slots__ = ("call", "combine", "context", "done", "error", "label", "number", "peer", "tag", "target")

    def __init__(self, peer, target, context, tag, call: bytes, label: str, combine: Combine | None) -> None:
        self.peer, self.target, self.context, self.tag = peer, target, context, tag
        self.call, self.label, self.combine = call, label, combine
        if combine is not None:  # any thread may do it, in any call: let NumPy handle its errors as in this one
            self.combine = partial(contextvars.copy_context().run, combine)
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
        itemsize = self.target.itemsize
        mine = self.target[offset // itemsize : (offset + len(piece)) // itemsize]
        arriving = piece.view(self.target.dtype)
        if self.combine is None:
            mine[...] = arriving
        else:
            self.combine(mine, arriving, out=mine)


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

    def __init__(self, header: np.ndarray) -> None:
        (self.number, self.context, self.tag, self.nbytes, self.elements, self.sent_at, call) = HEADER.unpack(header)
        self.call = call.rstrip(b"\0")
        self.offset = 0
        self.receive: Receive | None = None
        self.buffer: np.ndarray | None = None  # (nbytes,) uint8, while no receive has matched it
