"""Loading an engine, and the list of bundled models."""

import io

import pytest

from diffuserve.cli.display.console import Console
from diffuserve.cli.draw.loading import load_engine
from diffuserve.domain.errors import ModelNotFound
from diffuserve.engine.config import EngineConfig
from diffuserve.protocol.config import EngineProcessConfig
from support.command import Invoke


def test_the_engine_is_described_once_it_is_loaded() -> None:
    screen = io.StringIO()
    config = EngineProcessConfig(
        device="cpu", dtype="float32", engine=EngineConfig(token_budget=512, deterministic=True)
    )
    with load_engine(config, Console(file=screen, width=200)) as engine:
        assert engine.token_budget == 512
        assert engine.config is config.engine
    assert "model tiny-flux · device cpu · dtype float32" in screen.getvalue()
    assert "deterministic true" in screen.getvalue()


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ModelNotFound, match="no-such-model"):
        load_engine(EngineProcessConfig(model="no-such-model"), Console(file=io.StringIO()))


def test_models_lists_the_bundled_ones_and_shows_how_to_use_others(invoke: Invoke) -> None:
    listed = invoke("models")
    assert "tiny-flux" in listed.out
    assert "`diffuserve pull NAME` downloads another" in " ".join(listed.err.split())
