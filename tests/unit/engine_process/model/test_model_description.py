"""A model is offered by its configs alone: before its weights are on this machine."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidModel, ModelNotFound
from diffuserve.domain.models.parts import Parts
from diffuserve.engine_process.model.model_description import describe
from diffuserve.engine_process.model.stored_model import with_stored_model
from diffuserve.models.bundled import bundled_models
from diffuserve.models.registry import num_weight_bytes, read_offer
from diffuserve.modelstore.bucket import ModelBucket, open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.description import describe as manifest_of
from diffuserve.modelstore.manifest import Manifest, ModelFile
from diffuserve.modelstore.publishing import push
from diffuserve.protocol.config import EngineProcessConfig

SOURCE = bundled_models()["tiny-flux"]
DECODING = Parts(encoding=False, denoising=False, decoding=True)


@pytest.fixture
def config(tmp_path: Path) -> EngineProcessConfig:
    """Return the configuration of an engine whose model is in a bucket, and nowhere else."""
    url = (tmp_path / "store").as_uri()
    push(open_models(url), SOURCE, manifest_of(SOURCE, "mine", "apache-2.0", "a test"))
    stored = ModelStoreConfig(model_store=url, model_cache=tmp_path / "cache")
    return EngineProcessConfig(model="mine", stored=stored)


def noting(files: list[str], damaged: str = "") -> Callable[..., memoryview]:
    """Return a way to read files that notes them, and damages one each time."""
    works = ModelBucket.read

    def read(bucket: ModelBucket, manifest: Manifest, file: ModelFile, part: range) -> memoryview:
        files.append(file.path)
        content = works(bucket, manifest, file, part)
        return memoryview(bytes(len(content))) if file.path == damaged else content

    return read


def test_a_stored_model_is_described_by_its_configs_before_it_is_fetched(
    config: EngineProcessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[str] = []
    monkeypatch.setattr(ModelBucket, "read", noting(files))
    described = describe(config)
    assert described.spec == read_offer("tiny-flux")[0]
    assert files
    assert all(path.endswith(".json") for path in files)
    assert not (config.stored.model_cache / "models").exists()


def test_a_model_of_clips_is_refused_where_no_encoder_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert describe(EngineProcessConfig(model="tiny-flux")).spec.name == "tiny-flux"
    clips = EngineProcessConfig(model="tiny-video")
    with pytest.raises(InvalidModel, match=r"av writes.* pip install"):
        describe(clips)
    assert describe(replace(clips, parts=replace(DECODING, denoising=True, decoding=False))).num_bytes > 0


@pytest.mark.parametrize("parts", [Parts(), DECODING])
def test_its_size_is_that_of_the_weights_that_are_loaded(config: EngineProcessConfig, parts: Parts) -> None:
    described = describe(replace(config, parts=parts))
    assert described.num_bytes == num_weight_bytes("tiny-flux", parts) > 0
    bundled = describe(EngineProcessConfig(model="tiny-flux", parts=parts))
    assert bundled.num_bytes == described.num_bytes


def test_what_is_loaded_is_the_version_that_was_described(
    config: EngineProcessConfig, tmp_path: Path
) -> None:
    described = describe(config)
    newer = manifest_of(SOURCE, "mine", "mit", "pushed since")
    push(open_models(str(config.stored.model_store)), SOURCE, newer)
    pinned = replace(config, model=described.reference)
    assert newer.hash not in with_stored_model(pinned).model
    assert newer.hash in with_stored_model(config).model
    assert describe(pinned) == described, "also now that it is on this machine"


def test_a_model_whose_configs_are_damaged_or_missing_is_refused(
    config: EngineProcessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelNotFound, match="did you mean 'mine'"):
        describe(replace(config, model="mime"))
    files: list[str] = []
    monkeypatch.setattr(ModelBucket, "read", noting(files, damaged="model_index.json"))
    with pytest.raises(InvalidModel, match=r"model_index\.json is damaged"):
        describe(config)
    assert files.count("model_index.json") == 2, "a single read may be damaged"
