"""The life of one rank: wait for a function, run it, report, and wait for the next.

It communicates with the parent over two pipes. Commands and results go through one. On the other a thread answers the
question "where are you?"; the thread also ends the process as soon as the parent is gone.
"""

import gc
import io
import os
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from multiprocess import connection, parent_process

from minidist import trace
from minidist.comm.failures import Aborted, describe_frame, is_plumbing, own_traceback, summary
from minidist.comm.group import ProcessGroup, end_run
from minidist.comm.runtime import serialization, starting
from minidist.comm.transports.shared_memory import Segment, SharedMemoryTransport
from minidist.comm.transports.transport import Transport
from minidist.comm.work import SWITCH_SECONDS

LEAVE_SECONDS = 5.0  # for a background collective to notice that its run has ended
_unreturned: list[Segment] = []


@dataclass(frozen=True)
class Place:
    """Where a rank takes part: its number, and the shared memory of its cluster."""

    rank: int
    size: int
    capacity: int
    segment: str

    @classmethod
    def of(cls, rank: int, segment: Segment) -> "Place":
        return cls(rank, segment.world_size, segment.capacity, segment.name)

    def attach(self) -> Segment:
        return Segment(self.size, self.capacity, self.segment)


def rank_main(place: Place, commands, questions, parent_stays: bool) -> None:
    """The entry point of a rank's process; it never returns."""
    if parent_stays and sys.platform == "linux":
        # so a rank ends with the user's process although its own parent is the server; also a stopped one (Ctrl-Z, a
        # debugger), whose threads do not run to watch the parent
        starting.leave_fork_server()
        starting.end_with_parent()
    starting.rank_here = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent decides
    sys.setswitchinterval(SWITCH_SECONDS)
    threading.Thread(target=_watch_parent, args=(questions, threading.main_thread().ident), daemon=True).start()
    reports = Reports(commands)
    streams = reports.stream("stdout"), reports.stream("stderr")
    transport, kept = None, {}
    with suppress(EOFError, OSError):  # the parent has gone
        segment = place.attach()
        reports.send("attached", None)
        while True:
            command, payload = serialization.loads(commands.recv_bytes())
            if command == "stop":
                break
            if command == "leftovers":
                reports.send("leftovers", transport.leftovers())
                continue
            if command == "regroup":
                leave(transport, segment)
                place = payload
                segment = place.attach()
                reports.send("attached", None)
                continue
            if transport is not None:
                transport.close()
            transport = SharedMemoryTransport(segment, place.rank)
            world = ProcessGroup(transport, tuple(range(place.size)), context=0)
            world.report, world.kept = reports.report, kept
            sys.stdout, sys.stderr = streams
            report = _run(payload, world)
            transport.ended = True
            for stream in streams:  # not sys.stdout, which the function may have replaced
                stream.flush()
            reports.send(*report)
            if report[0] != "done":
                gc.collect()  # should this rank outlive its run, so should nothing that the run held
    os._exit(0)  # the parent cleans up everything that is shared


def leave(transport: Transport | None, segment: Segment) -> None:
    """End what a run still does here in the background, and give back its memory, which the parent has unlinked."""
    trace.stop()
    if transport is not None:
        for group in transport.groups:
            if not group.abandon(LEAVE_SECONDS):
                raise SystemExit("a background collective does not end")  # the parent then counts this rank as dead
        transport.close()
    try:
        segment.close()
    except BufferError:  # something holds a piece of a queue: the memory stays mapped until this process ends
        _unreturned.append(segment)


def _run(payload: bytes, world: ProcessGroup) -> tuple[str, object]:
    """Run the function that the parent sent; return the report: its kind and content."""
    transport = world.transport
    transport.groups.append(world)
    try:
        (sys.path[:], directory), function = serialization.loads(payload)
        os.chdir(directory)
        function, arguments = serialization.loads(function)
        result = function(world, *arguments)
        unreceived = end_run(world)
        return "done", (serialization.dumps(result), unreceived)
    except Aborted as aborted:
        return "aborted", ", ".join([str(aborted), *getattr(aborted, "__notes__", [])])
    except BaseException as error:
        return "failed", (summary(error), own_traceback(error, __file__))


class Reports:
    """What a rank sends its parent: its prints, its reports and finally its result."""

    def __init__(self, pipe) -> None:
        self._pipe, self._lock = pipe, threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._sender: int | None = None  # the thread that is sending

    def send(self, kind: str, content) -> None:
        self._waiting.append(serialization.dumps((kind, content)))
        if self._sender == threading.get_ident():
            return  # something printed during a send, such as an object's __del__: the outer call sends it
        with self._lock:
            self._sender = threading.get_ident()
            while self._waiting:
                self._pipe.send_bytes(self._waiting.popleft())
            self._sender = None

    def report(self, thing) -> None:
        """Send anything to the parent: ``world.report``."""
        self.send("report", thing)

    def stream(self, name: str) -> io.TextIOBase:
        return _Stream(self, name)


class _Stream(io.TextIOBase):
    """A rank's sys.stdout or sys.stderr: lines go to the parent, which prints them, also in a notebook cell."""

    encoding = "utf-8"

    def __init__(self, reports: Reports, name: str) -> None:
        self._reports, self._name = reports, name
        self._line: list[str] = []  # the pieces of a line that is not complete yet
        self._lock = threading.RLock()  # a print may happen inside a print

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            lines, newline, rest = text.rpartition("\n")
            whole = "".join([*self._line, lines, newline]) if newline else ""
            if newline:
                self._line.clear()
            if rest:
                self._line.append(rest)
            if whole:
                self._reports.send("print", (self._name, whole))
        return len(text)

    def flush(self) -> None:
        with self._lock:
            text = "".join(self._line)
            self._line.clear()
            if text:
                self._reports.send("print", (self._name, text))


def _watch_parent(questions, main_thread: int) -> None:
    """Answer where the rank's main thread is, until the parent is gone; then end the process."""
    gone = parent_process().sentinel
    while gone not in connection.wait([gone, questions]):
        try:
            questions.recv()
            questions.send(_where(main_thread))
        except (EOFError, OSError):
            break
    os._exit(1)


def _where(thread: int) -> str:
    """The innermost line of the user's code that a thread executes."""
    frame = innermost = sys._current_frames()[thread]
    while frame is not None and is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    return describe_frame(frame or innermost)
