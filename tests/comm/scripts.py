"""Runs a user's script, and lists what it leaves: processes and shared memory."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

LIMIT = 60  # seconds, of each wait


def in_script(tmp_path, body: str, wait: bool = True):
    """Run a script as a user would: a plain file, without ``if __name__ == "__main__"``."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(body))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    if not wait:
        limit = threading.Timer(LIMIT, process.kill)  # so that a read from it ends
        limit.daemon = True
        limit.start()
        return process
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def processes_of(pid: int) -> dict[str, str]:
    """For each living process of a session: its folder in /proc, and its state as one letter."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == pid and fields[0] != "Z":
                found[str(folder)] = fields[0]
    return found


def group_of(pid: int) -> list[str]:
    """The command lines of the living processes of a session."""
    found = []
    for folder in processes_of(pid):
        with suppress(OSError):
            found.append(Path(folder, "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def states_of(pid: int) -> list[str]:
    return list(processes_of(pid).values())


def segments_of(pid: int) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"minidist-{pid}-")]


def left_after(pid: int, seconds: float = 60.0) -> tuple[list[str], list[str]]:
    """The processes and the shared memory of a script that are still there, at the latest after so long."""
    deadline = time.monotonic() + seconds
    while (group_of(pid) or segments_of(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return group_of(pid), segments_of(pid)
