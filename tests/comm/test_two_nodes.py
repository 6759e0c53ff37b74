"""Two nodes on one machine, over TCP: the bytes that minidist counts between them are those that the kernel counts, and
the fingerprint is that of shared memory."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mpiexec import LIMIT, MPIEXEC, ROOT, missing, of_a_job
from scripts import processes, until

SCRIPT = """
import numpy as np
import minidist as md

world = md.init()
before = world.traffic
x = np.full(1_000_003, float(world.rank), np.float32)
md.all_reduce(x, group=world, algorithm="ring")
assert (x == sum(range(world.size))).all()
sent = np.array([(world.traffic - before).bytes_between_nodes])
md.all_reduce(sent, group=world)
if world.rank == 0:
    print("nodes", *world.nodes, "bytes", int(sent[0]))
"""
COUNT, TWO_NODES = [sys.executable, "-c", SCRIPT], str(ROOT / "benchmarks" / "two_nodes.sh")
TRAIN = [sys.executable, "-m", "minidist.cli", "train", "--dp", "2", "--tp", "2", "--zero", "3", "--steps", "2"]
TCP = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
CLIQUES = {"MPIR_CVAR_NUM_CLIQUES": "2", "MPIR_CVAR_CLIQUES_BY_BLOCK": "1", **TCP}


def run(folder: Path, *command, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=of_a_job(folder, **environment), capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture(autouse=True)
def mpich(tmp_path):
    if missing or "HYDRA" not in run(tmp_path, MPIEXEC, "--version").stdout:
        pytest.skip("needs mpi4py and MPICH's mpiexec: pip install -e '.[mpi]'")


@pytest.fixture
def namespaces(tmp_path):
    """Skips the test on a machine that cannot make network namespaces."""
    if lacking := [name for name in ("ip", "unshare", "hostname", "bash") if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(lacking)}")
    as_root = [] if os.getuid() == 0 else ["--map-root-user"]
    mount = ["mount", "-t", "tmpfs", "tmpfs", "/run"]
    trial = run(tmp_path, "unshare", *as_root, "--net", "--mount", "--pid", "--fork", *mount)
    if trial.returncode:
        pytest.skip(f"needs root, or user namespaces: {trial.stderr.strip()}")


@pytest.mark.long
def test_bytes_between_two_namespaces_are_those_that_minidist_counts(namespaces, tmp_path):
    """The kernel also counts headers of TCP, acknowledgements, and the start of the job."""
    for each in (1, 2):
        done = run(tmp_path, TWO_NODES, str(each), *COUNT)
        assert done.returncode == 0, done.stderr
        nodes, sent = re.search(r"nodes ([\d ]+) bytes (\d+)", done.stdout).groups()
        on_cable = sum(int(count) for count in re.findall(r"node\d sent (\d+) bytes", done.stderr))
        assert nodes.split() == ["0"] * each + ["1"] * each and 4_000_000 < int(sent) < on_cable < 1.1 * int(sent)


@pytest.mark.long
def test_every_kind_of_node_has_the_fingerprint_of_shared_memory(namespaces, tmp_path):
    on_mpi, found = [MPIEXEC, "-n", "4", *TRAIN], set()
    for command, environment in ((TRAIN, {}), (on_mpi, CLIQUES), ([TWO_NODES, "2", *TRAIN], {})):
        done = run(tmp_path, *command, **environment)
        assert done.returncode == 0, done.stderr
        found.add(re.search(r"fingerprint: (\w+)", done.stdout)[1])
    assert len(found) == 1


@pytest.mark.long
def test_a_rank_that_fails_ends_those_of_the_other_node_whatever_they_do(namespaces, tmp_path):
    for failing in (0, 1):
        script = f"""if True:
            import time
            import minidist as md
            world = md.init()
            md.barrier(world)
            if world.rank == {failing}:
                raise ValueError("no data")
            time.sleep({10 * LIMIT})
        """
        done = run(tmp_path, TWO_NODES, "1", sys.executable, "-c", script)
        assert done.returncode != 0 and f"rank {failing} of 2 failed: ValueError: no data" in done.stderr


@pytest.mark.long
def test_nothing_is_left_when_two_nodes_is_killed(namespaces, tmp_path):
    command = ["sleep", f"9{os.getpid()}"]  # seconds: what tells these processes from all others

    def running() -> int:
        return sum(its == command for _, its, *_ in processes())

    process = subprocess.Popen([TWO_NODES, "2", *command], env=of_a_job(tmp_path))
    try:
        until(lambda: running() == 4)
    finally:
        process.kill()
        process.wait(LIMIT)
    until(lambda: running() == 0)
