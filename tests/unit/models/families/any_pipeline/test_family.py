"""Folders of any class of diffusers: what is read of a good one, and why a bad one is refused."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.models.families.any_pipeline import family as any_family
from diffuserve.models.families.any_pipeline.family import ANY_PIPELINE, check_plan
from diffuserve.models.families.any_pipeline.reading import components
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.registry import check_model, read_offer, read_spec
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.modelstore.description import describe as published
from diffuserve.parallel.plan import ParallelPlan
from support.foreign_folders import LTX, PAG, STABLE_AUDIO, STABLE_DIFFUSION_3, write_folder, write_json

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
HUGE = 10**30
_NO_LIBRARY = """
import sys
from diffuserve.domain.errors import InvalidModel
from diffuserve.models.registry import check_model, read_spec

print(read_spec(sys.argv[1]).width)
try:
    check_model(sys.argv[2])
except InvalidModel as error:
    print(error)
print({"torch", "diffusers", "transformers"} & {*sys.modules})
"""


def refusal_of(folder: Path) -> str:
    with pytest.raises(InvalidModel) as caught:
        check_model(str(folder))
    return str(caught.value)


def test_sizes_steps_and_guidance_follow_from_the_class_and_the_configs(tmp_path: Path) -> None:
    spec = read_spec(str(write_folder(tmp_path / "sd3")))
    assert (spec.run_by, spec.family) == ("diffusers", "any_pipeline")
    assert (spec.width, spec.height, spec.size_multiple) == (128, 128, 16)
    assert (spec.num_inference_steps, spec.guidance_scale, spec.guidance_passes) == (28, 7.0, 2)
    assert spec.has_negative_prompt
    assert not any((spec.has_previews, spec.is_video, spec.max_input_images))


def test_clips_have_the_frames_of_their_autoencoder(tmp_path: Path) -> None:
    spec = read_spec(str(write_folder(tmp_path / "ltx", LTX)))
    assert (spec.width, spec.height, spec.size_multiple) == (704, 512, 32)
    assert (spec.num_frames, spec.temporal_stride, spec.fps) == (161, 8, 25)


def test_sounds_are_as_long_as_what_the_model_was_trained_on(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "sound", STABLE_AUDIO)
    spec = read_spec(str(folder))
    assert spec.is_audio
    assert (spec.sample_rate, spec.pixels_per_token, spec.seconds, spec.max_seconds) == (16_000, 64, 4.0, 4.0)
    write_json(folder / "vae/config.json", {})
    assert "says its sampling_rate; give sample_rate in diffuserve.json" in refusal_of(folder)
    write_json(folder / "diffuserve.json", {"sample_rate": 48_000})
    assert read_spec(str(folder)).sample_rate == 48_000


def test_the_tokenizer_says_how_much_text_is_read_where_the_class_does_not(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pag", PAG)
    assert read_spec(str(folder)).max_sequence_length == 77
    write_json(folder / "tokenizer/tokenizer_config.json", {"model_max_length": 32})
    spec = read_spec(str(folder))
    assert (spec.max_sequence_length, spec.longest_sequence_length, spec.size_multiple) == (32, 32, 8)
    write_json(folder / "tokenizer/tokenizer_config.json", {"model_max_length": -5})
    assert "tokenizer_config.json: model_max_length" in refusal_of(folder)


def test_a_setting_of_the_class_has_the_type_of_its_default(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pag", {**PAG, "requires_safety_checker": "no"})
    assert "requires_safety_checker='no' must be like its default True" in refusal_of(folder)


def test_a_settings_file_corrects_what_was_read_except_what_follows_from_the_program(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "sd3")
    write_json(folder / "diffuserve.json", {"has_guidance": False, "size_multiple": 32, "guidance_scale": 0})
    spec = read_spec(str(folder))
    assert (spec.has_guidance, spec.size_multiple) == (False, 32)
    write_json(folder / "diffuserve.json", {"shares_passes": True})
    assert "unknown setting 'shares_passes'" in refusal_of(folder)


@pytest.mark.parametrize("wrong", [{"size_multiple": 0}, {"guidance_passes": 1.5}, {"temporal_stride": -1}])
def test_a_correction_out_of_bounds_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    folder = write_folder(tmp_path / "sd3")
    write_json(folder / "diffuserve.json", wrong)
    assert next(iter(wrong)) in refusal_of(folder)


INDEXES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "class that is not there": ({"_class_name": "StableDiffusion9Pipeline"}, "did you mean"),
    "class of a file": ({"_class_name": ["pipeline", "MyPipeline"]}, "code of a folder's own is never run"),
    "path as a class": ({"_class_name": "../../evil"}, "'../../evil', which diffusers"),
    "no class": ({"_class_name": None}, "'None', which diffusers"),
    "prior": ({"_class_name": "KandinskyPriorPipeline"}, "makes embeddings for another pipeline"),
    "deprecated class": ({"_class_name": "AltDiffusionPipeline"}, "no longer maintains"),
    "class of embeddings": ({"_class_name": "KandinskyV22Pipeline"}, "takes no prompt"),
    "missing component": ({"vae": None}, "names no vae, which StableDiffusion3Pipeline needs"),
    "unexpected component": ({"vea": ["diffusers", "AutoencoderKL"]}, "takes no vea; did you mean 'vae'?"),
    "custom module": ({"vae": ["my_vae", "MyVae"]}, "only classes of diffusers and transformers"),
    "standard library": ({"vae": ["subprocess", "Popen"]}, "only classes of diffusers and transformers"),
    "submodule": ({"vae": ["diffusers.utils", "AutoencoderKL"]}, "only classes of diffusers"),
    "class that diffusers has not": ({"vae": ["diffusers", "AutoencoderNew"]}, "has no AutoencoderNew"),
    "class that transformers has not": (
        {"text_encoder": ["transformers", "NewTextModel"]},
        "transformers has no NewTextModel",
    ),
    "function of a library": ({"vae": ["diffusers", "load_file"]}, "has no load_file"),
    "path as a component": ({"../vae": ["diffusers", "AutoencoderKL"]}, "'../vae' is no name of a component"),
    "number as a component": ({"vae": 7}, "vae=7 must be a library and a class"),
    "half a pair": ({"vae": ["diffusers", None]}, "must be a library and a class"),
    "long list": ({"vae": ["diffusers"] * 1000}, "must be a library and a class"),
}


@pytest.mark.parametrize(("changes", "said"), INDEXES.values(), ids=INDEXES)
def test_a_bad_index_is_refused_by_name(tmp_path: Path, changes: Mapping[str, Any], said: str) -> None:
    folder = write_folder(tmp_path / "sd3")
    write_json(folder / "model_index.json", {**STABLE_DIFFUSION_3, **changes})
    assert said in refusal_of(folder)


CONFIGS: Mapping[str, tuple[str, Any, str]] = {
    "huge size": ("transformer/config.json", {"sample_size": HUGE}, "1e+30"),
    "text as a size": ("transformer/config.json", {"sample_size": "16"}, "'16'"),
    "negative patch": ("transformer/config.json", {"patch_size": -2}, "patch_size"),
    "deep autoencoder": ("vae/config.json", {"block_out_channels": [8] * 1000}, "block_out_channels"),
    "object as channels": ("vae/config.json", {"block_out_channels": {}}, "block_out_channels={}"),
    "list as a config": ("vae/config.json", [], "must hold a JSON object"),
    "list as a scheduler": ("scheduler/scheduler_config.json", [], "must hold a JSON object"),
}


@pytest.mark.parametrize(("path", "content", "said"), CONFIGS.values(), ids=CONFIGS)
def test_a_bad_config_is_refused_by_file_and_value(
    tmp_path: Path, path: str, content: Any, said: str
) -> None:
    folder = write_folder(tmp_path / "sd3")
    write_json(folder / path, content)
    message = refusal_of(folder)
    assert said in message
    assert path.partition("/")[2] in message


def _only_pickles(folder: Path) -> None:
    (folder / "vae/model.safetensors").rename(folder / "vae/model.bin")


def _truncated(folder: Path) -> None:
    (folder / "vae/model.safetensors").write_bytes(b"\xff" * 9)


def _no_config(folder: Path) -> None:
    (folder / "text_encoder/config.json").unlink()


def _no_folder(folder: Path) -> None:
    (folder / "tokenizer_2").rename(folder / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_only_pickles, "only pickled weights (model.bin)"),
        (_truncated, "model.safetensors: truncated"),
        (_no_config, "config.json is missing, for CLIPTextModelWithProjection"),
        (_no_folder, "tokenizer_2/ is missing"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    folder = write_folder(tmp_path / "sd3")
    damage(folder)
    assert said in refusal_of(folder)


def test_a_model_is_priced_whatever_its_weights_are_called(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "sd3")
    weights = {f"down_blocks.{9**200}.a": [2, 2], "down_blocks.999999.a": [2, 2], "up.0.a": [2, 2]}
    save_file({name: np.zeros(shape, np.float32) for name, shape in weights.items()}, _weights_of(folder))
    assert read_offer(str(folder))[1].step[1] > 0
    _weights_of(folder).write_bytes(b"\xff" * 9)
    assert read_offer(str(folder))[1].step[1] > 0


def _weights_of(folder: Path) -> Path:
    return folder / "transformer/model.safetensors"


def test_a_published_model_has_the_files_of_every_component_and_no_others(tmp_path: Path) -> None:
    index = {**STABLE_DIFFUSION_3, "image_encoder": ["transformers", "SiglipVisionModel"]}
    folder = write_folder(tmp_path / "sd3", index)
    own = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    template, unread = "tokenizer/chat_template.jinja", ("vae/vae.py", "vae/vae.bin", "sd3.safetensors")
    for name in (template, *unread):
        (folder / name).write_text("")
    manifest = published(folder, "sd3", license="", source="")
    assert {file.path for file in manifest.files} == own | {template}


def test_a_filter_of_the_folder_is_left_out(tmp_path: Path) -> None:
    index = {**STABLE_DIFFUSION_3, "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"]}
    folder = write_folder(tmp_path / "sd3", index)
    checked = check_model(str(folder))
    assert "safety_checker" not in checked.family.weight_folders(checked.folder, ALL_PARTS)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@FUZZ
@given(st.sampled_from([*STABLE_DIFFUSION_3, "safety_checker", "x"]), _JSON, st.booleans())
def test_whatever_an_index_or_a_config_says_is_read_or_refused(
    tmp_path: Path, name: str, value: Any, is_config: bool
) -> None:
    folder = write_folder(tmp_path / "sd3")
    if is_config:
        keys = ("sample_size", "patch_size", "block_out_channels", "spatio_temporal_scaling", "sample_width")
        content = dict.fromkeys(keys, value)
        write_json(folder / "transformer/config.json", content)
        write_json(folder / "vae/config.json", content)
    else:
        write_json(folder / "model_index.json", {**STABLE_DIFFUSION_3, name: value})
    try:
        spec = check_model(str(folder)).spec
        read_offer(str(folder))
    except InvalidModel:
        return
    assert spec.resolve(spec.simple_request("any"), seed=0).width == spec.width


def test_neither_a_good_nor_a_bad_folder_imports_a_library(tmp_path: Path) -> None:
    good = write_folder(tmp_path / "good")
    bad = write_folder(tmp_path / "bad", {**STABLE_DIFFUSION_3, "tokenizer": ["my_tokenizer", "Tokenizer"]})
    run = subprocess.run(
        [sys.executable, "-c", _NO_LIBRARY, str(good), str(bad)], check=True, capture_output=True, text=True
    )
    assert run.stdout.splitlines()[0] == "128"
    assert "only classes of diffusers" in run.stdout.splitlines()[1]
    assert run.stdout.splitlines()[2] == "set()"


def test_without_diffusers_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "sd3")
    monkeypatch.setattr(any_family, "is_installed", lambda: False)
    assert "pip install 'diffuserve[diffusers]'" in refusal_of(folder)


def test_what_cannot_be_loaded_so_is_refused_before_any_weight(tmp_path: Path) -> None:
    import torch

    folder = ModelFolder(write_folder(tmp_path / "sd3"))
    parts = Parts(encoding=False, denoising=False)
    with pytest.raises(InvalidModel, match="loads all parts of a model"):
        ANY_PIPELINE.load(folder, LoadPlan(torch.device("cpu"), parts=parts))
    check_plan(folder, LoadPlan(torch.device("cpu")))


@pytest.mark.parametrize("plan", ["sequence=2", "tensor=2", "cfg=2"])
def test_several_gpus_are_refused_by_name(plan: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "sd3")
    check_model(str(folder))
    with pytest.raises(InvalidParams, match="StableDiffusion3Pipeline runs on one device; leave the number"):
        check_model(str(folder), plan=ParallelPlan.parse(plan))


def test_a_class_that_needs_another_package_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "find_spec", lambda _name: None)
    folder = write_folder(tmp_path / "sd3")
    noisy = ["diffusers", "DPMSolverSDEScheduler"]
    write_json(folder / "model_index.json", {**STABLE_DIFFUSION_3, "scheduler": noisy})
    assert "DPMSolverSDEScheduler needs torchsde" in refusal_of(folder)
