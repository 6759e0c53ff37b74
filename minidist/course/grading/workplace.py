"""A folder in which graders work, and a process that watches over it (supervisor.py).

Whatever happens to this process and to those in the folder, all processes end and the folder disappears.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path

from minidist.course.answers import ROOT

PACKAGES = ("pytest", "psutil")  # no other command needs them, so they are optional
POLL_SECONDS = 0.05
END_SECONDS = 60.0  # for the supervisor to end everything


@dataclass(frozen=True)
class Limits:
    """Limits on what one submission may use.

    Raises:
        ValueError: if nothing could run within them.
    """

    seconds: float = inf  # of wall time, over all its tasks
    memory: float = inf  # GiB, of each process
    processes: float = inf  # at once

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"--timeout must be more than 0 seconds, got {self.seconds:g}")
        if not self.memory >= 1:
            raise ValueError(f"--memory must be at least 1 GiB, which Python and NumPy need, got {self.memory:g}")
        if self.processes < 16:
            raise ValueError(f"--processes must be at least 16, got {self.processes}: each rank of a task is a process")


NO_LIMITS = Limits()  # for a learner's own answers


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command."""

    status: int | None  # its exit status; None if it was ended
    exceeded: str = ""  # "time" or "processes", if it exceeded that limit


@contextmanager
def several_at_once(jobs: int) -> Iterator[tuple[ThreadPoolExecutor, Callable[[], None]]]:
    """Context manager: yield a pool of ``jobs`` threads and a function that raises in them once the block fails."""
    failed = threading.Event()

    def go_on() -> None:
        if failed.is_set():
            raise RuntimeError("interrupted")

    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield pool, go_on
        except BaseException:
            failed.set()
            pool.shutdown(cancel_futures=True)
            raise


class Workplace:
    """Context manager: a temporary folder and the process that supervises it.

    Attributes:
        folder: path of the folder.

    Raises:
        ValueError: if a package that graders need is missing.
    """

    def __init__(self) -> None:
        if missing := [name for name in PACKAGES if find_spec(name) is None]:
            raise ValueError(f"the course needs {' and '.join(missing)}: pip install -e '.[course]'")
        command = [sys.executable, "-m", "minidist.course.grading.supervisor", tempfile.gettempdir()]
        self._supervisor = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},  # a relative path means another folder there
            start_new_session=True,  # Ctrl-C in the terminal must not reach it: it ends last
        )  # fmt: skip
        assert self._supervisor.stdin and self._supervisor.stdout
        self._requests, self._answers = self._supervisor.stdin, self._supervisor.stdout
        self.folder = Path(self._answer()["folder"])
        self._folders = 0

    def __enter__(self) -> "Workplace":
        return self

    def __exit__(self, *_) -> None:
        with suppress(OSError):
            self._requests.close()
        try:
            self._supervisor.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        self._answers.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # in case something has killed the supervisor

    def new_folder(self) -> Path:
        """Create an empty folder inside ``folder`` and return its path."""
        new = self.folder / str(self._folders)
        new.mkdir()
        self._folders += 1
        return new

    def run(
        self,
        command: list[str],
        environment: dict[str, str],
        cwd: Path,
        output: Path,
        limits: Limits = NO_LIMITS,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Run a command; wait until it and all processes that it started have ended.

        Args:
            command, environment, output: see ``supervise``.
            meanwhile: called repeatedly. If it raises an exception, leave the ``with`` block, which ends everything.

        Raises:
            RuntimeError: if something has killed the supervisor.
        """
        places = {"cwd": str(cwd), "output": str(output)}
        request = {"command": command, "environment": environment} | places | asdict(limits)
        with suppress(OSError):  # if the supervisor is gone, its answer will be missing
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        answers: list[dict | None] = []
        reader = threading.Thread(target=lambda: answers.append(self._read()), daemon=True)
        reader.start()
        while reader.is_alive():
            meanwhile()
            reader.join(POLL_SECONDS)
        return Outcome(**self._checked(answers[0]))

    def _answer(self) -> dict:
        return self._checked(self._read())

    def _read(self) -> dict | None:
        line = self._answers.readline()
        return json.loads(line) if line.endswith("\n") else None

    def _checked(self, answer: dict | None) -> dict:
        if answer is None:
            raise RuntimeError("something has killed the process that supervises the graders")
        return answer
