"""UniPC: Zhao et al. 2023 (arXiv:2302.04867), a predictor and a corrector of any order up to 3.

Reference implementation: diffusers' `UniPCMultistepScheduler` with `predict_x0`.
"""

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
from diffuserve.samplers.exponential import ExponentialSolver

_FLOW_EPSILON = 1e-6  # λ of σ = 1 is infinite


@with_config(SCHEMA)
@dataclass(frozen=True)
class UniPC(ExponentialSolver):
    """Predicts the next latents, and corrects them once the model has seen them.

    Memory: the latents before the last prediction, then the finished latents that the last steps implied,
    oldest first. `disable_corrector` lists steps whose latents stay as they were predicted.
    """

    solver_type: Literal["bh1", "bh2"] = "bh2"
    disable_corrector: tuple[int, ...] = ()

    @classmethod
    def adapt(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse also solving for the noise, and a last step to level 0 of an order above 1, which is NaN.

        Map the names of other solvers as diffusers does.
        """
        if not config.get("predict_x0", True):
            raise InvalidModel("scheduler_config.json: predict_x0=false is not supported")
        ends_at_zero = config.get("final_sigmas_type", "zero") == "zero"
        if ends_at_zero and not config.get("lower_order_final", True) and config.get("solver_order", 2) != 1:
            raise InvalidModel(
                "scheduler_config.json: lower_order_final=false is not supported with "
                "final_sigmas_type='zero'; set it to true"
            )
        values = dict(config)
        if values.get("solver_type") in ("midpoint", "heun", "logrho"):
            values["solver_type"] = "bh2"
        return super().adapt(values)

    def draws_noise(self, at: ScheduleStep) -> bool:
        return False

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return the predicted latents of the next level, from the corrected ones of this level."""
        x0 = self.predict_x0(latents, prediction, at)
        if memory and at.index - 1 not in self.disable_corrector:
            latents = self._correct(x0, at, memory).to(latents.dtype)
        predictions = (*memory[1:], x0)[-self.solver_order :]
        moved = self._move(latents, predictions[-self._order(at) :], at, None)
        return moved.to(latents.dtype), (latents, *predictions)

    def _correct(self, x0: Tensor, at: ScheduleStep, memory: Memory) -> Tensor:
        """Return the last step repeated, with the prediction at its end as an additional node."""
        last = at.schedule.at(at.index - 1)
        return self._move(memory[0], memory[1:][-self._order(last) :], last, x0)

    def _order(self, at: ScheduleStep) -> int:
        """Return the order of a step: what the memory allows, and less at the end of the schedule."""
        left = len(at.schedule.timesteps) - at.index if self.lower_order_final else self.solver_order
        return min(self.solver_order, left, at.taken + 1)

    def _move(self, latents: Tensor, predictions: Memory, at: ScheduleStep, arrival: Tensor | None) -> Tensor:
        """Return `latents` moved over step `at` (equations 3 and 9 of the paper).

        `predictions` are those of this step and earlier ones, newest last; `arrival` is the one at the end
        of the step, which only the corrector has.
        """
        target = self.level(at.next_sigma)
        source, *earlier = [self.level(at.schedule.sigmas[at.index - i]) for i in range(len(predictions))]
        h = target.lambda_ - source.lambda_
        newest = predictions[-1]
        ratios = [(level.lambda_ - source.lambda_) / h for level in earlier]
        slopes = [
            (prediction - newest) / ratio
            for prediction, ratio in zip(predictions[-2::-1], ratios, strict=True)
        ]
        if arrival is not None:
            ratios, slopes = [*ratios, torch.ones(())], [*slopes, arrival - newest]
        moved = target.sigma / source.sigma * latents - target.alpha * torch.expm1(-h) * newest
        if not slopes:
            return moved
        scale = self._scale(-h)
        weights = _weights(ratios, -h, scale).to(latents.dtype)
        residual = torch.stack([weight * slope for weight, slope in zip(weights, slopes, strict=True)]).sum(0)
        return moved - target.alpha * scale * residual

    def _scale(self, hh: Tensor) -> Tensor:
        """Return B(h), the paper's free function."""
        return hh if self.solver_type == "bh1" else torch.expm1(hh)

    def _last_sigma(self, sigmas: Doubles) -> float:
        is_spaced = self.use_karras_sigmas or self.use_exponential_sigmas or self.use_flow_sigmas
        if self.final_sigmas_type == "sigma_min" and is_spaced:
            return float(sigmas[-1])
        return super()._last_sigma(sigmas)

    def _flow_sigmas(self, count: int) -> Doubles:
        sigmas = self._shifted(np.linspace(1, 1 / self.num_train_timesteps, count + 1)[:-1])
        if abs(sigmas[0] - 1) < _FLOW_EPSILON:
            sigmas[0] -= _FLOW_EPSILON
        return sigmas


def _weights(ratios: Sequence[Tensor], hh: Tensor, scale: Tensor) -> Tensor:
    """Return the weights of the slopes: they solve the order conditions of the paper's theorem 3.1."""
    if len(ratios) == 1:
        return torch.tensor([0.5])
    nodes = torch.stack(list(ratios))
    rows, values = [], []
    phi, factorial = torch.expm1(hh) / hh - 1, 1
    for i in range(1, len(ratios) + 1):
        rows.append(torch.pow(nodes, i - 1))
        values.append(phi * factorial / scale)
        factorial *= i + 1
        phi = phi / hh - 1 / factorial
    solution: Tensor = torch.linalg.solve(torch.stack(rows), torch.stack(values))
    return solution
