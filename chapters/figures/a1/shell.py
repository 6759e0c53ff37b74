"""A shell in a folder of its own, which also starts MPI jobs, and plays Slurm for one of them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

LAUNCHERS = ("PMI", "OMPI_", "SLURM_", "MPIR_")  # a notebook may itself run in a job
TWO_NODES = {"MPIR_CVAR_NUM_CLIQUES": "2", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}  # TCP between them
TWO_NODES |= {"MPIR_CVAR_CLIQUES_BY_BLOCK": "1"}  # the first half of the ranks, the second half
STAND_INS = {
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec mpiexec -n 2 "$@"',
    "scontrol": 'echo "$@" >>requeued',
    "minidist": f'exec "{sys.executable}" -m minidist.cli "$@"',
}


class Shell:
    """Runs commands in a new folder.

    Attributes:
        folder: where commands run, and scripts are.
        mpich: whether MPI jobs can run here.
    """

    def __init__(self) -> None:
        self.folder = Path(mkdtemp()).resolve()
        self.path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        self.environment["PATH"] = self.path
        self.mpiexec = shutil.which("mpiexec", path=self.path) if find_spec("mpi4py") else None
        self.mpich = self.mpiexec is not None and "HYDRA" in self.sh(self.mpiexec, "--version")

    def sh(self, *command, **variables) -> str:
        """Run a command with these environment variables; return what it prints."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        environment = self.environment | variables
        done = subprocess.run(command, cwd=self.folder, env=environment, text=True, timeout=300, **streams)
        return done.stdout.replace(f"{self.folder}/", "")

    def job(self, ranks: int, *command, nodes: int = 1, **variables) -> str | None:
        """Run a command on every rank of an MPI job; return what they print, or None where there is no MPICH."""
        if not self.mpich:
            print("no MPICH here: pip install -e '.[mpi]'")
            return None
        return self.sh(self.mpiexec, "-n", str(ranks), *command, **((TWO_NODES if nodes == 2 else {}) | variables))

    def script(self, name: str, text: str) -> tuple[str, str]:
        """Write a program; return the command that runs it."""
        (self.folder / name).write_text(text)
        return sys.executable, name

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


class Slurm:
    """Plays Slurm for one job script: commands that the script calls are stand-ins, and ``srun`` is mpiexec -n 2.

    Args:
        shell: where the job runs.
        text: job script.
    """

    def __init__(self, shell: Shell, text: str) -> None:
        self.shell, self.text = shell, text
        stand_ins = shell.folder / "bin"
        stand_ins.mkdir()
        for name, command in STAND_INS.items():
            (stand_ins / name).write_text(f"#!/bin/bash\n{command}\n")
            (stand_ins / name).chmod(0o755)
        path = f"{stand_ins}{os.pathsep}{shell.path}"
        self.environment = shell.environment | {"PATH": path, "SLURM_JOB_ID": "17"}

    def start(self) -> subprocess.Popen:
        """Start the job, as Slurm does when it is the job's turn."""
        with (self.shell.folder / "gpt-17.out").open("a") as output:
            return subprocess.Popen(
                ["bash", "-c", self.text],
                cwd=self.shell.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_for(self, name: str, seconds: float = 200) -> None:
        """Wait until there is a file of this name.

        Raises:
            TimeoutError: if it does not come.
        """
        end = time.monotonic() + seconds
        while not (self.shell.folder / name).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"{name} is not there after {seconds} s: {self.output()}")
            time.sleep(0.02)

    def end(self, job: subprocess.Popen) -> None:
        """End all processes of a job, as Slurm does when its time is up."""
        os.killpg(job.pid, signal.SIGTERM)
        job.wait(200)

    def output(self) -> str:
        """Return what the job has printed, in all of its lives."""
        return (self.shell.folder / "gpt-17.out").read_text()
