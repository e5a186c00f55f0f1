"""What tuning has found is taken by workers of this machine, unless they were told otherwise."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.settings import Settings
from diffuserve.tuning.applying import with_tuning
from diffuserve.tuning.kept import (
    TriedOptions,
    TunedOptions,
    Tuning,
    load_tuning,
    read_tuning_machine,
    save_tuning,
    tuning_path,
)
from diffuserve.wiring.worker import checked

OPTIONS = TunedOptions(dtype="bfloat16", num_threads=1, token_budget=768, max_batch_size=4)


@pytest.fixture
def kept(tmp_path: Path) -> Tuning:
    """A tuning of the default model, kept in the cache folder `tmp_path`."""
    tuning = Tuning(
        model="tiny-flux",
        slo="p95<2s",
        workload="chat-app",
        options=OPTIONS,
        cost_fit="fit-of-bfloat16.json",
        machine=read_tuning_machine(),
        date="2026-11-27",
        tried=(TriedOptions(options=OPTIONS, rate=3.0),),
    )
    save_tuning(path_in(tmp_path), tuning)
    return tuning


def path_in(cache_dir: Path) -> Path:
    fit_path = Settings(cache_dir=cache_dir).engine_process.engine.cost_fit_path
    assert fit_path is not None
    return tuning_path(fit_path)


def test_what_is_kept_is_read_again(kept: Tuning, tmp_path: Path) -> None:
    assert load_tuning(path_in(tmp_path)) == kept
    assert load_tuning(tmp_path / "none.json") is None


@pytest.mark.usefixtures("kept")
def test_a_worker_takes_it_with_the_fit_of_its_dtype(tmp_path: Path) -> None:
    config = checked(Settings(cache_dir=tmp_path).engine_process)
    engine = config.engine
    assert config.dtype == "bfloat16"
    assert (engine.num_threads, engine.token_budget, engine.max_batch_size) == (1, 768, 4)
    assert engine.cost_fit_path == tmp_path / "cost_fit" / "fit-of-bfloat16.json"


@pytest.mark.usefixtures("kept")
def test_explicit_options_stay(tmp_path: Path) -> None:
    config = with_tuning(Settings(cache_dir=tmp_path, token_budget=512).engine_process)  # type: ignore[call-arg]
    assert config.engine.token_budget == 512
    assert config.engine.max_batch_size == 4
    untuned = Settings(cache_dir=tmp_path, tuned=False).engine_process  # type: ignore[call-arg]
    assert with_tuning(untuned) == untuned


def test_another_machine_ignores_it_and_says_so(
    kept: Tuning, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tuning(path_in(tmp_path), replace(kept, machine={**kept.machine, "CPU": "another, 64 cores"}))
    config = Settings(cache_dir=tmp_path).engine_process
    with caplog.at_level(logging.WARNING):
        assert with_tuning(config) == config
    assert "CPU was another, 64 cores" in caplog.text
