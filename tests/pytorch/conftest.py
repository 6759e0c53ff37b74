"""Warm torch ranks, the same ones in every test. All tests here are long: torch takes seconds to import."""

import pytest
from torch_ranks import TorchRanks


def pytest_ignore_collect(config):
    """Leave the files unread unless --all, or a test by name, asks for them: they import torch."""
    return True if not config.option.all and not any("::" in argument for argument in config.args) else None


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
