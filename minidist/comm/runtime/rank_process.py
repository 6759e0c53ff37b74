"""A rank's process, as its parent handles it: start it, exchange messages with it, and end it."""

import os
import sys
import threading
import time
from contextlib import suppress

from multiprocess import connection

from minidist.comm.runtime import serialization
from minidist.comm.runtime.worker import Place, rank_main
from minidist.comm.transports.shared_memory import Segment

STOP_SECONDS = 2.0  # for an idle rank to exit by itself


class RankProcess:
    """The parent's handle on one rank."""

    def __init__(self, context, number: int, segment: Segment) -> None:
        self.number = number
        self.attached = False  # whether it has the shared memory, and so no longer needs the memory's name
        self.reports, commands = context.Pipe()
        self._questions, questions = context.Pipe()
        # a process's parent is a thread, to Linux: the fork server's only one, or this one, which may end early
        parent_stays = (
            context.get_start_method() == "forkserver" or threading.current_thread() is threading.main_thread()
        )
        arguments = (Place.of(number, segment), commands, questions, parent_stays)
        self.process = context.Process(target=rank_main, args=arguments, daemon=True, name=f"rank {number}")
        self.process.start()
        commands.close()
        questions.close()

    def regroup(self, number: int, segment: Segment) -> None:
        """Give the rank another number, in another segment."""
        self.number, self.attached = number, False
        self.send("regroup", Place.of(number, segment))

    def send(self, command: str, payload) -> None:
        with suppress(OSError):  # if the rank is gone, ``receive`` reports that and why
            self.reports.send_bytes(serialization.dumps((command, payload)))

    def receive(self) -> tuple[str, object]:
        """The next report and its kind: attached, done, failed, aborted, leftovers, report, or print (which this
        prints). ("gone", exitcode) if the rank has ended."""
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
            stream = getattr(sys, name)
            stream.write(text)
            stream.flush()
        return kind, content

    def ask_where(self) -> None:
        with suppress(OSError):
            self._questions.send(None)

    def where(self, deadline: float) -> str:
        """What the rank is doing now, in words. Call ``ask_where`` first."""
        with suppress(EOFError, OSError):
            if self._questions.poll(max(0.0, deadline - time.monotonic())):
                return self._questions.recv()
        return "a place in compiled code that does not let Python answer"

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


def with_reports(ranks, timeout: float) -> list[RankProcess]:
    """The ranks that have sent a report, or have ended, within the timeout."""
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
