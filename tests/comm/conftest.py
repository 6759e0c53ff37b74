"""One suite for every transport: tests that take ``ranks`` do not know what carries the messages.

``pytest`` runs them on shared memory. ``mpiexec -n 5 python tests/comm/on_job.py`` runs the files that it lists on the
processes of an MPI job; test_conformance_on_mpi.py does that.
"""

from functools import partial
from types import SimpleNamespace

import pytest
from clusters import PatientCluster

from minidist.comm.runtime.clusters import WarmClusters, job_size, new_cluster

PATIENCE = 60  # seconds in which nothing moves, after which a run on the job ends


@pytest.fixture(scope="session")
def ranks(ranks):
    """``ranks(n)`` is a Cluster of n ranks: a warm one on shared memory, in an MPI job the first n of its processes."""
    return ranks if job_size() is None else ranks_of_job


@pytest.fixture
def small_queues(ranks):
    """Return clusters whose queues hold 1 KiB, where there are queues."""
    if job_size() is not None:
        yield ranks
        return
    with WarmClusters(lambda size: PatientCluster(size, queue_bytes=1024)) as clusters:
        yield clusters


def ranks_of_job(size: int) -> SimpleNamespace:
    """The first ranks of the job."""
    return SimpleNamespace(run=partial(new_cluster(size).run, patience=PATIENCE))
