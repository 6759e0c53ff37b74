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
WAITS = "md.recv(np.empty(3), 1, world)"
SCRIPTS = {  # what three ranks do, what they say, and how many tracebacks, all from the script's lines
    "raises": (
        f"if world.rank == 1: raise KeyError('no such shard')\n{WAITS}",
        ["rank 1 of 3 failed: KeyError: 'no such shard'\n\nTraceback", r"raise KeyError\('no such shard'\)"], 1,
    ),
    "is killed": (f"if world.rank == 1: os.kill(os.getpid(), 9)\n{WAITS}", [], 0),
    "SIGKILL": ("time.sleep(600) if world.rank == 1 else md.barrier(world)", [], 0),  # mpiexec gets it
    "exits": (f"sys.exit(3) if world.rank == 1 else {WAITS}", ["rank 1 has ended its program"], 0),
    "exits at once": (f"os._exit(1) if world.rank == 1 else {WAITS}", [], 0),
    "deadlock": (
        "if world.rank == 2: sys.exit()\nmd.recv(np.empty(3), 1 - world.rank, world)",
        [r"rank \d of 3 failed: Deadlock: no message has reached rank \d for 3 s:", "rank 2 has ended its program"]
        + [rf"rank {r} is in recv: waits for a message from rank {1 - r}, at script.py:" for r in (0, 1)], 0,
    ),
    "hang": (
        "if world.rank == 1: time.sleep(600)\nmd.all_reduce(np.ones(3), group=world, algorithm='ring')",
        ["Hang: no message has reached rank", "rank 1 does not answer: it computes, or is stuck"]
        + [rf"rank {r} is in all_reduce\(SUM, float64 \(3,\), ring\), collective 2 of the world" for r in (0, 2)], 0,
    ),
}  # fmt: skip
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


def check(tmp_path: Path, names: list[str]) -> None:
    """Start a few jobs at once, for they mostly wait: a user's script, or a run of failing.py on a cluster that is the
    job. The status is that of the first rank that mpiexec hears of."""
    on_job, jobs = ROOT / "tests" / "comm" / "on_job.py", {}
    for name in names:
        own = name in SCRIPTS
        jobs[name] = (
            script(tmp_path, name, SCRIPTS[name][0]) if own else start(tmp_path, 3, sys.executable, on_job, name)
        )
    for name, job in jobs.items():
        if name in SCRIPTS:
            job.until("begun")
        if name == "SIGKILL":
            os.kill(job.process.pid, signal.SIGKILL)
    for name, job in jobs.items():
        status, output = ended(job)
        patterns, tracebacks = (
            SCRIPTS[name][1:] if name in SCRIPTS else (FAILURES[name].says, output.count("Traceback"))
        )
        assert status != 0 and not re.search(r"init\.py|job_cluster\.py", output), f"{name}: {output}"
        assert output.count("Traceback") == tracebacks, f"{name}: {output}"
        for pattern in patterns:
            assert re.search(pattern, output), f"{name}: {pattern} is not in:\n{output}"


def test_a_rank_that_fails_ends_the_job(tmp_path):
    check(tmp_path, ["raises", "is killed", ON_MPI[0]])


@pytest.mark.long
@pytest.mark.parametrize("names", [[*SCRIPTS][2:5], [*SCRIPTS][5:], ON_MPI[1:4], ON_MPI[4:]], ids=", ".join)
def test_every_way_to_end_is_told_and_leaves_nothing(tmp_path, names):
    check(tmp_path, names)


@pytest.mark.long
def test_a_wait_shorter_than_the_limit_is_none_of_these(tmp_path):
    status, output = ended(script(tmp_path, "none", NO_FAILURE))
    assert status == 0, output
    for rank in range(3):
        sent = f"minidist: rank {(rank - 1) % 3} sent rank {rank} 5 elements (40 bytes, tag 7) in a message of float64"
        assert f"{sent}, which were never received" in output
