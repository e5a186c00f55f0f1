"""Stable Diffusion checkpoints in the engine and in diffusers' own pipelines."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from PIL.Image import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine

_EVEN = {"use_karras_sigmas": False}
_SDE = {"algorithm_type": "sde-dpmsolver++"}
REFERENCE_SAMPLERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ddim": ("DDIMScheduler", {}),
    "dpmpp_2m": ("DPMSolverMultistepScheduler", _EVEN),
    "dpmpp_2m_karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "dpmpp_2m_sde": ("DPMSolverMultistepScheduler", _EVEN | _SDE),
    "dpmpp_2m_sde_karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True, **_SDE}),
    "euler": ("EulerDiscreteScheduler", _EVEN),
    "euler_ancestral": ("EulerAncestralDiscreteScheduler", {}),
    "euler_karras": ("EulerDiscreteScheduler", {"use_karras_sigmas": True}),
    "lcm": ("LCMScheduler", {}),
    "pndm": ("PNDMScheduler", {"skip_prk_steps": True}),
    "unipc": ("UniPCMultistepScheduler", _EVEN),
}


def load(folder: Path, **config: Any) -> Engine:
    """Load a folder in the engine, in float32."""
    config = {"token_budget": 100_000} | config
    return Engine.load(str(folder), device="cpu", dtype="float32", config=EngineConfig(**config))


def load_reference(folder: Path, pipeline: str = "DiffusionPipeline") -> Any:
    """Load a folder in one of diffusers' pipelines, by default the one that the folder names."""
    reference = getattr(diffusers, pipeline).from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    reference.set_progress_bar_config(disable=True)
    return reference


def draw_with(reference: Any, params: GenerationParams, **inputs: Any) -> list[Image]:
    """Call a reference once for each image, as if it had been asked for alone.

    It runs on one thread: with more, those that wait take the cores from other programs.
    """
    assert params.seed is not None
    own, threads = reference.scheduler, torch.get_num_threads()
    reads = dict(params.sampler_options)
    spaced = {name: reads.pop(name) for name in ("timestep_spacing",) if name in reads}
    if params.sampler is not None:
        name, options = REFERENCE_SAMPLERS[params.sampler]
        reference.scheduler = getattr(diffusers, name).from_config(own.config, **options, **spaced)
    elif spaced:
        reference.scheduler = type(own).from_config(own.config, **spaced)
    torch.set_num_threads(1)
    images = [
        reference(
            params.prompt,
            negative_prompt=params.negative_prompt,
            num_inference_steps=params.num_inference_steps,
            guidance_scale=params.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(params.seed + index),
            **reads,
            **inputs,
        ).images[0]
        for index in range(params.num_images)
    ]
    torch.set_num_threads(threads)
    reference.scheduler = own
    return images
