"""Jobs under ``mpiexec``, each with a time limit, and what they leave: processes, shared memory, temporary files."""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from scripts import LIMIT, until

MARK = "MINIDIST_TEST_JOB"  # in the environment of all processes of a job: by it they are found, in whatever session
ROOT = Path(__file__).parents[2]
TOPOLOGY = Path(__file__).with_name("one_core.xml")

_path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
MPIEXEC = shutil.which("mpiexec", path=_path)

missing = "mpi4py" if find_spec("mpi4py") is None else "mpiexec" if MPIEXEC is None else ""
needs_mpi = pytest.mark.skipif(bool(missing), reason=f"no {missing} here: pip install -e '.[mpi]'")
TWO_NODES = {"MPIR_CVAR_NUM_CLIQUES": "2"}  # MPICH takes ranks 0, 2, 4 for one node and ranks 1, 3 for another


class Job:
    """``mpiexec -n RANKS COMMAND``, its output in a file, its temporary files in a folder of its own."""

    def __init__(self, tmp_path: Path, ranks: int, *command, environment: dict[str, str] | None = None) -> None:
        self.mark, self.mapped = uuid.uuid4().hex, set()  # the shared memory that it had mapped when somebody looked
        self.output, self.folder = tmp_path / f"output-{self.mark[:8]}.txt", tmp_path.parent / self.mark[:8]
        self.folder.mkdir()  # its path is short: that of a Unix socket in it has 108 bytes at most
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [MPIEXEC, "-n", str(ranks), *map(str, command)], stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, env=of_a_job(self.folder, **{MARK: self.mark}) | (environment or {}),
                cwd=tmp_path, start_new_session=True,
            )  # fmt: skip

    def written(self) -> str:
        return self.output.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """The processes of the job that still run, mpiexec's own among them."""
        every = psutil.process_iter(["environ"])
        return [each for each in every if (each.info["environ"] or {}).get(MARK) == self.mark]

    def left(self) -> list:
        """Return what is still there: processes, shared memory, temporary files."""
        return [*self.processes(), *filter(os.path.exists, self.mapped), *self.folder.iterdir()]

    def wait(self, condition: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
        """Wait for something. If it never comes, end all processes of the job, and the test."""
        with suppress(AssertionError):
            until(lambda: condition() or self.process.poll() is not None, limit)
        if not condition():
            for each in self.processes():
                each.kill()
            pytest.fail(f"the job did not {what}:\n{self.written()}")

    def until(self, word: str) -> None:
        """Wait until the job has written a word, and note the shared memory that its processes have mapped then."""
        self.wait(lambda: word in self.written(), f"write {word!r}")
        for each in self.processes():
            with suppress(psutil.Error):
                self.mapped |= {file.path for file in each.memory_maps() if file.path.startswith("/dev/shm/")}

    def ended(self, limit: float = LIMIT) -> tuple[int, str]:
        """Return mpiexec's exit status and what the job wrote. Check that the job leaves nothing."""
        self.wait(lambda: self.process.poll() is not None, f"end within {limit:g} s", limit)
        with suppress(AssertionError):
            until(lambda: not self.left())
        assert self.left() == []
        return self.process.returncode, self.written()


def of_a_job(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a job whose temporary files are in a folder of its own.

    Unless it is told the topology of the machine, MPICH's launcher writes it to a file in /tmp, which a job that is
    killed leaves there.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDRA", "PYTEST_"))}
    own = {"TMPDIR": str(folder), "HWLOC_XMLFILE": str(TOPOLOGY), "PYTHONUNBUFFERED": "1", "PATH": _path}
    return inherited | own | {"PYTHONPATH": str(ROOT)} | more
