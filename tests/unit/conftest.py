"""Conditions of every unit test."""

import pytest
from hypothesis import settings

settings.register_profile("unit", deadline=None, max_examples=25)  # a busy machine is no bug
settings.register_profile("long", settings.get_profile("unit"), max_examples=100)
# Before test modules are imported: what they decorate takes its number of examples from the profile.
settings.load_profile("unit")


def pytest_configure(config: pytest.Config) -> None:
    """Look at four times as many examples where slow tests run, too."""
    if "not slow" not in config.option.markexpr:
        settings.load_profile("long")


@pytest.fixture(autouse=True, scope="module")
def on_one_thread(one_thread: None) -> None:
    """Run each operation on one thread."""
