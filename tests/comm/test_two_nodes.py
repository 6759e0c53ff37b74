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
pytestmark = pytest.mark.long

COUNT, TWO_NODES = [sys.executable, "-c", SCRIPT], str(ROOT / "benchmarks" / "two_nodes.sh")
TRAIN = [sys.executable, "-m", "minidist.cli", "train", "--dp", "2", "--tp", "2", "--zero", "3", "--steps", "2"]
CLIQUES = {"MPIR_CVAR_NUM_CLIQUES": "2", "MPIR_CVAR_CLIQUES_BY_BLOCK": "1", "MPIR_CVAR_CH4_NETMOD": "ofi"}
CLIQUES["FI_PROVIDER"] = "tcp"


def run(folder: Path, *command, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=of_a_job(folder, **environment), capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture(autouse=True)
def namespaces(tmp_path):
    """Skips the test on a machine without MPICH, and on one that cannot make network namespaces."""
    if missing or "HYDRA" not in run(tmp_path, MPIEXEC, "--version").stdout:
        pytest.skip("needs mpi4py and MPICH's mpiexec: pip install -e '.[mpi]'")
    if lacking := [name for name in ("ip", "unshare", "hostname", "bash") if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(lacking)}")
    command = f"unshare {'--map-root-user' * bool(os.getuid())} --net --mount --pid --fork mount -t tmpfs tmpfs /run"
    if (trial := run(tmp_path, *command.split())).returncode:
        pytest.skip(f"needs root, or user namespaces: {trial.stderr.strip()}")


def test_bytes_between_two_namespaces_are_those_that_minidist_counts(tmp_path):
    """The kernel also counts headers of TCP, acknowledgements, and the start of the job."""
    for each in (1, 2):
        done = run(tmp_path, TWO_NODES, str(each), *COUNT)
        assert done.returncode == 0, done.stderr
        nodes, sent = re.search(r"nodes ([\d ]+) bytes (\d+)", done.stdout).groups()
        on_cable = sum(int(count) for count in re.findall(r"node\d sent (\d+) bytes", done.stderr))
        assert nodes.split() == ["0"] * each + ["1"] * each and 4_000_000 < int(sent) < on_cable < 1.1 * int(sent)


def test_every_kind_of_node_has_the_fingerprint_of_shared_memory(tmp_path):
    on_mpi, found = [MPIEXEC, "-n", "4", *TRAIN], set()
    for command in (TRAIN, on_mpi, [TWO_NODES, "2", *TRAIN]):
        done = run(tmp_path, *command, **CLIQUES if command == on_mpi else {})
        assert done.returncode == 0, done.stderr
        found.add(re.search(r"fingerprint: (\w+)", done.stdout)[1])
    assert len(found) == 1


def test_a_rank_that_fails_ends_those_of_the_other_node(tmp_path):
    done = run(tmp_path, TWO_NODES, "1", sys.executable, Path(__file__).with_name("on_job.py"), "init", "raises")
    assert done.returncode != 0 and "rank 1 of 2 failed: ValueError: no such shard" in done.stderr
