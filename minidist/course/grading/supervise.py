"""Runs a command that may do anything within limits of time and processes, and ends every process of it.

This contains accidents. It is not a security sandbox: a process can read files, use the network, and kill this one.
"""

import math
import os
import signal
import subprocess
import threading
import time
import uuid
from contextlib import suppress

from minidist.comm.runtime.starting import end_with_parent
from minidist.comm.runtime.sweep import sweep
from minidist.course.grading.descendants import MARK, end_all, running
from minidist.course.grading.namespaces import can_have_own_shared_memory, have_own_shared_memory

POLL_SECONDS = 0.25  # to list the processes takes milliseconds
GRACE_SECONDS = 3.0  # for an interrupted command to end by itself


def supervise(
    command: list[str],
    environment: dict[str, str],
    cwd: str,
    output: str,
    seconds: float | None,
    processes: int | None,
    interrupt: threading.Event,
) -> dict:
    """Run a command until it ends or exceeds a limit, then end every process that it started.

    Args:
        command: what to run; it gets a session of its own.
        environment: variables to set for it.
        cwd: the folder it runs in.
        output: a file for what it prints.
        seconds: its time limit; None for none.
        processes: how many processes it may have at once, itself included; None for any number.
        interrupt: when set, end it at once.

    Returns:
        The fields of workplace.py's Outcome.
    """
    mark = uuid.uuid4().hex
    deadline = time.monotonic() + (math.inf if seconds is None else seconds)
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command, cwd=cwd, env=os.environ | environment | {MARK: mark}, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=(_prepare if can_have_own_shared_memory() else end_with_parent) if os.name == "posix" else None,
        )  # fmt: skip
    exceeded = ""
    try:
        while not exceeded and process.poll() is None:
            if interrupt.is_set():
                _interrupt(process)
                break
            if time.monotonic() > deadline:
                exceeded = "time"
            elif processes is not None and len(running(mark)) > processes:
                exceeded = "processes"
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
    finally:
        status = process.returncode
        end_all(mark)
        process.wait()
        sweep()  # the shared memory of ranks whose parent was killed
    return {"status": status, "exceeded": exceeded}


def _prepare() -> None:
    """Run in the new process, before the command."""
    end_with_parent()
    have_own_shared_memory()


def _interrupt(process: subprocess.Popen) -> None:
    """Let the command end its ranks and free their memory, which only Linux does for it (comm/runtime/processes)."""
    if os.name == "posix":
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
