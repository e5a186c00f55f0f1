"""The fake family: guided videos in closed form, priced and loaded through the public contract alone."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.family import Capabilities, PipelineFamily
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.settings_file import build_spec
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    from diffuserve.models.pipelines.base import Pipeline

STEPS = "steps"
"""File of a model's folder which, if it is there, gets a byte for each step of each request."""
STEP_SECONDS = 0.04
_DEFAULTS = {
    "family": "fake",
    "width": 64,
    "height": 64,
    "num_inference_steps": 4,
    "max_sequence_length": 16,
    "longest_sequence_length": 64,
    "guidance_scale": 2.0,
    "has_guidance": True,
    "guidance_passes": 2,
    "has_negative_prompt": True,
    "max_frames": 17,
    "temporal_stride": 4,
    "pixels_per_token": 64,
    "has_joint_attention": False,
    "max_input_images": 2,
    "has_mask": True,
    "has_strength": True,
    "has_control_image": True,
    "has_last_frame": True,
}
_MAKES: Mapping[str, Mapping[str, Any]] = {
    "clips": {},
    "clips with sound": {"sample_rate": 16_000},
    "sounds": {
        "width": 1,
        "height": 1,
        "max_frames": 1,
        "temporal_stride": 1,
        "sample_rate": 16_000,
        "seconds": 0.5,
        "max_seconds": 10.0,
        "has_lyrics": True,
        "pixels_per_token": 1_600,
        "max_input_images": 0,
        "has_mask": False,
        "has_strength": False,
    },
}
"""Abilities of models by what their `model_index.json` says that they make."""
_FIT = CostFit((1e-3, 1e-5), (1e-3, 1e-5, 0.0, 0.0), (1e-3, 1e-8))


class FakeFamily:
    """A family whose folders hold a `model_index.json` and no weights."""

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        return build_spec(folder, {**_DEFAULTS, **_MAKES[folder.index.get("_makes", "clips")]})

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        return Capabilities(min_decode_bytes=_pixels_of)

    def check_files(self, folder: ModelFolder) -> None:
        """Do nothing: there are no weights."""

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        return ()

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return workload.step_tokens

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        return _FIT

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        from diffuserve.testing.fake_pipeline import FakePipeline

        pipeline = FakePipeline(
            spec=self.read_spec(folder), device=plan.device, ranks=plan.ranks, parts=plan.parts
        )
        if (ledger := folder.path / STEPS).exists():
            pipeline.on_denoise = partial(_note_step, ledger)
        return pipeline


def _pixels_of(params: GenerationParams) -> int:
    assert params.height is not None
    assert params.width is not None
    return params.height * params.width


def _note_step(ledger: Path, batch: Sequence[GenerationParams]) -> None:
    """Write a byte for each request of a step, which takes a while for each image of the largest of them."""
    time.sleep(STEP_SECONDS * max(params.num_images for params in batch))
    with ledger.open("ab") as file:
        file.write(b"." * len(batch))


FAMILY: PipelineFamily = FakeFamily()
