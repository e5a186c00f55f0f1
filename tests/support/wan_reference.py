"""Wan checkpoints in diffusers' own pipelines, which draw a clip at a time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.input_image import as_image
from diffuserve.models.families.wan.scheduler import flow_config
from diffuserve.models.frames import Frames

_REFERENCE_SAMPLERS: Mapping[str, str] = {
    "dpmpp_2m": "DPMSolverMultistepScheduler",
    "unipc": "UniPCMultistepScheduler",
}


class WanReference:
    """A folder in `WanPipeline` and in `WanImageToVideoPipeline`, which share its parts."""

    def __init__(self, folder: Path) -> None:
        own = diffusers.DiffusionPipeline.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
        self.pipeline: Any = own
        settings = {name: own.config[name] for name in ("boundary_ratio", "expand_timesteps")}
        self.from_images: Any = (
            diffusers.WanImageToVideoPipeline(**own.components, **settings)
            if isinstance(own, diffusers.WanPipeline)
            else own
        )
        for each in (self.pipeline, self.from_images):
            each.set_progress_bar_config(disable=True)

    def draw(self, params: GenerationParams, **options: Any) -> list[Frames]:
        """Return the frames of each clip of a request, drawn as if it had been asked for alone."""
        assert params.seed is not None
        pipeline = self.from_images if params.images else self.pipeline
        own, threads = pipeline.scheduler, torch.get_num_threads()
        if params.sampler is not None:
            kind = getattr(diffusers, _REFERENCE_SAMPLERS[params.sampler])
            pipeline.scheduler = kind.from_config(flow_config(own.config, params.sampler))
        torch.set_num_threads(1)
        if params.images:
            named = {"image": params.image, "last_image": params.last_image}
            options |= {
                name: as_image(image) for name, image in named.items() if isinstance(image, InputImage)
            }
        clips = [
            pipeline(
                prompt=params.prompt,
                negative_prompt=params.negative_prompt,
                width=params.width,
                height=params.height,
                num_frames=params.num_frames,
                num_inference_steps=params.num_inference_steps,
                guidance_scale=params.guidance_scale,
                generator=torch.Generator("cpu").manual_seed(params.seed + index),
                output_type="pil",
                **options,
            ).frames[0]
            for index in range(params.num_images)
        ]
        torch.set_num_threads(threads)
        pipeline.scheduler = own
        return clips
