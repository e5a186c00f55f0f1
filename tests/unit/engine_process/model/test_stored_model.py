"""An engine process gets the folder of a model in a store, and waits for a store that is away."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from diffuserve.backoff import Backoff
from diffuserve.domain.errors import ModelNotFound, ServerUnavailable, StorageRefused
from diffuserve.engine_process.model import stored_model
from diffuserve.engine_process.model.stored_model import with_known_model, with_stored_model
from diffuserve.modelstore.bucket import ModelBucket, StoredObject, open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.publishing import push
from diffuserve.protocol.config import EngineProcessConfig
from support.stored_models import manifest_of, write_files


@pytest.fixture
def config(tmp_path: Path) -> EngineProcessConfig:
    url = (tmp_path / "store").as_uri()
    folder = write_files(tmp_path / "model", {"model_index.json": 100, "vae/a.safetensors": 1_000})
    push(open_models(url), folder, manifest_of(folder))
    stored = ModelStoreConfig(model_store=url, model_cache=tmp_path / "cache")
    return EngineProcessConfig(model="small", stored=stored)


def failing(errors: list[Exception]) -> Callable[[ModelBucket, str], list[StoredObject]]:
    """Return a way to list objects that raises these errors first."""
    works = ModelBucket.objects

    def objects(bucket: ModelBucket, folder: str) -> list[StoredObject]:
        if errors:
            raise errors.pop(0)
        return works(bucket, folder)

    return objects


def test_a_name_of_the_store_becomes_a_folder_named_so(config: EngineProcessConfig, tmp_path: Path) -> None:
    folder = Path(with_stored_model(config).model)
    assert folder.name == "small"
    assert (folder / "model_index.json").read_bytes() == (
        tmp_path / "model" / "model_index.json"
    ).read_bytes()


@pytest.mark.parametrize("model", ["tiny-flux", "owner/name@0", "/some/folder", "flux-schnell"])
def test_other_names_stay_as_they_are(config: EngineProcessConfig, model: str) -> None:
    other = EngineProcessConfig(model=model, stored=config.stored)
    assert with_stored_model(other) == other
    assert with_known_model(other) == other


def test_a_name_that_nobody_knows_is_refused(config: EngineProcessConfig) -> None:
    with pytest.raises(ModelNotFound, match="did you mean 'small'"):
        with_stored_model(EngineProcessConfig(model="smal", stored=config.stored))


def test_a_store_that_is_away_is_waited_for(
    config: EngineProcessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_model, "_RETRIES", Backoff(first_seconds=0.01, longest_seconds=0.01))
    errors: list[Exception] = [ServerUnavailable("away"), ServerUnavailable("still away")]
    monkeypatch.setattr(ModelBucket, "objects", failing(errors))
    assert Path(with_stored_model(config).model).name == "small"
    assert errors == []


def test_a_store_that_refuses_is_not_waited_for(
    config: EngineProcessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelBucket, "objects", failing([StorageRefused("no rights")]))
    with pytest.raises(StorageRefused):
        with_stored_model(config)


def test_a_known_model_is_found_without_the_store(
    config: EngineProcessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_known_model(config) == config
    opened = with_stored_model(config)
    monkeypatch.setattr(ModelBucket, "objects", failing([AssertionError("the store was asked")]))
    before = threading.active_count()
    assert with_known_model(config) == opened
    assert threading.active_count() == before
