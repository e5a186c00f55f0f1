"""Conditions of every unit test."""

import pytest
from hypothesis import settings

settings.register_profile("unit", deadline=None, max_examples=50)  # a busy machine is no bug
settings.load_profile("unit")


@pytest.fixture(autouse=True, scope="module")
def on_one_thread(one_thread: None) -> None:
    """Run each operation on one thread."""
