"""Conditions of every unit test."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("unit", deadline=None)  # a busy machine is no bug
settings.load_profile("unit")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Run each operation on one thread, as in deterministic mode.

    These tensors are small: on a busy machine two threads mostly wait for one another.
    """
    if "torch" not in sys.modules:  # nor needed by these tests, and it takes seconds
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
