"""The page asks for what a model takes: of models that diffusers runs, what was read of their class."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diffuserve.api.resources.model_resources import model_resource
from diffuserve.domain.resources.model import ModelSafetyResource
from diffuserve.domain.workers.readiness import ModelStatus
from diffuserve.models.registry import read_spec
from support.foreign_folders import LTX, STABLE_AUDIO, STABLE_DIFFUSION_3, write_folder

ALL = {"prompt", "num_inference_steps", "guidance_scale", "negative_prompt", "seed", "num_images", "adapters"}
SIZE, CLIP, FROM_IMAGE = (
    {"width", "height", "output_quality"},
    {"num_frames", "fps", "seconds"},
    {"image", "strength"},
)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (STABLE_DIFFUSION_3, SIZE),
        ({**STABLE_DIFFUSION_3, "_class_name": "StableDiffusion3Img2ImgPipeline"}, SIZE | FROM_IMAGE),
        (
            {**STABLE_DIFFUSION_3, "_class_name": "StableDiffusion3InpaintPipeline"},
            SIZE | FROM_IMAGE | {"mask"},
        ),
        (LTX, SIZE | CLIP),
        ({**LTX, "_class_name": "LTXImageToVideoPipeline"}, SIZE | CLIP | {"image"}),
        (STABLE_AUDIO, {"seconds"}),
    ],
)
def test_a_form_has_the_fields_that_mean_something(
    tmp_path: Path, index: Mapping[str, Any], expected: set[str]
) -> None:
    spec = read_spec(str(write_folder(tmp_path / "model", index)))
    told = model_resource(spec, ModelStatus.READY, ModelSafetyResource(prompt=None, image=()))
    assert {field.name for field in told.fields} - {"max_sequence_length"} == ALL | expected
    assert told.limits["max_previews"] == 0
