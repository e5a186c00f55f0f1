"""What is read of diffusers' source: signatures, and what requests of each class may say."""

from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.families.any_pipeline.reading.abilities import describe
from diffuserve.models.families.any_pipeline.reading.modular import modular_names
from diffuserve.models.families.any_pipeline.reading.signature import (
    Signature,
    pipeline_names,
    read_signature,
)
from diffuserve.models.families.any_pipeline.reading.sources import public_names, transformers_has
from diffuserve.models.families.any_pipeline.reading.tasks import (
    DRAW_WITHOUT_IMAGE,
    EXCLUDED,
    SEVERAL_IMAGES,
    Task,
    control_argument,
    image_argument,
    task_of,
    why_not_served,
)
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.registry import known_families


def signature_of(name: str) -> Signature:
    found = read_signature(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "guidance", "threshold"),
    [
        ("StableDiffusion3Pipeline", "guidance_scale", 1.0),
        ("ZImagePipeline", "guidance_scale", 0.0),
        ("QwenImagePipeline", "true_cfg_scale", 1.0),
        ("FluxKontextInpaintPipeline", "guidance_scale", None),
    ],
)
def test_how_a_class_guides_is_read_of_its_comparisons(
    name: str, guidance: str, threshold: float | None
) -> None:
    signature = signature_of(name)
    assert signature.guidance == guidance
    assert signature.guided_above.get(guidance) == threshold


def test_a_call_may_be_inherited_from_a_class_in_another_file() -> None:
    heir, parent = signature_of("StableDiffusionOnnxPipeline"), signature_of("OnnxStableDiffusionPipeline")
    assert dict(heir.arguments) == dict(parent.arguments)


def test_components_settings_and_what_may_be_missing_are_told_apart() -> None:
    signature = signature_of("StableDiffusionPAGPipeline")
    assert {"vae", "unet", "scheduler", "image_encoder"} <= {*signature.components}
    assert {"safety_checker", "image_encoder"} <= signature.optional
    assert signature.settings["requires_safety_checker"] is True


@pytest.mark.parametrize(
    "name", ["", "Flux", "../FluxPipeline", "FluxTransformer2DModel", "DiffusionPipeline"]
)
def test_what_is_no_pipeline_has_no_signature(name: str) -> None:
    assert read_signature(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("MochiPipeline", {"width": 848, "height": 480}), ("ChromaPipeline", {"sample_size": 128})],
)
def test_sizes_that_no_config_says_are_those_of_the_constructor(name: str, expected: dict[str, int]) -> None:
    assert signature_of(name).own_defaults == expected


def test_a_controlnet_reads_the_control_image_from_whichever_argument_it_has() -> None:
    plain, from_image = (signature_of(f"StableDiffusionControlNet{kind}Pipeline") for kind in ("", "Img2Img"))
    assert (control_argument(plain), image_argument(plain)) == ("image", None)
    assert (control_argument(from_image), image_argument(from_image)) == ("control_image", "image")


def test_blocks_say_what_a_modular_pipeline_takes() -> None:
    signature = signature_of("AnimaModularPipeline")
    assert signature.required == {"prompt"}
    assert signature.arguments["max_sequence_length"] == 512
    assert {"transformer", "vae", "scheduler"} <= {*signature.components}
    assert (signature.outputs, signature.blocks) == (("images",), "AnimaAutoBlocks")
    assert why_not_served(signature_of("WanAnimate2ModularPipeline")).startswith("it needs driving_video")


@pytest.mark.parametrize("names", [EXCLUDED, DRAW_WITHOUT_IMAGE, SEVERAL_IMAGES, known_families()])
def test_every_class_that_is_named_here_is_one_of_diffusers(names: set[str]) -> None:
    assert {*names} <= {*pipeline_names(), *modular_names()} & public_names()


def test_every_class_that_is_served_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    folder, served = ModelFolder(tmp_path), 0
    for name in (*pipeline_names(), *modular_names()):
        signature = signature_of(name)
        if why_not_served(signature):
            continue
        served += 1
        if task_of(signature) is Task.SOUND:
            with pytest.raises(InvalidModel, match="sampling_rate"):
                describe(folder, signature)
            continue
        spec = ModelSpec(name=name, **describe(folder, signature))
        request = spec.resolve(spec.simple_request("any"), seed=0)
        assert request.num_inference_steps, name
        assert spec.workload(request).step_tokens > 0, name
    assert served > 200


def test_transformers_has_classes_under_former_names() -> None:
    names = (
        "CLIPTextModel",
        "T5TokenizerFast",
        "CLIPFeatureExtractor",
        "SiglipImageProcessorFast",
        "AutoTokenizer",
    )
    assert all(map(transformers_has, names))
    assert not transformers_has("os")
