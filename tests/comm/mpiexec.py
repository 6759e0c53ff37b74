"""Jobs under ``mpiexec``, each with a time limit, and what they leave: processes, shared memory, temporary files."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts import LIMIT, processes, until

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
    """A job that runs, or has ended, its temporary files in a folder of its own.

    Attributes:
        files: the shared memory that its processes had mapped when somebody looked.
    """

    process: subprocess.Popen
    mark: str
    folder: Path
    output: Path
    files: set[str]

    def fail(self, why: str) -> None:
        """End all processes of the job, and the test."""
        for pid in self.commands():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        pytest.fail(f"the job {why}:\n{self.written()}")

    def written(self) -> str:
        return self.output.read_text(errors="replace")

    def until(self, word: str) -> None:
        """Wait until the job has written a word, and note the shared memory that its processes have mapped then."""
        with suppress(AssertionError):
            until(lambda: word in self.written() or self.process.poll() is not None)
        if word not in self.written():
            self.fail(f"did not write {word!r}")
        for pid in self.commands():
            with suppress(OSError):
                names = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
                self.files |= {n for n in names if n.startswith("/dev/shm/") and not n.endswith("(deleted)")}

    def commands(self) -> dict[int, list[str]]:
        """The processes of the job that still run, mpiexec's own among them."""
        found = {}
        for pid, command, *_ in processes():
            with suppress(OSError):
                if f"{MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found[pid] = command
        return found

    def left(self) -> list:
        """What is still there: processes, shared memory, temporary files."""
        return [*self.commands().items(), *filter(os.path.exists, self.files), *self.folder.iterdir()]


def of_a_job(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a job whose temporary files are in a folder of its own.

    Unless it is told the topology of the machine, MPICH's launcher writes it to a file in /tmp, which a job that is
    killed leaves there.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDRA", "PYTEST_"))}
    own = {"TMPDIR": str(folder), "HWLOC_XMLFILE": str(TOPOLOGY), "PYTHONUNBUFFERED": "1", "PATH": _path}
    return inherited | own | {"PYTHONPATH": str(ROOT)} | more


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
    try:
        status = job.process.wait(limit)
    except subprocess.TimeoutExpired:
        job.fail(f"did not end within {limit:g} s")
    with suppress(AssertionError):
        until(lambda: not job.left())
    assert job.left() == []
    return status, job.written()


def run(tmp_path: Path, ranks: int, *command, environment=None, limit: float = LIMIT) -> tuple[int, str]:
    return ended(start(tmp_path, ranks, *command, environment=environment), limit)
