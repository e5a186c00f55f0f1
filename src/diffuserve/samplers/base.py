"""The contract of samplers: noise schedules and update rules, as pure maths.

A sampler holds only a checkpoint's constants, never a request's progress, so one sampler serves
any number of requests at different steps. What a multistep solver remembers between two
steps is a `Memory`: the request keeps it and passes it to the next step.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

Latents = Float[Tensor, "*shape"]
"""A tensor of latents, or of a prediction or noise for them: all that enter a call have one shape."""
Memory = tuple[Tensor, ...]
"""Tensors that a sampler keeps of a request's earlier steps; what each one is, its step tells."""


@dataclass(frozen=True)
class NoiseSchedule:
    """The noise levels of a request.

    `sigmas` has one entry more than there are steps; the last is the level that remains, usually 0.
    `timesteps[i]` is the model's input at step `i`. Pure noise is multiplied by `init_scale` before the
    first step, and the latents by `input_scales[i]` before they enter the model; an empty `input_scales`
    stands for ones. The request begins at step `start`, which image-to-image moves to the middle. Plain
    floats, exact in float32.
    """

    sigmas: tuple[float, ...]
    timesteps: tuple[float, ...]
    init_scale: float = 1.0
    input_scales: tuple[float, ...] = ()
    start: int = 0

    @property
    def num_steps(self) -> int:
        """Return how many steps the request takes, from `start` on."""
        return len(self.timesteps) - self.start

    def starting_at(self, start: int) -> "NoiseSchedule":
        """Return the same levels, with `start` as the first step."""
        return replace(self, start=start)

    def at(self, index: int) -> "ScheduleStep":
        return ScheduleStep(self, index)


@dataclass(frozen=True)
class ScheduleStep:
    """Step `index` of a schedule; the first one of a request is `schedule.start`."""

    schedule: NoiseSchedule
    index: int

    @property
    def sigma(self) -> float:
        return self.schedule.sigmas[self.index]

    @property
    def next_sigma(self) -> float:
        return self.schedule.sigmas[self.index + 1]

    @property
    def timestep(self) -> float:
        return self.schedule.timesteps[self.index]

    @property
    def input_scale(self) -> float:
        return self.schedule.input_scales[self.index] if self.schedule.input_scales else 1.0

    @property
    def taken(self) -> int:
        """Return how many steps the request has taken before this one."""
        return self.index - self.schedule.start

    @property
    def is_last(self) -> bool:
        return self.index == len(self.schedule.timesteps) - 1


@runtime_checkable
class Sampler(Protocol):
    """Schedules and updates of one checkpoint; stateless, so it serves any number of requests."""

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return the noise schedule for a number of steps.

        `mu` is the shift of schedules that depend on the image's size; the family computes it. Solvers
        that call the model several times in a step have more entries than steps.
        """
        ...

    def draws_noise(self, at: ScheduleStep) -> bool:
        """Return whether the update of this step needs fresh noise."""
        ...

    def step(
        self, latents: Tensor, prediction: Tensor, at: ScheduleStep, memory: Memory, noise: Tensor | None
    ) -> tuple[Tensor, Memory]:
        """Return the latents of the next noise level, in the prediction's dtype, and the next memory.

        All tensors have one shape. The memory before a request's first step is empty. `noise` is standard
        normal, in float32, where `draws_noise` says so.
        """
        ...

    def predict_x0(self, latents: Tensor, prediction: Tensor, at: ScheduleStep) -> Tensor:
        """Return the finished latents that the prediction implies."""
        ...

    def add_noise(self, clean: Tensor, noise: Tensor, at: ScheduleStep) -> Tensor:
        """Return clean latents with the noise level of the beginning of a step."""
        ...
