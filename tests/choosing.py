"""Marks cases of a test that ``pytest`` alone leaves out."""

import pytest


def long(*values, id: str | None = None):
    """A case of ``pytest.mark.parametrize`` that runs with ``pytest --all`` only."""
    return pytest.param(*values, marks=pytest.mark.long, id=id)
