"""One suite for every transport: its tests take ``ranks``, and do not know what carries the messages.

``pytest`` runs it on shared memory. ``mpiexec -n 5 python tests/comm/conformance/on_job.py`` runs the same tests on the
processes of an MPI job; tests/comm/mpi does that.
"""

import pytest
from clusters import PatientCluster

from minidist.comm.runtime.new_cluster import job_size, new_cluster
from minidist.comm.runtime.warm import WarmClusters

collect_ignore = [] if job_size() is None else ["test_failing_runs.py"]  # a failure ends the whole job
PATIENCE = 60  # seconds in which nothing moves, after which a run on the job ends


@pytest.fixture(scope="session")
def ranks(ranks):
    """``ranks(n)`` is a Cluster of n ranks: a warm one on shared memory, in an MPI job the first n of its processes."""
    return ranks if job_size() is None else RanksOfJob


@pytest.fixture
def small_queues(ranks):
    """The same with queues of 1 KiB, where there are queues."""
    if job_size() is not None:
        yield ranks
        return
    with WarmClusters(lambda size: PatientCluster(size, queue_bytes=1024)) as clusters:
        yield clusters


class RanksOfJob:
    """The first ``size`` ranks of the job; the test is skipped where the job has fewer."""

    def __init__(self, size: int) -> None:
        if size > job_size():
            pytest.skip(f"the job has {job_size()} ranks, and this needs {size}")
        self.cluster = new_cluster(size)

    def run(self, function, *arguments) -> list:
        return self.cluster.run(function, *arguments, patience=PATIENCE)
