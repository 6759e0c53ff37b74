"""MPI jobs that end before their time, in every way: what is told, and that nothing is left behind."""

import re
import sys

import pytest
from choosing import long
from failing import FAILURES, ON_MPI
from mpiexec import ROOT, Job, needs_mpi

pytestmark = needs_mpi

ON_JOB = ROOT / "tests" / "comm" / "on_job.py"
SCRIPTS = {  # runs of failing.py in a world that each process makes, and what they say
    "raises": ["rank 1 of 3 failed: ValueError: no such shard\n\nTraceback", r'raise ValueError\("no such shard"\)'],
    "is_killed": [],
    "exits": ["rank 1 has ended its program"],
    "exits_at_once": [],
    "both_receive": [r"rank \d of 3 failed: Deadlock: no message has reached rank \d for 3 s:", "rank 2 has ended its",
                     *(rf"rank {r} is in recv: waits for a message from rank {1 - r}, at failing.py:" for r in (0, 1))],
    "computes_forever": ["Hang: no message has reached rank", "rank 2 does not answer: it is computing, or stuck",
                         *(rf"rank {r} is in barrier\(\)" for r in (0, 1))],
}  # fmt: skip
NO_FAILURE = """if True:
    import time
    import numpy as np
    import minidist as md
    world = md.init(limit=3)
    time.sleep(2 * (world.rank == 1))  # less than the limit
    md.barrier(world)
    md.isend(np.ones(5), (world.rank + 1) % 3, world, tag=7)
    time.sleep(5 * (world.rank == 2))  # the others have ended for longer than the limit
"""


@pytest.mark.parametrize(
    ("scripts", "runs"),
    [
        (["raises"], []),
        *(long(scripts, runs) for scripts, runs in (
            ([*SCRIPTS][1:4], []), ([*SCRIPTS][4:], []), ([], ON_MPI[:4]), ([], ON_MPI[4:]))),
    ],
    ids=", ".join,
)  # fmt: skip
def test_every_way_to_end_is_told_and_leaves_nothing(tmp_path, scripts, runs):
    """A few jobs at once, for they mostly wait: users' scripts, and runs on a cluster that is the job. The status is
    that of the first rank that mpiexec hears of."""
    jobs = [(name, Job(tmp_path, 3, sys.executable, ON_JOB, name), FAILURES[name].says) for name in runs]
    for name in scripts:
        jobs.append((name, Job(tmp_path, 3, sys.executable, ON_JOB, "init", name), SCRIPTS[name]))
        jobs[-1][1].until("begun")
    for name, job, patterns in jobs:
        status, output = job.ended()
        assert status != 0 and not re.search(r"/init\.py|job_cluster\.py", output), f"{name}: {output}"
        for pattern in patterns:
            assert re.search(pattern, output), f"{name}: {pattern} is not in:\n{output}"


@pytest.mark.long
def test_a_wait_shorter_than_the_limit_is_none_of_these(tmp_path):
    status, output = Job(tmp_path, 3, sys.executable, "-c", NO_FAILURE).ended()
    assert status == 0, output
    for rank in range(3):
        sent = f"minidist: rank {(rank - 1) % 3} sent rank {rank} 5 elements (40 bytes, tag 7) in a message of float64"
        assert f"{sent}, which were never received" in output
