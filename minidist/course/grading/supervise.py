"""Running a command that may do anything, and ending all of it: limits of time, memory and processes.

The command gets a session of its own, and a mark in its environment that its descendants inherit. Whatever carries the
mark is counted against the limits and ended at the end, also what has left the process group, as a daemon does.

This keeps accidents apart from each other. It is no sandbox: a process can remove the mark, read files and use the
network.
"""

import os
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from minidist.course.grading.judge import NO_OTHER_PLUGINS

MARK = "MINIDIST_SUPERVISED"
SHARED_MEMORY = Path("/dev/shm")
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Raises:
        ValueError: for limits that nothing could run in.
    """

    seconds: float = 600.0  # of wall time, over all its tasks
    memory: float = 4.0  # GiB, of one process
    processes: int = 64  # at once

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"--timeout {self.seconds:g} must be more than 0 seconds")
        if not self.memory >= 1:
            raise ValueError(f"--memory {self.memory:g} must be at least 1 GiB, which Python and NumPy need")
        if self.processes < 16:
            raise ValueError(f"--processes {self.processes} must be at least 16: the ranks of a task are processes too")


def supervise(
    command: Sequence[str], scratch: Path, output: Path, limits: Limits, seconds: float, stop: threading.Event
) -> str:
    """Run a command to its end, or to a limit, and end everything that it has started.

    Args:
        command: what to run.
        scratch: where it runs; its HOME and folder for temporary files too.
        output: a file for what it prints.
        limits: for the number of processes. (That for memory the command sets itself.)
        seconds: for it all.
        stop: when set, end it at once.

    Returns:
        "" where it came to its own end, or which limit it met.
    """
    mark = uuid.uuid4().hex
    environment = os.environ | {
        MARK: mark,
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "PYTHONDONTWRITEBYTECODE": "1",
        **NO_OTHER_PLUGINS,
    }
    deadline = time.monotonic() + seconds

    with open(output, "wb") as file:
        process = subprocess.Popen(
            command, cwd=scratch, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        while process.poll() is None:
            if stop.is_set():
                return "an interrupt"
            if time.monotonic() > deadline:
                return f"the time limit of {limits.seconds:g} s"
            if len(marked(mark)) > limits.processes:
                return f"the limit of {limits.processes} processes"
            time.sleep(POLL_SECONDS)
        return ""
    finally:
        end_all(mark)
        process.wait()
        for segment in SHARED_MEMORY.glob(f"minidist-{process.pid}-*"):  # of ranks whose parent was killed
            segment.unlink(missing_ok=True)


def marked(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):  # it has ended, or is another user's
            continue
    return found


def end_all(mark: str) -> None:
    """Kill what carries the mark, until nothing does: stopped first, so that it cannot start more meanwhile."""
    while processes := marked(mark):
        for signal in ("suspend", "kill"):
            for process in processes:
                try:
                    getattr(process, signal)()
                except psutil.Error:
                    continue
        psutil.wait_procs(processes, timeout=2)
