"""Runs a user's script, and lists what it leaves: processes and shared memory."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

LIMIT = 300  # seconds, of each wait


def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def python(*arguments: str, **more) -> subprocess.CompletedProcess:
    """Run Python in a process of its own; return how it ended, and the text that it printed."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=LIMIT, **more)


@contextmanager
def running(folder: Path, body: str, **environment: str) -> Iterator[subprocess.Popen]:
    """A script without ``if __name__ == "__main__"``, in a session of its own, all of which ends with the block."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(body))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | environment,
    )  # fmt: skip
    limit = threading.Timer(LIMIT, process.kill)  # so that a read from it ends
    limit.daemon = True
    limit.start()
    try:
        yield process
    finally:
        limit.cancel()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def in_script(folder: Path, body: str, **environment: str) -> tuple[int, str, str]:
    """A script's exit status, output and errors. It leaves nothing."""
    with running(folder, body, **environment) as process:
        out, err = process.communicate(timeout=LIMIT)
        assert_nothing_left(process.pid)
        return process.returncode, out, err


def states_of(session: int) -> list[str]:
    """Return the state of each living process of a session, in psutil's words."""
    states = []
    for each in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getsid(each.pid) == session and each.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                states.append(each.info["status"])
    return states


def segments_of(pid: int) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"minidist-{pid}-*")]


def assert_nothing_left(pid: int) -> None:
    """Check that a script's session has left no process and no shared memory."""
    if sys.platform == "linux":
        until(lambda: not states_of(pid) and not segments_of(pid))
