"""A path that is no model folder is refused with what it is and what to give."""

import re
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidModel, ModelNotFound
from diffuserve.models.folders.folder import ModelFolder, open_model


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder `models` in the current folder, with a model in diffusers' format."""
    component = tmp_path / "models" / "FLUX.1-schnell" / "transformer"
    component.mkdir(parents=True)
    (component / "weights.safetensors").touch()
    (component.parent / "model_index.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "models"


def refusal_of(name: str | Path) -> str:
    with pytest.raises((InvalidModel, ModelNotFound)) as refusal:
        _ = open_model(str(name)).index
    return str(refusal.value)


@pytest.mark.parametrize(
    ("file", "what", "remedy"),
    [
        ("flux1-schnell.safetensors", "a single file of weights", "`diffuserve import FILE --as NAME`"),
        ("flux.ckpt", "pickled weights, which can run code", "the same model as .safetensors"),
        ("flux1-Q4.GGUF", "a single file of weights", "`diffuserve import FILE --as NAME`"),
        ("model.bin", "pickled weights", "a folder that has safetensors files"),
        ("notes.txt", "a file", "a model is a folder in diffusers' format"),
    ],
)
def test_a_single_file_is_told_what_it_is_and_what_to_give(
    file: str, what: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / file).touch()
    said = refusal_of(tmp_path / file)
    assert f"{file}: {what}" in said
    assert remedy in said


@pytest.mark.parametrize("name", ["model_index.json", "transformer/weights.safetensors"])
def test_a_file_of_a_model_leads_to_its_folder(name: str, models: Path) -> None:
    folder = models / "FLUX.1-schnell"
    assert f"give the model's folder, --model {folder}" in refusal_of(folder / name)


def test_a_component_leads_to_its_model(models: Path) -> None:
    folder = models / "FLUX.1-schnell"
    assert f"a part of a model; give the model's folder, --model {folder}" in refusal_of(
        folder / "transformer"
    )


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("models/FLUX.1-schnel", "models/FLUX.1-schnell"),
        ("./modles/FLUX.1-schnell", "models"),
        ("./models/FLUX1-schnell/", "models/FLUX.1-schnell"),
    ],
)
def test_a_typo_in_a_path_is_answered_with_what_was_meant(typo: str, meant: str, models: Path) -> None:
    assert re.search(rf"not a folder; did you mean (\./)?{re.escape(meant)}\?", refusal_of(typo))


def test_a_path_that_resembles_nothing_is_answered_with_the_nearest_folder(models: Path) -> None:
    said = refusal_of(models / "something-else")
    assert f"the nearest folder that exists is {models}, which has the models FLUX.1-schnell" in said
    assert "no model of a similar name" in refusal_of(models.parent / "nothing" / "of" / "these")


def test_a_missing_single_file_is_no_hub_id() -> None:
    assert "not a folder" in refusal_of("downloads/flux1-schnell.safetensors")


def test_a_folder_of_models_leads_to_them(models: Path) -> None:
    assert f"did you mean --model {models / 'FLUX.1-schnell'}?" in refusal_of(models)


def test_a_folder_of_the_hubs_cache_leads_to_its_snapshot(models: Path) -> None:
    cached = models / "models--owner--name"
    (cached / "snapshots").mkdir(parents=True)
    (models / "FLUX.1-schnell").rename(cached / "snapshots" / "0123")
    assert f"did you mean --model {cached / 'snapshots' / '0123'}?" in refusal_of(cached)


def test_a_folder_with_a_single_file_alone_says_what_that_is(tmp_path: Path) -> None:
    (tmp_path / "flux1-dev.safetensors").touch()
    with pytest.raises(InvalidModel, match=r"flux1-dev\.safetensors is a single file of weights"):
        _ = ModelFolder(tmp_path).index
