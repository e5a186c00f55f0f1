"""Fixtures that several folders share."""

from collections.abc import Iterator

import pytest

from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.testing.fake_pipeline import FakePipeline


@pytest.fixture(scope="session")
def tiny_engine() -> Iterator[Engine]:
    """The bundled model in float32, loaded once."""
    with Engine.load("tiny-flux", device="cpu", dtype="float32") as engine:
        yield engine


@pytest.fixture
def fake() -> FakePipeline:
    return FakePipeline()


@pytest.fixture
def fake_engine(fake: FakePipeline) -> Iterator[Engine]:
    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        yield engine
