"""A prepared copy is found by what it was made of, and by nothing else."""

import io
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from diffuserve.cli.display.console import Console
from diffuserve.cli.draw.loading import load_engine
from diffuserve.domain.errors import ModelCacheFull, ModelNotFound
from diffuserve.domain.models.parts import ALL_PARTS
from diffuserve.domain.models.quantization import Quantization
from diffuserve.engine_process.model import prepared_model
from diffuserve.engine_process.model.prepared_model import load_options, read_ahead
from diffuserve.models.bundled import bundled_models
from diffuserve.models.registry import weight_files
from diffuserve.models.weights.published import publish
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.prepared_copies import LoadOptions, copied_files, copy_key, find_copy, make_copy
from diffuserve.protocol.config import EngineProcessConfig
from support.waiting import HANG_SECONDS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(bundled_models()["tiny-flux"], tmp_path / "model")


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> EngineProcessConfig:
    stored = ModelStoreConfig(model_cache=tmp_path / "cache")
    return EngineProcessConfig(model=str(folder), device="cpu", stored=stored)


def variants(options: LoadOptions) -> Iterator[LoadOptions]:
    yield replace(options, dtype="float32")
    yield replace(options, quantization=Quantization.INT8)
    yield replace(options, device="cuda")


def test_the_key_depends_on_all_that_weights_depend_on(folder: Path) -> None:
    options = LoadOptions(str(folder), device="cpu")
    keys = {copy_key(options), *map(copy_key, variants(options))}
    assert len(keys) == 4
    assert copy_key(replace(options, quantization=Quantization.NONE)) == copy_key(options)


def test_a_file_that_was_touched_or_replaced_gives_another_key(folder: Path) -> None:
    options, file = LoadOptions(str(folder), device="cpu"), next(folder.glob("transformer/*.safetensors"))
    keys = {copy_key(options)}
    os.utime(file, ns=(0, 0))
    keys.add(copy_key(options))
    shutil.copy2(file, file.with_name("other"))
    file.with_name("other").replace(file)
    keys.add(copy_key(options))
    assert len(keys) == 3


def test_a_model_of_a_store_has_the_same_key_wherever_it_is(tmp_path: Path) -> None:
    keys = set()
    for root in ("one", "two"):
        folder = tmp_path / root / "tiny"
        shutil.copytree(bundled_models()["tiny-flux"], folder)
        weights = folder.rglob("*.safetensors")
        publish(folder, {str(file.relative_to(folder)): (file.stat().st_size, "b") for file in weights})
        keys.add(copy_key(LoadOptions(str(folder), device="cpu")))
    assert len(keys) == 1


def test_a_model_that_is_not_here_has_no_copy(config: EngineProcessConfig) -> None:
    options = LoadOptions("black-forest-labs/FLUX.1-schnell", device="cpu")
    assert find_copy(options, config.stored) is None
    with pytest.raises(ModelNotFound, match="not on this machine yet"):
        make_copy(options, config.stored)


def test_a_command_maps_the_copy_that_was_made(config: EngineProcessConfig) -> None:
    copy = make_copy(load_options(config), config.stored)
    with load_engine(config, Console(file=io.StringIO())):
        maps = Path("/proc/self/maps").read_text()
    for file in copy.folder.iterdir():
        assert str(file) in maps


def test_the_files_of_a_copy_are_read_ahead_in_place_of_the_models(config: EngineProcessConfig) -> None:
    copy = make_copy(load_options(config), config.stored)
    own = weight_files(config.model, ALL_PARTS)
    next(copy.folder.glob("text_encoder.*")).unlink()
    read = copied_files(copy.folder, own)
    assert {file.name.partition(".")[0] for file in read if file.parent == copy.folder} == {
        "text_encoder_2",
        "vae",
        "transformer",
    }
    assert [file for file in read if file.parent != copy.folder] == own[:1]
    with patch.object(prepared_model, "copied_files", return_value=[]) as replaced:
        read_ahead(config).join(HANG_SECONDS)
    replaced.assert_called_once_with(copy.folder, own)


def test_a_full_cache_is_told_and_the_model_loads_as_before(config: EngineProcessConfig) -> None:
    small = replace(config, stored=replace(config.stored, model_cache_bytes=1_000_000))
    with pytest.raises(ModelCacheFull, match=r"the prepared copy of .* has"):
        make_copy(load_options(small), small.stored)
    with load_engine(small, Console(file=io.StringIO())) as engine:
        assert engine.spec.name == "tiny-flux"
