"""Jobs under ``mpiexec``, each with a time limit, and what they leave: processes, shared memory, temporary files."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

LIMIT = 120  # seconds for one job on a busy machine; an idle one takes two or three
MARK = "MINIDIST_TEST_JOB"  # in the environment of all processes of a job: by it they are found, in whatever session
ROOT = Path(__file__).parents[2]
TOPOLOGY = Path(__file__).with_name("one_core.xml")

_path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
MPIEXEC = shutil.which("mpiexec", path=_path)

missing = "mpi4py" if find_spec("mpi4py") is None else "mpiexec" if MPIEXEC is None else ""
needs_mpi = pytest.mark.skipif(bool(missing), reason=f"no {missing} here: pip install -e '.[mpi]'")
TWO_NODES = {"MPIR_CVAR_NUM_CLIQUES": "2"}  # MPICH takes ranks 0, 2, 4 for one node and ranks 1, 3 for another


@dataclass
class Job:
    """A job that runs, or has ended.

    Attributes:
        folder: where its temporary files are.
        files: the shared memory that its processes had mapped when somebody looked.
    """

    process: subprocess.Popen
    mark: str
    folder: Path
    output: Path
    files: set[str]

    def wait(self, limit: float = LIMIT) -> tuple[int, str]:
        """The exit status of mpiexec, and all that the job has written."""
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the job did not end within {limit:g} s:\n{self.output.read_text()}")
        return self.process.returncode, self.output.read_text(errors="replace")

    def until(self, word: str) -> None:
        """Wait until the job has written a word."""
        deadline = time.monotonic() + LIMIT
        while word not in self.output.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"the job did not write {word!r}:\n{self.output.read_text()}")
            time.sleep(0.05)
        self.look()

    def look(self) -> None:
        """Note the shared memory that its processes have mapped."""
        for pid in self.pids():
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    name = line.split(maxsplit=5)[-1]
                    if name.startswith("/dev/shm/") and not name.endswith("(deleted)"):
                        self.files.add(name)

    def pids(self) -> list[int]:
        """The processes of the job that still run, mpiexec's own among them."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    dead = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
                    if not dead and f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                        found.append(int(folder.name))
        return found

    def left(self, seconds: float = 15) -> list[str]:
        """What is still there, at the latest after so long."""
        deadline = time.monotonic() + seconds
        while (found := self._left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _left(self) -> list[str]:
        processes = [f"process {pid}: {command_of(pid)}" for pid in self.pids()]
        return [*processes, *filter(os.path.exists, self.files), *map(str, self.folder.iterdir())]

    def kill(self) -> None:
        for pid in self.pids():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return "gone"


def of_a_job(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a job whose temporary files are in a folder of its own.

    Unless it is told the topology of the machine, MPICH's launcher writes it to a file in /tmp, which a job that is
    killed leaves there.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDRA", "PYTEST_"))}
    own = {
        "TMPDIR": str(folder),
        "HWLOC_XMLFILE": str(TOPOLOGY),
        "PYTHONUNBUFFERED": "1",
        "PATH": _path,
        "PYTHONPATH": str(ROOT),
    }
    return inherited | own | more


def start(tmp_path: Path, ranks: int, *command, environment: dict[str, str] | None = None) -> Job:
    """``mpiexec -n RANKS COMMAND``, its output in a file."""
    mark = uuid.uuid4().hex
    output, folder = tmp_path / f"output-{mark[:8]}.txt", tmp_path.parent / mark[:8]
    folder.mkdir()  # its path is short: that of a Unix socket in it has 108 bytes at most
    with output.open("w") as file:
        process = subprocess.Popen(
            [MPIEXEC, "-n", str(ranks), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=of_a_job(folder, **{MARK: mark}) | (environment or {}),
            cwd=tmp_path,
            start_new_session=True,
        )
    return Job(process, mark, folder, output, set())


def ended(job: Job, limit: float = LIMIT) -> tuple[int, str]:
    """How a job ends: mpiexec's exit status, and what the job wrote. It leaves nothing."""
    found = job.wait(limit)
    assert not (left := job.left()), left
    return found


def run(tmp_path: Path, ranks: int, *command, environment=None, limit: float = LIMIT) -> tuple[int, str]:
    """Run a job to its end."""
    return ended(start(tmp_path, ranks, *command, environment=environment), limit)
