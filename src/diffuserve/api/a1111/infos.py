"""What AUTOMATIC1111 says of finished images: a JSON text, and a line of parameters for each. Pure."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from diffuserve.api.a1111.samplers import name_of
from diffuserve.domain.jobs.job import Artifact, Job


def info_of(job: Job, images: Sequence[Artifact], batch_size: int, ignored: Sequence[str]) -> str:
    """Return the `info` of a final job.

    What was asked for in vain is in `diffuserve_ignored`, warnings of the result in `diffuserve_warnings`.
    """
    said, seeds = job.input, [image.seed for image in images] or [job.input["seed"]]
    prompt, negative = _prompt(job), said.get("negative_prompt") or ""
    first = images[0] if images else None
    count = len(seeds)
    info: dict[str, Any] = {
        "prompt": prompt,
        "all_prompts": [prompt] * count,
        "negative_prompt": negative,
        "all_negative_prompts": [negative] * count,
        "seed": seeds[0],
        "all_seeds": seeds,
        "subseed": seeds[0],
        "all_subseeds": seeds,
        "subseed_strength": 0,
        "width": first.width if first else said.get("width"),
        "height": first.height if first else said.get("height"),
        "sampler_name": name_of(said.get("sampler")),
        "cfg_scale": said.get("guidance_scale") or 1.0,
        "steps": said.get("num_inference_steps"),
        "batch_size": batch_size,
        "restore_faces": False,
        "face_restoration_model": None,
        "sd_model_name": job.model,
        "sd_model_hash": None,
        "sd_vae_name": None,
        "sd_vae_hash": None,
        "seed_resize_from_w": -1,
        "seed_resize_from_h": -1,
        "denoising_strength": said.get("strength"),
        "extra_generation_params": {},
        "index_of_first_image": 0,
        "infotexts": [infotext(job, seed) for seed in seeds],
        "styles": [],
        "job_timestamp": time.strftime("%Y%m%d%H%M%S", time.gmtime(job.created_at)),
        "clip_skip": 1,
        "is_using_inpainting_conditioning": False,
        "diffuserve_job": job.id,
        "diffuserve_ignored": list(ignored),
        "diffuserve_warnings": list(job.result.warnings) if job.result else [],
    }
    return orjson.dumps(info).decode()


def infotext(job: Job, seed: int | None) -> str:
    """Return the text of an image's parameters, as programs of A1111 parse it."""
    said: Mapping[str, Any] = job.input
    facts = {
        "Steps": said.get("num_inference_steps"),
        "Sampler": name_of(said.get("sampler")) or None,
        "CFG scale": said.get("guidance_scale"),
        "Seed": seed,
        "Size": f"{said.get('width')}x{said.get('height')}",
        "Model": job.model,
        "Denoising strength": said.get("strength"),
    }
    line = ", ".join(f"{name}: {value}" for name, value in facts.items() if value is not None)
    negative = said.get("negative_prompt")
    return "\n".join([_prompt(job), *([f"Negative prompt: {negative}"] if negative else []), line])


def _prompt(job: Job) -> str:
    return job.prompt.original if job.prompt else str(job.input["prompt"])
