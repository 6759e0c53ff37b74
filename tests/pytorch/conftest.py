"""Warm torch ranks, the same ones in every test."""

import pytest
from torch_ranks import TorchRanks


@pytest.fixture(scope="session")
def torch_ranks(tmp_path_factory):
    """``torch_ranks(n)`` is n ranks on the ring."""
    started = {}

    def ranks(size: int) -> TorchRanks:
        if size not in started:
            started[size] = TorchRanks(size, tmp_path_factory.mktemp("ranks"))
        return started[size]

    yield ranks
    for each in started.values():
        assert each.close() == [0] * len(each.processes)
