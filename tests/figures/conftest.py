"""Pictures are read in a notebook."""

import pytest


@pytest.fixture(autouse=True)
def _in_a_notebook(readable_figures):
    pass
