"""MPI jobs that end before their time, in every way: what is told, and that nothing is left behind."""

import os
import re
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from failing import FAILURES, ON_MPI
from mpiexec import ROOT, Job, ended, needs_mpi, start

pytestmark = needs_mpi

BEGIN = """
    import os, sys, time
    import numpy as np
    import minidist as md

    world = md.init(limit=3)
    x = np.full(5, world.rank + 1)
    md.all_reduce(x, group=world)
    assert (x == 6).all()
    if world.rank == 0:
        print("begun", flush=True)
    time.sleep(0.5)  # until somebody has looked at what the processes have
"""
REDUCE = "md.all_reduce(np.ones(3), group=world, algorithm='ring'{})"
CALL = r"all_reduce\(SUM, float64 \(3,\), ring\), collective 2 of the world"  # the first is the sum of BEGIN
SCRIPTS = {  # what three ranks do, and what they say; a name of a signal: mpiexec gets it while they wait
    "raises": (
        "if world.rank == 1: raise KeyError('no such shard')\nmd.recv(np.empty(3), 1, world)",
        ["rank 1 of 3 failed: KeyError: 'no such shard'\n\nTraceback", r"raise KeyError\('no such shard'\)"],
    ),
    "is killed": ("if world.rank == 1: os.kill(os.getpid(), 9)\nmd.recv(np.empty(3), 1, world)", []),
    "SIGINT": ("time.sleep(600) if world.rank == 1 else md.barrier(world)", []),
    "SIGTERM": ("time.sleep(600) if world.rank == 1 else md.barrier(world)", []),
    "SIGKILL": ("time.sleep(600) if world.rank == 1 else md.barrier(world)", []),
    "exits": ("sys.exit(3) if world.rank == 1 else md.recv(np.empty(3), 1, world)", ["rank 1 has ended its program"]),
    "exits at once": ("os._exit(1) if world.rank == 1 else md.recv(np.empty(3), 1, world)", []),
    "fails in the background": (
        "work = md.all_reduce(np.ones(3 + (world.rank == 2)), group=world, async_op=True, algorithm='ring')\n"
        "time.sleep(1)\nwork.wait()",
        ["Mismatch: ranks", r"float64 \(3,\)", r"float64 \(4,\)", "script.py"],
    ),
    "deadlock": (
        "if world.rank == 2: sys.exit()\nmd.recv(np.empty(3), 1 - world.rank, world)",
        [r"rank \d of 3 failed: Deadlock: no message has reached rank \d for 3 s:", "rank 2 has ended its program"]
        + [rf"rank {r} is in recv: waits for a message from rank {1 - r}, at script.py:" for r in (0, 1)],
    ),
    "deadlock in the background": (
        f"if world.rank == 2: sys.exit()\n{REDUCE.format(', async_op=True')}.wait()",
        ["Deadlock: no message has reached rank", *(rf"rank {r} is in {CALL}: waits for" for r in (0, 1))],
    ),
    "hang": (
        f"if world.rank == 1: time.sleep(600)\n{REDUCE.format('')}",
        ["Hang: no message has reached rank", "rank 1 does not answer: it computes, or is stuck"]
        + [rf"rank {r} is in {CALL}" for r in (0, 2)],
    ),
}
TRACEBACKS = {"raises": 1, "is killed": 0, "deadlock": 0}  # all from the script's lines
NO_FAILURE = """
    time.sleep(2 * (world.rank == 1))  # less than the limit
    md.barrier(world)
    md.isend(np.ones(5), (world.rank + 1) % 3, world, tag=7)
    time.sleep(5 * (world.rank == 2))  # the others have ended for longer than the limit
"""


def script(tmp_path: Path, name: str, body: str) -> Job:
    folder = tmp_path / name.replace(" ", "_")
    folder.mkdir()
    (folder / "script.py").write_text(textwrap.dedent(BEGIN) + textwrap.dedent(body))
    return start(folder, 3, sys.executable, folder / "script.py")


def check_scripts(tmp_path: Path, names: list[str]) -> None:
    """Start a few jobs at once, for they mostly wait; the status is that of the first rank that mpiexec hears of."""
    jobs = {name: script(tmp_path, name, SCRIPTS[name][0]) for name in names}
    for name, job in jobs.items():
        job.until("begun")
        if name.startswith("SIG"):
            os.kill(job.process.pid, getattr(signal, name))
    for name, job in jobs.items():
        status, output = ended(job)
        assert status != 0, f"{name}: {output}"
        if name in TRACEBACKS:
            assert output.count("Traceback") == TRACEBACKS[name] and "init.py" not in output, f"{name}: {output}"
        for pattern in SCRIPTS[name][1]:
            assert re.search(pattern, output), f"{name}: {pattern} is not in:\n{output}"


def check_runs(tmp_path: Path, names: list[str]) -> None:
    """The same for runs of failing.py on a cluster that is the job."""
    jobs = {name: start(tmp_path, 3, sys.executable, ROOT / "tests" / "comm" / "on_job.py", name) for name in names}
    for name, job in jobs.items():
        status, output = ended(job)
        assert status != 0 and "job_cluster.py" not in output, f"{name}: {output}"
        for pattern in FAILURES[name].says:
            assert re.search(pattern, output), f"{name}: {pattern} is not in:\n{output}"


def test_a_rank_that_fails_ends_the_job(tmp_path):
    check_scripts(tmp_path, ["raises", "is killed"])
    check_runs(tmp_path, ["raises"])


@pytest.mark.long
@pytest.mark.parametrize("names", [[*SCRIPTS][2:6], [*SCRIPTS][6:9], [*SCRIPTS][9:]], ids=", ".join)
def test_every_way_to_end_is_told_and_leaves_nothing(tmp_path, names):
    check_scripts(tmp_path, names)


@pytest.mark.long
@pytest.mark.parametrize("names", [ON_MPI[1:4], ON_MPI[4:]], ids=", ".join)
def test_runs_say_what_each_rank_did(tmp_path, names):
    check_runs(tmp_path, names)


@pytest.mark.long
def test_a_wait_shorter_than_the_limit_is_none_of_these(tmp_path):
    status, output = ended(script(tmp_path, "none", NO_FAILURE))
    assert status == 0, output
    for rank in range(3):
        sent = f"minidist: rank {(rank - 1) % 3} sent rank {rank} 5 elements (40 bytes, tag 7) in a message of float64"
        assert f"{sent}, which were never received" in output
