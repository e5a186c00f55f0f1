"""The state of one request while it runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diffuserve.domain.cost import Workload
from diffuserve.domain.params import GenerationParams
from diffuserve.engine.outputs import Timings
from diffuserve.engine.scheduler import Candidate
from diffuserve.models.base import Conditioning, DenoiseInput
from diffuserve.samplers.base import Memory, NoiseSchedule, ScheduleStep


@dataclass
class Stopwatch:
    """Moments of a request's life on the monotonic clock, and its share of the device, in seconds."""

    added: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    encode_seconds: float = 0.0
    denoised: float = 0.0
    device_seconds: float = 0.0

    def start(self) -> None:
        """Record the first work on the request; later calls change nothing."""
        self.started = self.started or time.perf_counter()

    def timings(self) -> Timings:
        """Return the request's timings, with now as the end of its decoding."""
        now = time.perf_counter()
        return Timings(
            queue_seconds=self.started - self.added,
            encode_seconds=self.encode_seconds,
            denoise_seconds=self.denoised - self.started - self.encode_seconds,
            decode_seconds=now - self.denoised,
            total_seconds=now - self.added,
            device_seconds=self.device_seconds,
        )


@dataclass
class RequestState:
    """Owned by the engine's stepping thread; after the last step by the decoder's.

    `step_bytes` is the predicted peak memory of the request's part of a step; `skipped` counts the
    steps in which other requests went first; `latents` exist from the first step on, and `generators`, one
    for each image, with them, and `guides` as in `InitialLatents`. `memory` is what the sampler remembers
    of earlier steps; `noise` was drawn for the present step, and is kept until it is done, so that a step
    that is tried again draws nothing anew. A request that is `exclusive` ran out of memory beside others,
    so nothing else runs on the device while it does.
    """

    request_id: str
    params: GenerationParams
    workload: Workload
    step_bytes: int
    schedule: NoiseSchedule
    priority: int
    arrival: int
    wants_preview: bool
    is_alone: bool = False
    exclusive: bool = False
    conditioning: Conditioning | None = None
    generators: Sequence[torch.Generator] = ()
    latents: Tensor | None = None
    guides: tuple[Tensor, ...] = ()
    memory: Memory = ()
    noise: Tensor | None = None
    step: int = 0
    skipped: int = 0
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def num_steps(self) -> int:
        return self.schedule.num_steps

    @property
    def is_denoised(self) -> bool:
        return self.step == self.num_steps

    @property
    def schedule_step(self) -> ScheduleStep:
        """Return the step that comes next."""
        return self.schedule.at(self.schedule.start + self.step)

    def advance(self, latents: Tensor, memory: Memory) -> None:
        """Take over what a step has made."""
        self.latents, self.memory, self.noise = latents, memory, None
        self.step += 1

    def candidate(self) -> Candidate:
        return Candidate(
            request_id=self.request_id,
            priority=self.priority,
            arrival=self.arrival,
            skipped=self.skipped,
            tokens=self.workload.step_tokens,
            step_bytes=self.step_bytes,
            is_alone=self.is_alone or self.exclusive,
        )

    def denoise_input(self) -> DenoiseInput:
        assert self.conditioning is not None
        assert self.latents is not None
        at = self.schedule_step
        return DenoiseInput(
            self.params, self.conditioning, self.latents, at.timestep, at.input_scale, self.guides
        )
