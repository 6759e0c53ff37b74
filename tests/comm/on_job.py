"""``mpiexec -n 5 python tests/comm/on_job.py``: the suite in process 0, the processes of the job as its ranks.

Arguments are pytest's: ``-k word``, ``--all``. The name of a run of failing.py is that run alone, which ends the job;
with ``init`` before it every process makes its own world, as in a user's script.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from failing import FAILURES, PATIENCE, SIZE

import minidist as md
from minidist.comm.runtime.clusters import new_cluster
from minidist.comm.runtime.job import Job
from minidist.launched import launched

sys.path.append(str(Path(__file__).parents[1]))  # where every rank finds the modules that all tests share
SUITE = [Path(__file__).with_name(f"test_{name}.py") for name in ("collective_results", "algorithms", "messages")]


def as_a_script(name: str) -> None:
    world = md.init(limit=3)
    md.all_reduce(np.ones(5), group=world)
    if world.rank == 0:
        print("begun", flush=True)
    time.sleep(0.5)  # until somebody has looked at what the processes have
    FAILURES[name].run(world)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["init"]:
        return as_a_script(*arguments[1:])
    job = Job(launched())
    from minidist.comm.runtime.job_cluster import leading, serve

    if job.rank:
        return serve(job)
    with leading(job):
        if arguments and arguments[0] in FAILURES:
            new_cluster(SIZE).run(FAILURES[arguments[0]].run, patience=PATIENCE)
            return 0
        print(f"conformance on {job.size} ranks, on nodes {job.nodes}", flush=True)
        # no capture: a rank that fails ends this process too, and what it prints must not be lost
        return pytest.main(["-vv", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", *map(str, SUITE), *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
