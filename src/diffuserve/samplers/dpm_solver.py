"""DPM-Solver++: Lu et al. 2022 (arXiv:2211.01095), as an ODE or with fresh noise in each step (SDE).

Reference implementation: diffusers' `DPMSolverMultistepScheduler`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA
from diffuserve.samplers.base import Latents, Memory, ScheduleStep
from diffuserve.samplers.diffusion import Doubles
from diffuserve.samplers.exponential import ExponentialSolver, Level

_FEW_STEPS = 15  # below, the last steps are of lower order


@with_config(SCHEMA)
@dataclass(frozen=True)
class DpmSolver(ExponentialSolver):
    """Multistep solver of order 1 to 3. Memory: the finished latents that the last steps predicted."""

    algorithm_type: Literal["dpmsolver++", "sde-dpmsolver++"] = "dpmsolver++"
    solver_type: Literal["midpoint", "heun"] = "midpoint"
    euler_at_final: bool = False

    @classmethod
    def adapt(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse also clipped levels and an SDE of order 3; map other solvers' names as diffusers does."""
        if (clipped := config.get("lambda_min_clipped", -math.inf)) != -math.inf:
            raise InvalidModel(f"scheduler_config.json: lambda_min_clipped={clipped!r} is not supported")
        values = dict(config)
        if values.get("algorithm_type") == "deis":
            values["algorithm_type"] = "dpmsolver++"
        if values.get("solver_type") in ("logrho", "bh1", "bh2"):
            values["solver_type"] = "midpoint"
        if values.get("algorithm_type") == "sde-dpmsolver++" and values.get("solver_order") == 3:
            raise InvalidModel(
                "scheduler_config.json: solver_order=3 with algorithm_type='sde-dpmsolver++' is not "
                "supported; use solver_order=2"
            )
        return super().adapt(values)

    @property
    def is_sde(self) -> bool:
        return self.algorithm_type == "sde-dpmsolver++"

    def draws_noise(self, at: ScheduleStep) -> bool:
        return self.is_sde

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return the latents of the next level, from the finished latents that the last steps predicted."""
        memory = (*memory, self.predict_x0(latents, prediction, at))[-self.solver_order :]
        order = self._order(at)
        levels = [self.level(at.schedule.sigmas[at.index + 1 - i]) for i in range(order + 1)]
        moved = self._move(latents.float(), memory[-order:], levels, noise)
        return moved.to(prediction.dtype), memory

    def _order(self, at: ScheduleStep) -> int:
        """Return the order of a step: what the memory allows, and less at the end of a short schedule."""
        order = min(self.solver_order, at.taken + 1)
        num_steps = len(at.schedule.timesteps)
        is_short = self.lower_order_final and num_steps < _FEW_STEPS
        if at.is_last and (self.euler_at_final or is_short or self.final_sigmas_type == "zero"):
            return 1
        return min(order, 2) if is_short and at.index == num_steps - 2 else order

    def _move(
        self, latents: Tensor, predictions: Memory, levels: Sequence[Level], noise: Tensor | None
    ) -> Tensor:
        """Return latents at the first of `levels`; the others are those of the predictions, newest first.

        The SDE is the ODE over twice the distance, with noise instead of the part that is left out.
        """
        target, source = levels[:2]
        h = target.lambda_ - source.lambda_
        distance = h if noise is None else 2.0 * h
        decay = target.sigma / source.sigma * (1.0 if noise is None else torch.exp(-h))
        shrinkage = torch.exp(-distance) - 1.0
        moved = decay * latents - target.alpha * shrinkage * predictions[-1]
        if len(predictions) == 2:
            slope = _slope(predictions, levels, h)
            factor = -0.5 * shrinkage if self.solver_type == "midpoint" else shrinkage / distance + 1.0
            moved = moved + target.alpha * factor * slope
        if len(predictions) == 3:
            slope, curvature = _slope_and_curvature(predictions, levels, h)
            moved = moved + target.alpha * (shrinkage / distance + 1.0) * slope
            moved = moved - target.alpha * ((shrinkage + distance) / distance**2 - 0.5) * curvature
        return moved if noise is None else moved + target.sigma * torch.sqrt(-shrinkage) * noise

    def _rounded(self, timesteps: Doubles) -> Doubles:
        return timesteps if self.beta_schedule == "squaredcos_cap_v2" else timesteps.round()

    def _flow_sigmas(self, count: int) -> Doubles:
        sigmas = 1.0 - np.linspace(1, 1 / self.num_train_timesteps, count + 1)
        return self._shifted(sigmas)[::-1][:-1].copy()


def _slope(predictions: Memory, levels: Sequence[Level], h: Tensor) -> Tensor:
    """Return the difference of the two newest predictions over the length `h` of this step."""
    ratio = (levels[1].lambda_ - levels[2].lambda_) / h
    return (1.0 / ratio) * (predictions[-1] - predictions[-2])


def _slope_and_curvature(predictions: Memory, levels: Sequence[Level], h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and second differences of the three newest predictions."""
    newer, older = _slope(predictions, levels, h), _slope(predictions[:-1], levels[1:], h)
    ratios = [(levels[i].lambda_ - levels[i + 1].lambda_) / h for i in (1, 2)]
    curvature = (1.0 / (ratios[0] + ratios[1])) * (newer - older)
    return newer + ratios[0] * curvature, curvature
