"""The state of one request while it runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diffuserve.domain.cost import Workload
from diffuserve.domain.params import GenerationParams
from diffuserve.engine.outputs import FrameChunk, StepOutput, Timings
from diffuserve.engine.scheduler import Candidate
from diffuserve.models.base import Conditioning, DenoiseInput
from diffuserve.models.frames import Frames
from diffuserve.samplers.base import Memory, NoiseSchedule, ScheduleStep

if TYPE_CHECKING:
    from diffuserve.engine.checkpoint import RequestProgress


@dataclass
class Stopwatch:
    """Moments of a request's life on the monotonic clock, and its share of the device, in seconds.

    `earlier` are the timings of the engine whose checkpoint it went on from.
    """

    added: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    encode_seconds: float = 0.0
    denoised: float = 0.0
    device_seconds: float = 0.0
    earlier: Timings | None = None

    @property
    def device_seconds_in_all(self) -> float:
        """The request's share of the device, and of those where it was before."""
        return self.device_seconds + (0.0 if self.earlier is None else self.earlier.device_seconds)

    def start(self) -> None:
        """Record the first work on the request; later calls change nothing."""
        self.started = self.started or time.perf_counter()

    def begin_decoding(self) -> None:
        """Record the first work on a request that came with finished latents; for others nothing."""
        self.start()
        self.denoised = self.denoised or self.started

    def timings(self) -> Timings:
        """Return the request's timings, with now as the end of its decoding."""
        now = time.perf_counter()
        own = Timings(
            queue_seconds=self.started - self.added,
            encode_seconds=self.encode_seconds,
            denoise_seconds=self.denoised - self.started - self.encode_seconds,
            decode_seconds=now - self.denoised,
            total_seconds=now - self.added,
            device_seconds=self.device_seconds,
        )
        return own if self.earlier is None else own.plus(self.earlier)

    def so_far(self) -> Timings:
        """Return the timings of a request that is being denoised."""
        return replace(self, denoised=self.denoised or time.perf_counter()).timings()


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The ways in which a caller wants a request to be served.

    It has previews after the steps of the numbers in `preview`, or after every step.
    A request that is `alone` shares no step with others. With `stream_frames` the frames of clips are passed
    on as they are decoded. A request `until_denoised` ends after its last step, with its latents.
    """

    priority: int = 0
    preview: bool | frozenset[int] = False
    alone: bool = False
    stream_frames: bool = False
    until_denoised: bool = False

    def wants_preview(self, step: int) -> bool:
        """Return whether there is to be a preview after a step, the first of which is number 1."""
        return self.preview if isinstance(self.preview, bool) else step in self.preview


NO_WISHES = Wishes()


@dataclass
class RequestState:
    """Owned by the engine's stepping thread; after the last step by the decoder's.

    `step_bytes` is the predicted peak memory of the request's part of a step; `skipped` counts the
    steps in which other requests went first; `latents` exist from the first step on, and `generators`, one
    for each image, with them, and `guides` as in `InitialLatents`. `memory` is what the sampler remembers
    of earlier steps; `noise` was drawn for the present step, and is kept until it is done, so that a step
    that is tried again draws nothing anew. A request that is `exclusive` ran out of memory beside others,
    so nothing else runs on the device while it does.
    One that was `swapped_out` waits without memory there. One that is `decode_only` came with its latents.
    `num_decoded` counts the frames of clips that were decoded, and `frames` has them unless they are passed
    on as they come.
    """

    request_id: str
    params: GenerationParams
    workload: Workload
    step_bytes: int
    schedule: NoiseSchedule
    arrival: int
    wishes: Wishes = NO_WISHES
    decode_only: bool = False
    exclusive: bool = False
    conditioning: Conditioning | None = None
    generators: Sequence[torch.Generator] = ()
    latents: Tensor | None = None
    guides: tuple[Tensor, ...] = ()
    memory: Memory = ()
    noise: Tensor | None = None
    step: int = 0
    swapped_out: "RequestProgress | None" = None
    skipped: int = 0
    num_decoded: int = 0
    frames: list[Frames] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def held_bytes(self) -> int:
        """Bytes of the device that it gives back if it is swapped out: none before its latents are drawn."""
        if self.latents is None:
            return 0
        noise = () if self.noise is None else (self.noise,)
        tensors = (self.latents, *self.memory, *self.guides, *noise)
        on_device: int = sum(tensor.nbytes for tensor in tensors if tensor.device.type != "cpu")
        return on_device + (0 if self.conditioning is None else self.conditioning.num_bytes)

    @property
    def num_steps(self) -> int:
        return self.schedule.num_steps

    @property
    def is_denoised(self) -> bool:
        return self.step == self.num_steps

    @property
    def clip_frames(self) -> int:
        """Frames of each of its clips; 1 for images."""
        return self.params.num_frames or 1

    @property
    def num_frames(self) -> int:
        """Frames of all of its clips together."""
        return self.params.num_images * self.clip_frames

    @property
    def schedule_step(self) -> ScheduleStep:
        """Return the step that comes next."""
        return self.schedule.at(self.schedule.start + self.step)

    def advance(self, latents: Tensor, memory: Memory) -> None:
        """Take over what a step has made."""
        self.latents, self.memory, self.noise = latents, memory, None
        self.step += 1

    def keep(self, chunk: FrameChunk) -> None:
        """Collect the frames of a clip."""
        if chunk.start == 0:
            self.frames.append([])
        self.frames[chunk.index] += chunk.frames

    def candidate(self) -> Candidate:
        return Candidate(
            request_id=self.request_id,
            priority=self.wishes.priority,
            arrival=self.arrival,
            skipped=self.skipped,
            tokens=self.workload.step_tokens,
            step_bytes=self.step_bytes,
            is_alone=self.wishes.alone or self.exclusive,
            held_bytes=self.held_bytes,
            num_steps=self.num_steps,
            step=self.step,
        )

    def denoise_input(self) -> DenoiseInput:
        assert self.conditioning is not None
        assert self.latents is not None
        at = self.schedule_step
        return DenoiseInput(
            self.params, self.conditioning, self.latents, at.timestep, at.input_scale, self.guides
        )

    def output(self, num_decoded: int = 0, **values: Any) -> StepOutput:
        """Return an output about the request at its present step."""
        return StepOutput(
            self.request_id,
            self.step,
            self.num_steps,
            num_decoded,
            self.num_frames,
            device_seconds=self.stopwatch.device_seconds_in_all,
            **values,
        )
