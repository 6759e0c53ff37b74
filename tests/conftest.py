"""Warm ranks that tests share, so that processes are not started over and over."""

import tempfile
from pathlib import Path

import pytest

import minidist as md
from minidist.course.sandbox.student import start_server


@pytest.fixture(scope="session")
def ranks():
    """``ranks(n)`` is a warm Cluster of n ranks, the same one in every test. Each run has a limit of its own."""
    start_server()  # ranks import the file of a test, and that imports pytest
    clusters: dict[int, md.Cluster] = {}

    def get(size: int) -> md.Cluster:
        if size not in clusters:
            clusters[size] = md.Cluster(size)
        return clusters[size]

    yield get
    for cluster in clusters.values():
        cluster.close()


@pytest.fixture
def scratch():
    """A folder for temporary files with a short path: sockets may have no long one."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)
