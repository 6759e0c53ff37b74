"""``mpiexec -n 5 python tests/comm/conformance/on_job.py``: pytest in process 0, the job's processes as the ranks.

Arguments are pytest's, for the whole suite: ``-k word``, ``--all``.
"""

import sys
from pathlib import Path

import pytest

from minidist.comm.runtime.mpi.job import Job
from minidist.launched import launched

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    job = Job(launched())
    from minidist.comm.runtime.mpi.job_cluster import leading, serve

    if job.rank:
        return serve(job)
    with leading(job):
        print(f"conformance on {job.size} ranks, on nodes {job.nodes}", flush=True)
        # no capture: a rank that fails ends this process too, and what it prints must not be lost
        return pytest.main(["-vv", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", str(HERE), *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
