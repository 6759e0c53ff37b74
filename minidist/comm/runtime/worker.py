"""The life of one rank: wait for a function, run it, report, and wait for the next; and its parent's handle on it.

They communicate over two pipes. Commands and results go through one. On the other a thread of the rank answers the
question "where are you?"; the thread also ends the process as soon as the parent is gone.
"""

import gc
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from multiprocess import connection, get_context, parent_process  # pyright: ignore[reportAttributeAccessIssue]  # dynamic

from minidist import trace, turns
from minidist.comm.background import SWITCH_SECONDS
from minidist.comm.failures import Aborted, describe_frame, own_traceback, summary, users_frame
from minidist.comm.group import ProcessGroup, end_run
from minidist.comm.runtime import serialization, starting
from minidist.comm.transports.shared_memory import Segment, SharedMemoryTransport
from minidist.comm.transports.transport import Transport

LEAVE_SECONDS = 5.0  # for a background collective to notice that its run has ended
STOP_SECONDS = 2.0  # for an idle rank to exit by itself
LOOK_SECONDS = 0.05  # between two looks at the ranks
_unreturned: list[Segment] = []


def rank_main(number: int, place: tuple, commands, questions, parent_stays: bool) -> None:
    """Run a rank's process from beginning to end; never return. ``place`` is that of its segment."""
    if parent_stays and sys.platform == "linux":
        # so a rank ends with the user's process although its own parent is the server; so does a stopped rank (Ctrl-Z,
        # a debugger), although no thread of it runs to watch the parent
        starting.leave_fork_server()
        starting.end_with_parent()
    starting.leave_signals_to_parent()
    sys.setswitchinterval(SWITCH_SECONDS)
    threading.Thread(target=_watch_parent, args=(questions, threading.main_thread().ident), daemon=True).start()
    serve(number, place, commands, partial(setattr, sys))


def serve(number: int, place: tuple, commands, show: Callable[[str, io.TextIOBase], None], thread=None) -> None:
    """Do what the parent commands, until it says stop or is gone.

    Args:
        show: ``show("stdout", stream)`` makes the rank print to a stream.
        thread: the rank's name in turns.py if it is a thread; None for a process.
    """
    reports = Reports(commands)
    streams = _Stream(reports, "stdout"), _Stream(reports, "stderr")
    transport, kept = None, {}
    with suppress(EOFError, OSError):  # the parent has gone
        segment = _attach(place, reports)
        while True:
            command, payload = serialization.loads(commands.recv_bytes())
            if command == "stop":
                break
            if command == "leftovers":
                reports.send("leftovers", transport.leftovers() if transport is not None else [])
                continue
            if command == "regroup":
                trace.stop()
                leave(transport, segment)
                number, place = payload
                segment = _attach(place, reports)
                continue
            if transport is not None:
                transport.close()
            transport = SharedMemoryTransport(segment, number)
            world = ProcessGroup(transport, tuple(range(segment.world_size)), context=0)
            world.report, world.kept = partial(reports.send, "report"), kept
            for name, stream in zip(("stdout", "stderr"), streams, strict=True):
                show(name, stream)
            with turns.taken(thread):
                starting.rank_here = True
                report = _run(payload, world)
            transport.ended = True
            for stream in streams:  # not sys.stdout, which the function may have replaced
                stream.flush()
            reports.send(*report)
            if report[0] != "done":
                gc.collect()  # this rank may outlive its run, but what the run held should not
    if thread is None:  # the parent cleans up all that is shared. Python would, too late, free memory with views of it
        os._exit(0)
    leave(transport, segment)


def _attach(place: tuple, reports: "Reports") -> Segment:
    """Attach to the ranks' shared memory, and report to the parent that it is attached, or why it cannot be."""
    try:
        segment = Segment(*place)
    except OSError as error:
        reports.send("failed", (f"it cannot attach to the shared memory: {summary(error)}", ""))
        raise
    reports.send("attached", None)
    return segment


def leave(transport: Transport | None, segment: Segment) -> None:
    """End what a run still does here in the background, and detach from its memory, which the parent has unlinked."""
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
        return "done", (serialization.dumps(result, "the result"), unreceived)
    except Aborted as aborted:
        return "aborted", ", ".join([str(aborted), *getattr(aborted, "__notes__", [])])
    except BaseException as error:
        return "failed", (summary(error), own_traceback(error, __file__))


class Reports:
    """A rank's messages to its parent: its prints, its reports and finally its result."""

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
    """Answer which line of the user's code the main thread executes, until the parent is gone; then end the process."""
    gone = parent_process().sentinel
    while gone not in connection.wait([gone, questions]):
        try:
            questions.recv()
            innermost = sys._current_frames()[main_thread]
            questions.send(describe_frame(users_frame(innermost) or innermost))
        except (EOFError, OSError):
            break
    os._exit(1)


# The parent's side


class RankProcess:
    """The parent's handle on one rank."""

    def __init__(self, method: str, number: int, segment: Segment) -> None:
        self.method, self.number = method, number
        self.attached = False  # whether it has the shared memory, and so no longer needs the memory's name
        self.reports, commands = connection.Pipe()
        self._start(segment, commands)

    def _start(self, segment: Segment, commands) -> None:
        self._questions, questions = connection.Pipe()
        # to Linux, a process's parent is a thread: the fork server's only one, or this one, which may end early
        parent_stays = self.method == "forkserver" or threading.current_thread() is threading.main_thread()
        arguments = (self.number, segment.place, commands, questions, parent_stays)
        start = get_context(self.method).Process
        self.process = start(target=rank_main, args=arguments, daemon=True, name=f"rank {self.number}")
        try:
            self.process.start()
        except (ConnectionError, EOFError) as error:
            text = f"start_method {self.method!r} cannot start ranks: the process that it needs ended immediately"
            raise RuntimeError(f'{text}; see its own error above, or choose "thread", which needs none') from error
        self.process._popen.terminate = self.process._popen.kill  # Python's exit terminates it, and it outlives SIGTERM
        commands.close()
        questions.close()

    def regroup(self, number: int, segment: Segment) -> None:
        """Give the rank another number, in another segment."""
        self.number, self.attached = number, False
        self.send("regroup", (number, segment.place))

    def send(self, command: str, payload) -> None:
        with suppress(OSError):  # if the rank is gone, ``receive`` reports that and why
            self.reports.send_bytes(serialization.dumps((command, payload)))

    def receive(self) -> tuple[str, Any]:
        """Return the kind and content of the next report: attached, done, failed, aborted, leftovers, report, or print,
        which this method prints. ("gone", exitcode) if the rank has ended."""
        try:
            message = self.reports.recv_bytes()
        except (EOFError, OSError):
            self.process.join(STOP_SECONDS)
            return "gone", self.process.exitcode if self.process.exitcode is not None else 1
        try:
            kind, content = serialization.loads(message)
        except Exception as error:
            return "failed", (f"its report cannot be unpickled here: {type(error).__name__}: {error}", "")
        if kind == "attached":
            self.attached = True
        elif kind == "print":
            name, text = content
            if (stream := getattr(sys, name)) is not None:  # as in a program without a console
                stream.write(text)
                stream.flush()
        return kind, content

    def ask_where(self) -> None:
        with suppress(OSError):
            self._questions.send(None)

    def where(self, over: Callable[[], bool]) -> str:
        """Return in words what the rank is doing; wait for its answer until ``over()``. Call ``ask_where`` first."""
        with suppress(EOFError, OSError):
            while not self._questions.poll(LOOK_SECONDS):
                if over():
                    break
            else:
                return self._questions.recv()
        return "compiled code, from which Python cannot answer"

    @property
    def has_died_silently(self) -> bool:
        """Whether the process has ended although a child of it keeps its end of the pipe open."""
        return self.process.exitcode is not None and not self.reports.poll()

    def ask_to_end(self, kill: bool) -> None:
        if kill:
            self.process.kill()
        else:
            self.send("stop", None)

    def end(self) -> None:
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.reports.close()
        self._questions.close()


def wait_for_reports(ranks, timeout: float) -> list[RankProcess]:
    """Return the ranks that have sent a report, or have ended, as soon as there are any or the timeout is over."""
    by_pipe = {rank.reports: rank for rank in ranks}
    return [by_pipe[pipe] for pipe in connection.wait(list(by_pipe), timeout)]


def end_ranks(ranks: list[RankProcess], segment: Segment, kill: bool, owner: int) -> None:
    """End all ranks and free the shared memory. Not a method, because it also runs when the Cluster is gone."""
    if os.getpid() == owner:  # a fork of the parent has a copy of the Cluster, but does not own the ranks
        for rank in ranks:
            rank.ask_to_end(kill)
        while ranks:
            ranks[-1].end()
            ranks.pop()
        segment.unlink()
    segment.close()
