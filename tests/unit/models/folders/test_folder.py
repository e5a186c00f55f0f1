"""Models are found by name, and broken folders are refused before any weight is read."""

import json
import re
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from diffuserve.domain.errors import InvalidModel, ModelNotFound
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders import hub
from diffuserve.models.folders.folder import ModelFolder, open_model
from diffuserve.models.folders.names import ALIASES, HUB_COMMITS, full_name
from diffuserve.models.folders.read_files import PATTERNS
from diffuserve.models.registry import check_model, load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.checkpoints import write_flux_checkpoint

CPU = torch.device("cpu")
COMMIT = "0123456789" * 4
TRANSFORMER_WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_flux_checkpoint(tmp_path / "flux")


def refusal_of(folder: Path) -> str:
    with pytest.raises(InvalidModel) as refusal:
        load_pipeline(str(folder), LoadPlan(CPU))
    assert refusal.value.code == "invalid_model"
    return str(refusal.value)


def test_a_whole_checkpoint_is_accepted(checkpoint: Path) -> None:
    pipeline = load_pipeline(str(checkpoint), LoadPlan(CPU))
    assert (pipeline.spec.name, pipeline.spec.family) == ("flux", "flux")


def test_a_bundled_model_is_found_by_its_name() -> None:
    assert open_model("tiny-flux").path == bundled_models()["tiny-flux"]


def test_a_folder_is_found_by_its_path_and_named_after_itself(tmp_path: Path) -> None:
    assert open_model(str(tmp_path)).path == tmp_path
    assert ModelFolder(tmp_path).name == tmp_path.name


def test_a_folder_in_the_home_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    assert open_model("~/models").path == tmp_path / "models"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tiny-fux", "did you mean 'tiny-flux'?"),
        ("FLUX.1-schnel", "did you mean 'black-forest-labs/FLUX.1-schnell'?"),
        ("flux-schnel", "did you mean 'flux-schnell'?"),
        (
            "zzz",
            "known: tiny-emoji, tiny-flux, tiny-sd, tiny-video, and those that",
        ),
        ("/no/such/folder", "not a folder"),
        ("./no/such", "not a folder"),
        ("~nobody-of-that-name/flux", "not a folder"),
        ("x" * 5_000, "not a folder"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(name: str, nearest: str) -> None:
    with pytest.raises(ModelNotFound, match=re.escape(nearest)) as refusal:
        open_model(name)
    assert refusal.value.code == "model_not_found"


def test_a_hub_id_without_a_network_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="nobody/no-such-model") as refusal:
        open_model(f"nobody/no-such-model@{COMMIT}")
    assert "give its folder instead" in str(refusal.value)
    assert "tiny-flux" in str(refusal.value)


def test_an_invalid_hub_id_is_refused_without_asking_the_hub() -> None:
    with pytest.raises(ModelNotFound, match=r"'no spaces/please'.*HFValidationError"):
        open_model(f"no spaces/please@{COMMIT}")


@pytest.mark.parametrize(
    "name", ["nobody/model", "nobody/model@", "nobody/model@main", f"nobody/model@{'A' * 40}"]
)
def test_a_hub_id_that_names_no_commit_is_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(ModelNotFound, match="--model nobody/model@COMMIT"):
        open_model(name)


@pytest.mark.parametrize(
    "name", [name for name, hub_id in ALIASES.items() if hub_id not in HUB_COMMITS] + ["Tongyi-MAI/Z-Image"]
)
def test_a_known_model_without_a_commit_is_refused_by_its_name_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound) as refusal:
        open_model(name)
    assert str(refusal.value) == f"{name} is not on this machine; `diffuserve pull {name}` downloads it"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("black-forest-labs/FLUX.2-klein-4B@main", ""),
        ("black-forest-labs/FLUX.1-schnel", "; did you mean 'black-forest-labs/FLUX.1-schnell'?"),
        ("black-forest-labs/FLUX.3-schnell", ""),
    ],
)
def test_a_model_of_another_version_is_not_guessed(name: str, hint: str) -> None:
    with pytest.raises(ModelNotFound) as refusal:
        open_model(name)
    assert str(refusal.value).endswith(f"`diffuserve pull {name.partition('@')[0]}`{hint}")


@pytest.mark.parametrize(
    ("name", "commit"),
    [
        (f"nobody/model@{COMMIT}", COMMIT),
        *HUB_COMMITS.items(),
        *((alias, HUB_COMMITS[hub_id]) for alias, hub_id in ALIASES.items() if hub_id in HUB_COMMITS),
        (f"flux-dev@{COMMIT}", COMMIT),
        (f"black-forest-labs/FLUX.1-schnell@{COMMIT}", COMMIT),
    ],
)
def test_a_download_is_pinned_to_a_commit_and_named_after_its_repository(
    name: str, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def plan(repo_id: str, revision: str) -> hub.Download:
        asked.append((repo_id, revision))
        return hub.Download(repo_id, revision, (), 0)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "plan_download", plan)
    monkeypatch.setattr(hub, "fetch_all", lambda download, report: tmp_path)
    folder = open_model(name)
    repository = full_name(name).partition("@")[0]
    assert asked == [(repository, commit)]
    assert folder.name == repository.split("/")[1]


def test_no_code_of_a_repository_is_downloaded() -> None:
    assert not any(pattern.endswith(".py") for pattern in PATTERNS)


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    assert "no model_index.json" in refusal_of(tmp_path)


def test_an_unknown_pipeline_class_is_refused_with_the_nearest_one(checkpoint: Path) -> None:
    (checkpoint / "model_index.json").write_text('{"_class_name": "FluxPipelin"}')
    message = refusal_of(checkpoint)
    assert "'FluxPipelin'" in message
    assert "did you mean 'FluxPipeline'?" in message


@pytest.mark.parametrize("component", ["transformer", "vae", "text_encoder", "text_encoder_2"])
def test_a_missing_component_is_named(checkpoint: Path, component: str) -> None:
    (checkpoint / component).rename(checkpoint / "elsewhere")
    assert f"{component}/ is missing" in refusal_of(checkpoint)


@pytest.mark.parametrize(
    "file",
    [
        "transformer/config.json",
        "vae/config.json",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer_2/tokenizer_config.json",
    ],
)
def test_a_missing_config_is_named(checkpoint: Path, file: str) -> None:
    (checkpoint / file).unlink()
    assert f"{file} is missing" in refusal_of(checkpoint)


@pytest.mark.parametrize("file", ["model_index.json", "vae/config.json"])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"{", "not valid JSON"), (b"\xff\xfe", "not valid JSON"), (b"[1]", "JSON object")],
)
def test_broken_json_is_named(checkpoint: Path, file: str, content: bytes, complaint: str) -> None:
    (checkpoint / file).write_bytes(content)
    message = refusal_of(checkpoint)
    assert str(checkpoint / file) in message
    assert complaint in message


def test_missing_weights_are_named(checkpoint: Path) -> None:
    (checkpoint / TRANSFORMER_WEIGHTS).unlink()
    assert f"{checkpoint / 'transformer'}: no safetensors weights" in refusal_of(checkpoint)


@pytest.mark.parametrize("keep", [0, 5, 1_000, -1])
def test_truncated_weights_are_named(checkpoint: Path, keep: int) -> None:
    weights = checkpoint / TRANSFORMER_WEIGHTS
    weights.write_bytes(weights.read_bytes()[:keep])
    assert f"{weights}: truncated" in refusal_of(checkpoint)


def test_a_text_file_in_place_of_weights_is_named(checkpoint: Path) -> None:
    """Refuse the pointer file that `git clone` without LFS leaves."""
    weights = checkpoint / TRANSFORMER_WEIGHTS
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert f"{weights}: truncated or not a safetensors file" in refusal_of(checkpoint)


@pytest.mark.parametrize("pickle", ["diffusion_pytorch_model.bin", "model.ckpt", "model.pt"])
def test_pickled_weights_are_never_opened(checkpoint: Path, pickle: str) -> None:
    (checkpoint / TRANSFORMER_WEIGHTS).rename(checkpoint / "transformer" / pickle)
    message = refusal_of(checkpoint)
    assert f"only pickled weights ({pickle})" in message
    assert "convert them to safetensors" in message


def test_a_pickle_beside_safetensors_is_ignored(checkpoint: Path) -> None:
    (checkpoint / "transformer" / "diffusion_pytorch_model.bin").write_bytes(b"not even a pickle")
    assert ModelFolder(checkpoint).weights("transformer") == [checkpoint / TRANSFORMER_WEIGHTS]


@pytest.mark.parametrize("variant", ["fp16", "non_ema"])
def test_the_plain_weights_are_read_of_several_variants(variant: str, checkpoint: Path) -> None:
    weights = next((checkpoint / "vae").glob("*.safetensors"))
    (checkpoint / "vae" / f"{weights.stem}.{variant}.safetensors").write_bytes(b"unread")
    assert ModelFolder(checkpoint).weights("vae") == [weights]


def test_weights_in_half_precision_alone_are_read(checkpoint: Path) -> None:
    weights = next((checkpoint / "vae").glob("*.safetensors"))
    half = weights.rename(checkpoint / "vae" / f"{weights.stem}.fp16.safetensors")
    (checkpoint / "vae" / f"{weights.stem}.non_ema.safetensors").write_bytes(b"unread")
    assert ModelFolder(checkpoint).weights("vae") == [half]
    check_model(str(checkpoint))


def test_a_shard_that_the_index_names_and_the_folder_lacks_is_named(tmp_path: Path) -> None:
    folder = write_flux_checkpoint(tmp_path, num_files=2)
    shards = ModelFolder(folder).weights("transformer")
    assert len(shards) >= 2
    shards[1].unlink()
    assert f"transformer/{shards[1].name} is missing" in refusal_of(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {}}])
def test_a_broken_weight_index_is_refused(tmp_path: Path, index: object) -> None:
    folder = write_flux_checkpoint(tmp_path, num_files=2)
    next((folder / "transformer").glob("*.index.json")).write_text(json.dumps(index))
    assert "transformer" in refusal_of(folder)


def test_a_tensor_that_is_missing_is_named(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / TRANSFORMER_WEIGHTS)
    del tensors["proj_out.bias"]
    save_file(tensors, checkpoint / TRANSFORMER_WEIGHTS)
    assert "proj_out.bias" in refusal_of(checkpoint)


def test_a_sampler_option_that_is_not_supported_is_named(checkpoint: Path) -> None:
    file = checkpoint / "scheduler/scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_karras_sigmas": True}))
    assert "use_karras_sigmas=True" in refusal_of(checkpoint)


def test_settings_override_the_familys_defaults(checkpoint: Path) -> None:
    settings = {"name": "mine", "width": 64, "height": 48, "num_inference_steps": 2, "max_pixels": 4_096}
    (checkpoint / "diffuserve.json").write_text(json.dumps(settings))
    spec = load_pipeline(str(checkpoint), LoadPlan(CPU)).spec
    assert {name: getattr(spec, name) for name in settings} == settings
    assert spec.max_sequence_length == 256


def test_schnell_and_dev_have_defaults_of_their_own(tmp_path: Path) -> None:
    schnell, dev = (
        load_pipeline(str(write_flux_checkpoint(tmp_path / kind, kind=kind)), LoadPlan(CPU)).spec
        for kind in ("schnell", "dev")
    )
    assert (schnell.num_inference_steps, schnell.guidance_scale, schnell.has_guidance) == (4, 0.0, False)
    assert (dev.num_inference_steps, dev.guidance_scale, dev.has_guidance) == (28, 3.5, True)
    assert (schnell.max_sequence_length, dev.max_sequence_length) == (256, 512)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_broken_settings_are_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / "diffuserve.json").write_text(text)
    assert "diffuserve.json" in refusal_of(checkpoint)


def test_settings_of_a_wrong_type_are_refused(checkpoint: Path) -> None:
    (checkpoint / "diffuserve.json").write_text('{"width": "wide"}')
    message = refusal_of(checkpoint)
    assert "diffuserve.json" in message
    assert "width" in message
