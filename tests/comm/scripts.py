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

LIMIT = 120  # seconds, of each wait


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


def processes() -> Iterator[tuple[int, list[str], str, int]]:
    """Of each living process its id, command, state as one letter, and session."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, _, _, session, *_ = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                command = (folder / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
                if state not in "ZX":
                    yield int(folder.name), command, state, int(session)


def states_of(session: int) -> list[str]:
    return [state for *_, state, its in processes() if its == session]


def segments_of(pid: int) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"minidist-{pid}-*")]


def assert_nothing_left(pid: int) -> None:
    """Of a script's session no process, and no shared memory."""
    if sys.platform == "linux":
        until(lambda: not states_of(pid) and not segments_of(pid))
