"""Runs a command that may do anything within limits of time, memory and processes, and ends every process of it.

The command gets a session of its own and a mark in its environment, which its descendants inherit. Every process with
the mark counts against the limits and is killed at the end, even one that left the process group, as a daemon does.

This contains accidents. It is not a security sandbox: a process can remove the mark, read files and use the network.
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

MARK = "MINIDIST_SUPERVISED"
SHARED_MEMORY = Path("/dev/shm")
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Raises:
        ValueError: if nothing could run within the limits.
    """

    seconds: float = 600.0  # of wall time, over all its tasks
    memory: float = 4.0  # GiB, of each process
    processes: int = 64  # at once

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"--timeout {self.seconds:g} must be more than 0 seconds")
        if not self.memory >= 1:
            raise ValueError(f"--memory {self.memory:g} must be at least 1 GiB, which Python and NumPy need")
        if self.processes < 16:
            raise ValueError(f"--processes {self.processes} must be at least 16: each rank of a task is a process")


def supervise(
    command: Sequence[str],
    environment: dict[str, str],
    scratch: Path,
    output: Path,
    limits: Limits,
    seconds: float,
    stop: threading.Event,
) -> str:
    """Run a command until it ends or exceeds a limit, then end every process that it started.

    Args:
        command: what to run.
        environment: variables to set for it.
        scratch: the folder it runs in, which is also its HOME and its folder for temporary files.
        output: a file for what it prints.
        limits: how many processes it may have. (The command sets the memory limit itself.)
        seconds: time limit for this command.
        stop: when set, end it at once.

    Returns:
        "" if it ended by itself, else the limit that it exceeded.
    """
    mark = uuid.uuid4().hex
    home = {"HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = os.environ | home | environment | {MARK: mark}
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
    """All running processes with the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
    return found


def end_all(mark: str) -> None:
    """Kill all processes with the mark, again and again until none is left. Suspended first, they cannot start more."""
    while processes := marked(mark):
        for signal in ("suspend", "kill"):
            for process in processes:
                try:
                    getattr(process, signal)()
                except psutil.Error:
                    continue
        psutil.wait_procs(processes, timeout=2)
