"""Samplers beside diffusers' schedulers: cases of configs, and steps side by side."""

from dataclasses import dataclass, field
from typing import Any

import diffusers
import torch
from torch import Tensor

from diffuserve.samplers.base import Memory, NoiseSchedule, Sampler
from diffuserve.samplers.registry import checkpoint_sampler

STABLE_DIFFUSION = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SHAPE = (1, 4, 3, 5)


@dataclass(frozen=True)
class Case:
    """A scheduler's class with options, beside the noise that Stable Diffusion was trained with."""

    class_name: str
    options: dict[str, Any] = field(default_factory=dict)
    max_steps: int = 100

    @property
    def config(self) -> dict[str, Any]:
        return {"_class_name": self.class_name, **STABLE_DIFFUSION, **self.options}

    def sampler(self) -> Sampler:
        return checkpoint_sampler(self.config)

    def reference(self, num_inference_steps: int) -> Any:
        """Return diffusers' scheduler, set to a number of steps as its pipelines do it."""
        scheduler = getattr(diffusers, self.class_name)(**STABLE_DIFFUSION | self.options)
        scheduler.set_timesteps(num_inference_steps)
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(0)
        return scheduler

    def __str__(self) -> str:
        options = [name if isinstance(value, list) else str(value) for name, value in self.options.items()]
        return "-".join([self.class_name.removesuffix("Scheduler"), *options])


def randn(generator: torch.Generator) -> Tensor:
    return torch.randn(SHAPE, generator=generator)


def assert_equal(latents: Tensor, expected: Tensor) -> None:
    difference = float((latents - expected).abs().max())
    assert difference <= 1e-5 * max(1.0, float(expected.abs().max()))


def compare_steps(sampler: Sampler, schedule: NoiseSchedule, reference: Any) -> None:
    predictions = torch.Generator().manual_seed(schedule.num_steps)
    theirs, ours = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    draws: dict[str, Any] = {"generator": theirs} if reference_draws(reference) else {}
    if eta := getattr(sampler, "eta", 0.0):
        draws = {"eta": eta, "generator": theirs}
    latents = expected = randn(predictions) * schedule.init_scale
    memory: Memory = ()
    for index, timestep in enumerate(reference.timesteps):
        at = schedule.at(index)
        scaled = reference.scale_model_input(expected, timestep)
        assert_equal(latents * at.input_scale, scaled)
        prediction = randn(predictions)
        stepped = reference.step(prediction, timestep, expected, **draws)
        noise = randn(ours) if sampler.draws_noise(at) else None
        if hasattr(stepped, "pred_original_sample") and not getattr(reference.config, "clip_sample", False):
            assert_equal(sampler.predict_x0(latents, prediction, at), stepped.pred_original_sample)
        latents, memory = sampler.step(latents, prediction, at, memory, noise)
        expected = stepped.prev_sample
        assert_equal(latents, expected)


def reference_draws(reference: Any) -> bool:
    kinds = (diffusers.EulerAncestralDiscreteScheduler, diffusers.LCMScheduler)
    is_sde = reference.config.get("algorithm_type") == "sde-dpmsolver++"
    is_dpm = type(reference).__name__ == "DPMSolverMultistepScheduler"
    return isinstance(reference, kinds) or (is_sde and is_dpm)
