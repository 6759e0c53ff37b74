"""Jobs that end before their time, in every way: what is told, the exit status, and that nothing is left behind."""

import os
import re
import signal
import sys
import textwrap
import time

import pytest
from mpiexec import Job, needs_mpi, start

long = pytest.mark.long
TOLD_WITHIN = 60  # seconds from a failure to the end of the job, on a busy machine

pytestmark = needs_mpi

BEGIN = """
    import os, sys, time
    import numpy as np
    import minidist as md

    world = md.init(limit=3)
    md.barrier(world)
    if world.rank == 0:
        print("begun", flush=True)
    time.sleep(0.5)  # until somebody has looked at what the processes have
"""


def begin(tmp_path, body: str, ranks: int = 3) -> Job:
    """A job that has begun to run a script."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(body))
    job = start(tmp_path, ranks, sys.executable, script)
    job.until("begun")
    return job


def ends(job: Job) -> tuple[int, str]:
    """The job's exit status and what it has written; it leaves nothing.

    The status is that of the rank that fails, or of one that mpiexec kills because of it, whichever it hears of first.
    """
    ended = job.wait(TOLD_WITHIN)
    assert not (left := job.left()), left
    return ended


def test_a_rank_that_raises(tmp_path):
    body = """
        if world.rank == 1:
            raise KeyError("no such shard")
        md.recv(np.empty(3), 1, world)
    """
    status, output = ends(begin(tmp_path, body))
    assert status != 0
    said = output[output.index("rank 1 of 3 failed") :]
    assert said.startswith("rank 1 of 3 failed: KeyError: 'no such shard'\n\nTraceback")
    assert 'raise KeyError("no such shard")' in said and "init.py" not in output
    assert output.count("Traceback") == 1


@long
def test_an_error_in_the_background(tmp_path):
    body = """
        n = 3 + (world.rank == 2)
        work = md.all_reduce(np.ones(n), group=world, async_op=True, algorithm="ring")
        time.sleep(1)
        work.wait()
    """
    status, output = ends(begin(tmp_path, body))
    assert status != 0 and "Mismatch: ranks" in output
    assert "float64 (3,)" in output and "float64 (4,)" in output and "script.py" in output


@pytest.mark.long
@pytest.mark.parametrize("how", ["sys.exit(3)", "os._exit(1)"])
def test_a_rank_that_exits(tmp_path, how):
    status, output = ends(begin(tmp_path, f"{how} if world.rank == 1 else md.recv(np.empty(3), 1, world)"))
    assert status != 0
    if how == "sys.exit(3)":  # it leaves as a rank does that is done, and so can tell
        assert "rank 1 has ended its program" in output


def test_a_rank_that_is_killed(tmp_path):
    body = """
        if world.rank == 1:
            os.kill(os.getpid(), 9)
        md.recv(np.empty(3), 1, world)
    """
    status, output = ends(begin(tmp_path, body))
    assert status != 0 and "Traceback" not in output


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGTERM", marks=long), pytest.param("SIGKILL", marks=long)])
def test_mpiexec_gets_a_signal(tmp_path, name):
    job = begin(tmp_path, "print('ready', flush=True); time.sleep(600) if world.rank == 1 else md.barrier(world)")
    job.until("ready")
    os.kill(job.process.pid, getattr(signal, name))
    status, _ = ends(job)
    assert status != 0


@pytest.mark.long
def test_a_deadlock_names_what_every_rank_waits_for(tmp_path):
    body = """
        if world.rank == 2:
            sys.exit()
        md.recv(np.empty(3), 1 - world.rank, world)
    """
    started = time.monotonic()
    status, output = ends(begin(tmp_path, body))
    assert status != 0 and time.monotonic() - started > 3
    assert re.search(r"rank \d of 3 failed: Deadlock: no message has reached rank \d for 3 s:", output)
    for rank in (0, 1):
        assert f"rank {rank} is in recv: waits for a message from rank {1 - rank}, at script.py:" in output
    assert "rank 2 has ended its program" in output and "Traceback" not in output


@long
def test_a_deadlock_in_the_background(tmp_path):
    body = """
        if world.rank == 2:
            sys.exit()
        work = md.all_reduce(np.ones(3), group=world, async_op=True, algorithm="ring")
        work.wait()
    """
    status, output = ends(begin(tmp_path, body))
    assert status != 0 and "Deadlock: no message has reached rank" in output
    for rank in (0, 1):
        call = r"all_reduce\(SUM, float64 \(3,\), ring\), collective 2 of the world"  # the first is the barrier
        assert re.search(rf"rank {rank} is in {call}: waits for", output), output


@pytest.mark.long
def test_a_rank_that_computes_while_others_wait(tmp_path):
    body = """
        if world.rank == 1:
            time.sleep(600)
        md.all_reduce(np.ones(3), group=world, algorithm="ring")
    """
    status, output = ends(begin(tmp_path, body))
    assert status != 0 and "Hang: no message has reached rank" in output
    assert "rank 1 does not answer: it computes, or is stuck" in output
    assert "rank 0 is in all_reduce(SUM, float64 (3,), ring), collective 2 of the world: waits" in output
    assert "rank 2 is in all_reduce" in output


@long
def test_a_wait_shorter_than_the_limit_is_none_of_these(tmp_path):
    body = """
        time.sleep(2 * (world.rank == 1))  # less than the limit
        md.barrier(world)
        md.isend(np.ones(5), (world.rank + 1) % 3, world, tag=7)
        time.sleep(5 * (world.rank == 2))  # the others have ended for longer than the limit
    """
    status, output = ends(begin(tmp_path, body))
    assert status == 0, output
    for rank in range(3):
        sent = f"minidist: rank {(rank - 1) % 3} sent rank {rank} 5 elements (40 bytes, tag 7) in a message of float64"
        assert f"{sent}, which were never received" in output
