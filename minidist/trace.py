"""A log of what one rank did and moved: spans of time, and counters of bytes and messages.

A rank is a process, so its log is a plain list in this module. Algorithms record nothing: spans are opened where a
collective, an operation or a phase of training is dispatched, and messages are recorded where the transport moves them.
Pictures, tables and the Perfetto export are all made from this log.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import NamedTuple

import numpy as np


@dataclass(slots=True)
class Event:
    """Something that took time on one track of one rank. Times are ``time.perf_counter_ns()``."""

    name: str
    track: str  # "step", "compute", "communication" or "wait"
    start: int  # ns
    end: int  # ns
    details: dict = field(default_factory=dict)
    stream: int = 0  # see ``stream``


@dataclass(slots=True)
class Message:
    """One end of a message. (source, destination, number) is the same at both ends."""

    kind: str  # "send" or "receive"
    source: int
    destination: int
    number: int
    nbytes: int
    time: int  # ns


@dataclass(slots=True)
class PointToPoint:
    """A call in program order: a posted send, or a send or receive that ``wait`` or ``is_completed`` found done.

    Like the entries below it has no time: analysis/replay.py gives them the times of another network.
    """

    call: str  # "post" or "wait"
    kind: str  # "send" or "receive"
    source: int
    destination: int
    number: int  # as in Message
    nbytes: int
    stream: int = 0


@dataclass(slots=True)
class Begin:
    """The beginning of a span. Its Event follows where the span ends."""

    name: str
    track: str
    stream: int


@dataclass(slots=True)
class Kernel:
    """The work that an operation asks of the hardware, in program order: see nn/measuring.py."""

    name: str
    flops: int  # of its matrix products
    nbytes: int  # read and written
    precision: str  # of the products
    stream: int


@dataclass(slots=True)
class Task:
    """A point in the life of an asynchronous collective, in program order."""

    call: str  # "submit" by the program; "begin" and "end" where it runs; "wait": the program knows that it is done
    runs_on: int  # the stream that runs it
    number: int  # on that stream, from 0
    stream: int  # the one that makes this entry


log: list | None = None  # None: not recording
_watch: Callable | None = None
_thread = threading.local()


def stream() -> int:
    """Return the stream of the calling thread: 0 for the main one; each thread of asynchronous collectives has its own.

    A stream does one thing after another, as on a GPU. Entries of one stream are in the log in program order.
    """
    return getattr(_thread, "stream", 0)


def use_stream(number: int) -> None:
    """Set the stream of the calling thread."""
    _thread.stream = number


def start(watch: Callable | None = None) -> None:
    """Start recording into a new, empty log of this rank.

    ``watch(entry)`` is called immediately with each recorded entry, so it can inspect the state at that moment.
    """
    global log, _watch
    log, _watch = [], watch


def stop() -> list:
    """Stop recording, and return the log in the order in which its entries ended."""
    global log
    recorded, log = log or [], None
    return recorded


def record(entry: object) -> None:  # an Event, Message, ...; or what a caller wants to find in the log
    entries = log  # another thread may stop recording in between
    if entries is not None:
        entries.append(entry)
        if _watch is not None:
            _watch(entry)


_NOT_RECORDED = nullcontext()


def span(name: str, track: str = "compute", **details) -> AbstractContextManager:
    """Record the time spent in this context, if recording."""
    return _NOT_RECORDED if log is None else _recorded_span(name, track, details)


@contextmanager
def _recorded_span(name: str, track: str, details: dict):
    began = begin(name, track)
    try:
        yield
    finally:
        end(name, began, track, details)


def begin(name: str, track: str = "compute") -> int:
    """Record that a span begins, and return the time, for ``end``."""
    record(Begin(name, track, stream()))
    return time.perf_counter_ns()


def end(name: str, began: int, track: str = "compute", details: dict | None = None) -> None:
    """Record a span that ends now."""
    record(Event(name, track, began, time.perf_counter_ns(), details or {}, stream()))


def traced(name: str, track: str = "compute"):
    """Return a decorator that records every call of a function as a span, if recording."""

    def decorate(function: Callable) -> Callable:
        @wraps(function)
        def call(*arguments, **options):
            with span(name, track):
                return function(*arguments, **options)

        return call

    return decorate


def kernel(name: str, flops: int, nbytes: int, precision: str = "fp32") -> None:
    """Record what an operation asks of the hardware, if recording."""
    if log is not None:
        record(Kernel(name, flops, nbytes, precision, stream()))


def message(kind: str, source: int, destination: int, number: int, nbytes: int) -> None:
    """Record one end of a message, if recording."""
    if log is not None:
        record(Message(kind, source, destination, number, nbytes, time.perf_counter_ns()))


class Traffic:
    """Counts of what one rank has sent to and received from each peer: only payload, without headers."""

    COLUMNS = ("bytes", "messages", "elements")

    def __init__(self, sent: np.ndarray, received: np.ndarray, elsewhere: np.ndarray) -> None:
        self.sent, self.received = sent, received  # both (peers, bytes | messages | elements)
        self.elsewhere = elsewhere  # (peers,) bool: whether a peer is on another node

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        return Traffic(self.sent - earlier.sent, self.received - earlier.received, self.elsewhere)

    @property
    def bytes_between_nodes(self) -> int:
        """The bytes sent to ranks of other nodes."""
        return int(self.sent[self.elsewhere, 0].sum())

    def as_dict(self) -> dict:
        """Return totals, and bytes for each peer, as ``--json`` writes them."""
        totals = {
            f"{column}_{way}": int(counts[:, i].sum())
            for way, counts in (("sent", self.sent), ("received", self.received))
            for i, column in enumerate(self.COLUMNS)
        }
        totals["bytes_between_nodes"] = self.bytes_between_nodes
        return totals | {"bytes_sent_to": self.sent[:, 0].tolist(), "bytes_received_from": self.received[:, 0].tolist()}


class CallKind(NamedTuple):
    """The key under which calls of one kind are counted."""

    axis: str  # the group's name: "dp", "tp"; "shard", "replicate" for ZeRO; "ep", "edp" for experts; "world"; ...
    name: str  # "all_reduce", say; "send" for a message outside collectives
    dtype: str
    elements: int  # of its largest array: the full sum, or everything gathered; 0 where it varies, as with split sizes


class Collectives:
    """Counts of one rank's calls of each kind of collective, and of the bytes of payload that it sent for them."""

    COLUMNS = ("calls", "bytes_sent", "bytes_between_nodes")

    def __init__(self, rows: dict[tuple, tuple[int, ...]] | None = None) -> None:
        self.rows = rows or {}  # CallKind, as a plain tuple -> a number for each of COLUMNS

    def __sub__(self, earlier: "Collectives") -> "Collectives":
        differences = {
            kind: tuple(now - before for now, before in zip(row, earlier.rows.get(kind, (0, 0, 0)), strict=True))
            for kind, row in self.rows.items()
        }
        return Collectives({kind: row for kind, row in differences.items() if row[0]})

    def as_list(self) -> list[dict]:
        """Return a row for each kind, most bytes first, as ``--json`` writes them."""
        ordered = sorted(self.rows.items(), key=lambda item: (-item[1][1], item[0]))
        return [CallKind(*kind)._asdict() | dict(zip(self.COLUMNS, row, strict=True)) for kind, row in ordered]


class CollectiveCounter(Collectives):
    """A counter of collectives, which counts each of them when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()  # some end in the background

    def count(self, kind: tuple[str, str, str, int], nbytes: int, between_nodes: int = 0) -> None:
        with self.lock:
            calls, sent, between = self.rows.get(kind, (0, 0, 0))
            self.rows[kind] = calls + 1, sent + nbytes, between + between_nodes

    def snapshot(self) -> Collectives:
        with self.lock:
            return Collectives(dict(self.rows))


class TrafficCounter:
    """The transport's counter of traffic, in plain lists: a NumPy call per message would cost too much."""

    def __init__(self, size: int) -> None:
        self.sent = [[0, 0, 0] for _ in range(size)]
        self.received = [[0, 0, 0] for _ in range(size)]

    @staticmethod
    def count(counts: list[int], nbytes: int, elements: int) -> None:
        counts[0] += nbytes
        counts[1] += 1
        counts[2] += elements

    def snapshot(self, elsewhere: np.ndarray) -> Traffic:
        return Traffic(np.array(self.sent, np.int64), np.array(self.received, np.int64), elsewhere)
