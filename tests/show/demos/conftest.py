"""Assertions of the helpers say what they compared."""

import pytest

pytest.register_assert_rewrite("every_scene", "recorded")
