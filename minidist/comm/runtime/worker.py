"""The life of one rank: wait for a function, run it, report, and wait for the next.

It talks to the parent through two pipes: commands come and results go through one; a thread answers the question
"where are you?" through the other, and ends the process as soon as the parent is gone.
"""

import io
import os
import signal
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress

from multiprocess import connection, parent_process

from minidist.comm.failures import Aborted, Mismatch, describe_frame, is_plumbing
from minidist.comm.group import ProcessGroup
from minidist.comm.runtime import serialization
from minidist.comm.transports.shared_memory import Segment
from minidist.comm.transports.transport import Transport

# How long a thread may keep the interpreter to itself while another wants it. Python's 5 ms is longer than a whole
# all-reduce, so a background collective would wait more than it works.
SWITCH_SECONDS = 5e-4


def rank_main(rank: int, size: int, capacity: int, segment_name: str, commands, questions) -> None:
    """Where a rank's process starts, and where it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the parent decides
    sys.setswitchinterval(SWITCH_SECONDS)
    threading.Thread(target=_watch_parent, args=(questions, threading.main_thread().ident), daemon=True).start()
    reports = Reports(commands)
    streams = reports.stream("stdout"), reports.stream("stderr")
    transport = None
    with suppress(EOFError, OSError):  # the parent has gone
        segment = Segment(size, capacity, segment_name)
        while True:
            command, payload = serialization.loads(commands.recv_bytes())
            if command == "stop":
                break
            if command == "leftovers":
                reports.send("leftovers", transport.leftovers())
                continue
            transport = Transport(segment, rank)
            world = ProcessGroup(transport, tuple(range(size)), context=0)
            world.report = reports.report
            sys.stdout, sys.stderr = streams
            report = _run(payload, world)
            transport.ended = True
            for stream in streams:  # these, not what the function may have put in their place
                stream.flush()
            reports.send(*report)
    os._exit(0)  # the parent looks after everything that is shared; nothing else is worth waiting for


def _run(payload: bytes, world: ProcessGroup) -> tuple[str, object]:
    """Run the function that the parent sent, and return what to report."""
    transport = world.transport
    transport.groups.append(world)
    try:
        (sys.path[:], directory), function = serialization.loads(payload)
        os.chdir(directory)
        function, arguments = serialization.loads(function)
        result = function(world, *arguments)
        for group in transport.groups:
            group.close()
        transport.finish()
        put_aside = any(transport.put_aside.values()) or any(transport.arriving.values())
        return "done", (serialization.dumps(result), put_aside)
    except Aborted as aborted:
        return "aborted", ", ".join([str(aborted), *getattr(aborted, "__notes__", [])])
    except BaseException as error:
        return "failed", (_summary(error), _own_traceback(error))


def _summary(error: BaseException) -> str:
    lines = list(
        traceback.TracebackException.from_exception(error).format_exception_only()
    )  # survives a failing __str__
    if isinstance(error, SyntaxError) and error.filename:  # the other lines show the place, but name no error
        lines = [lines[-1].rstrip() + f" ({os.path.basename(error.filename)}, line {error.lineno})"]
    kind, colon, text = "".join(lines).strip().partition(": ")
    return f"{kind.rpartition('.')[2]}{colon}{text}"


def _own_traceback(error: BaseException) -> str:
    """The traceback of the user's code: without this file's lines above it, and without ours below it where two
    ranks disagree, which is not a matter of our lines."""
    whole = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in whole.stack if frame.filename != __file__]
    while isinstance(error, Mismatch) and len(frames) > 1 and is_plumbing(frames[-1].filename):
        frames.pop()
    whole.stack = traceback.StackSummary.from_list(frames)
    return "".join(whole.format())


class Reports:
    """What a rank tells its parent: what it prints, and in the end its result."""

    def __init__(self, pipe) -> None:
        self._pipe, self._lock = pipe, threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._sender: int | None = None  # the thread that is sending

    def send(self, kind: str, content) -> None:
        self._waiting.append(serialization.dumps((kind, content)))
        if self._sender == threading.get_ident():
            return  # something has printed while we send, such as an object's __del__: the outer call sends it
        with self._lock:
            self._sender = threading.get_ident()
            while self._waiting:
                self._pipe.send_bytes(self._waiting.popleft())
            self._sender = None

    def report(self, thing) -> None:
        """What ``world.report`` sends."""
        self.send("report", thing)

    def stream(self, name: str) -> io.TextIOBase:
        return _Stream(self, name)


class _Stream(io.TextIOBase):
    """A rank's sys.stdout or sys.stderr: lines go to the parent, which prints them, in a notebook's cell too."""

    encoding = "utf-8"

    def __init__(self, reports: Reports, name: str) -> None:
        self._reports, self._name = reports, name
        self._line: list[str] = []  # the pieces of a line that has no end yet
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
    """Answer where the rank's main thread is, until the parent ends; then end the rank."""
    gone = parent_process().sentinel
    while gone not in connection.wait([gone, questions]):
        try:
            questions.recv()
            questions.send(_where(main_thread))
        except (EOFError, OSError):
            break
    os._exit(1)


def _where(thread: int) -> str:
    """The innermost line of the user's code that a thread is executing."""
    frame = innermost = sys._current_frames()[thread]
    while frame is not None and is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    return describe_frame(frame or innermost)
