"""Failures on shared memory. tests/comm/mpi has the same ones on MPI, where each ends a job."""

import re

import pytest
from failing import FAILURES, PATIENCE, SIZE

import minidist as md

SLOW = ("computes_forever",)


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=pytest.mark.long if run.__name__ in SLOW else ()) for run in FAILURES],
    ids=lambda run: run.__name__,
)
def test_the_error_says_what_each_rank_did(run):
    with md.Cluster(SIZE) as cluster, pytest.raises((md.RankFailed, md.Deadlock, md.Hang)) as caught:
        cluster.run(run, patience=PATIENCE)
    for pattern in FAILURES[run]:
        assert re.search(pattern, str(caught.value)), f"{pattern} is not in:\n{caught.value}"
