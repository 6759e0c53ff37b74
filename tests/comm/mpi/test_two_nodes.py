"""Two nodes on one machine, over TCP: the bytes that minidist counts between them are those that the kernel counts, and
the fingerprint is that of shared memory."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpiexec import LIMIT, MPIEXEC, ROOT, missing

TWO_NODES = str(ROOT / "benchmarks" / "two_nodes.sh")
TRAIN = [sys.executable, "-m", "minidist.cli", "train", "--dp", "2", "--tp", "2", "--zero", "3", "--steps", "2"]

IS_MPICH = bool(MPIEXEC) and "HYDRA" in subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True).stdout
pytestmark = pytest.mark.skipif(
    bool(missing) or not IS_MPICH, reason="needs mpi4py and MPICH's mpiexec: pip install -e '.[mpi]'"
)

TCP = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
CLIQUES = {"MPIR_CVAR_NUM_CLIQUES": "2", "MPIR_CVAR_CLIQUES_BY_BLOCK": "1", **TCP}

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


def why_no_namespaces() -> str:
    """Why this machine cannot make network namespaces; empty if it can."""
    for program in ("ip", "unshare", "hostname", "bash"):
        if shutil.which(program) is None:
            return f"needs {program}"
    as_root = [] if os.getuid() == 0 else ["--map-root-user"]
    trial = subprocess.run(
        ["unshare", *as_root, "--net", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/run"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return f"needs root, or user namespaces: {trial.stderr.strip()}" if trial.returncode else ""


@pytest.fixture
def namespaces():
    """Skips the test on a machine without network namespaces."""
    if sys.platform != "linux":
        pytest.skip("namespaces belong to Linux")
    if reason := why_no_namespaces():
        pytest.skip(reason)


def with_mpiexec(**environment) -> dict[str, str]:
    """This process's environment, in which programs find mpiexec and this minidist."""
    path = f"{Path(MPIEXEC).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **environment}


def run(*command, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=with_mpiexec(**environment), capture_output=True, text=True, timeout=LIMIT)


def loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def nodes_and_bytes(done: subprocess.CompletedProcess) -> tuple[list[int], int]:
    """What SCRIPT printed: the node of each rank, and how many bytes all ranks sent to other nodes."""
    assert done.returncode == 0, done.stderr
    nodes, sent = re.search(r"nodes ([\d ]+) bytes (\d+)", done.stdout).groups()
    return [int(node) for node in nodes.split()], int(sent)


def bytes_on_cable(done: subprocess.CompletedProcess) -> int:
    """What the kernel counted, from both nodes."""
    return sum(int(sent) for sent in re.findall(r"node\d sent (\d+) bytes", done.stderr))


@pytest.mark.long
@pytest.mark.parametrize(
    ("variable", "nodes"), [("MPIR_CVAR_NUM_CLIQUES", [0, 0, 1]), ("MPIR_CVAR_NOLOCAL", [0, 1, 2])]
)
def test_mpich_treats_ranks_of_one_machine_as_several_nodes_linked_by_tcp(variable, nodes):
    environment = CLIQUES if variable == "MPIR_CVAR_NUM_CLIQUES" else {variable: "1", **TCP}
    before = loopback_bytes()
    found, sent = nodes_and_bytes(run(MPIEXEC, "-n", "3", sys.executable, "-c", SCRIPT, **environment))
    assert found == nodes
    assert sent > 4_000_000
    assert loopback_bytes() - before > sent


@pytest.mark.long
@pytest.mark.parametrize("ranks_per_node", [1, pytest.param(2, marks=pytest.mark.long)])
def test_bytes_between_two_namespaces_are_those_that_minidist_counts(namespaces, ranks_per_node):
    done = run(TWO_NODES, str(ranks_per_node), sys.executable, "-c", SCRIPT)
    nodes, sent = nodes_and_bytes(done)
    assert nodes == [0] * ranks_per_node + [1] * ranks_per_node
    assert sent > 4_000_000
    assert sent < bytes_on_cable(done) < 1.1 * sent  # headers of TCP, acknowledgements, and the start of the job


def fingerprint(*command, **environment) -> str:
    done = run(*command, **environment)
    assert done.returncode == 0, done.stderr
    return re.search(r"fingerprint: (\w+)", done.stdout)[1]


@pytest.fixture(scope="module")
def on_shared_memory() -> str:
    return fingerprint(*TRAIN)


@pytest.mark.long
@pytest.mark.parametrize("environment", [{}, CLIQUES], ids=["one node", "two cliques"])
def test_mpi_has_the_fingerprint_of_shared_memory(environment, on_shared_memory):
    assert fingerprint(MPIEXEC, "-n", "4", *TRAIN, **environment) == on_shared_memory


@pytest.mark.long
def test_two_namespaces_have_the_fingerprint_of_shared_memory(namespaces, on_shared_memory):
    assert fingerprint(TWO_NODES, "2", *TRAIN) == on_shared_memory


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_ends_those_of_the_other_node_whatever_they_do(namespaces, failing):
    script = f"""
import time
import minidist as md

world = md.init()
md.barrier(world)
if world.rank == {failing}:
    raise ValueError("no data")
time.sleep({10 * LIMIT})
"""
    done = run(TWO_NODES, "1", sys.executable, "-c", script)
    assert done.returncode != 0
    assert f"rank {failing} of 2 failed: ValueError: no data" in done.stderr


def test_two_nodes_ends_with_the_status_of_its_command(namespaces):
    assert run(TWO_NODES, "1", "bash", "-c", "exit '3'").returncode == 3
    usage = run(TWO_NODES, "1")
    assert usage.returncode == 2
    assert "RANKS_PER_NODE COMMAND" in usage.stderr


def test_nothing_is_left_when_two_nodes_is_killed(namespaces):
    sleep = f"9{os.getpid()}"  # seconds: what tells these processes from all others
    process = subprocess.Popen([TWO_NODES, "2", "sleep", sleep], env=with_mpiexec())
    try:
        wait_until(lambda: len(sleeping(sleep)) == 4)
    finally:
        process.kill()
        process.wait(LIMIT)
    wait_until(lambda: not sleeping(sleep))


def sleeping(seconds: str) -> list[str]:
    """The processes of this command, and those that started it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [b"sleep", seconds.encode()]:
                found.append(folder.name)
    return found


def wait_until(condition) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
