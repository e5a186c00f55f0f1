"""The state of one request while it runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.outputs import FrameChunk, StepOutput, Timings
from diffuserve.engine.policy.scheduler import Candidate
from diffuserve.engine.policy.turns import Turn, next_turn
from diffuserve.engine.requests.phases import MOVES, RequestPhase
from diffuserve.engine.requests.request_progress import RequestProgress
from diffuserve.models.frames import Media
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.pipelines.base import Conditioning, DenoiseInput
from diffuserve.models.pipelines.run_progress import RunProgress
from diffuserve.samplers.base import Memory, NoiseSchedule, ScheduleStep


@dataclass
class Stopwatch:
    """Moments of a request's life on the monotonic clock, and its share of the device, in seconds.

    `earlier` are the timings from the engine whose checkpoint the request resumed, if it resumed one.
    """

    added: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    encode_seconds: float = 0.0
    denoised: float = 0.0
    device_seconds: float = 0.0
    earlier: Timings | None = None

    @property
    def device_seconds_in_all(self) -> float:
        """The request's share of this device and of the earlier ones that it ran on."""
        return self.device_seconds + (0.0 if self.earlier is None else self.earlier.device_seconds)

    def start(self) -> None:
        """Record the first work on the request; later calls change nothing."""
        self.started = self.started or time.perf_counter()

    def begin_decoding(self) -> None:
        """Record the first work on a request that arrived with finished latents; do nothing for others."""
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
class ServingOptions:
    """How a caller wants a request to be served.

    `preview` asks for previews after every step, or after the steps with these numbers. A request that is
    `alone` shares no step with others. With `stream_frames` the frames of clips are passed on as they are
    decoded. A request `until_denoised` ends after its last step, with its latents. Adapters are loaded for
    one `tenant` after another.
    """

    priority: int = 0
    preview: bool | frozenset[int] = False
    alone: bool = False
    stream_frames: bool = False
    until_denoised: bool = False
    tenant: str = ""

    def wants_preview(self, step: int) -> bool:
        """Return whether the caller wants a preview after this step; the first step is number 1."""
        return self.preview if isinstance(self.preview, bool) else step in self.preview


DEFAULT_OPTIONS = ServingOptions()


@dataclass(eq=False)
class RequestState:
    """Owned by the engine's stepping thread, which alone changes its `phase`; in decoding by the decoder's.

    `adapters` are those it asked for, in the device's memory; a `refusal` is why they are not there.
    `step_bytes` is the predicted peak memory of the request's part of a step; `skipped` counts the
    steps in which other requests went first, and `age_seconds` are those predicted for all steps since it
    came; `latents` exist from the first step on, and `generators`, one
    for each image, with them, and `guides` as in `InitialLatents`. `memory` is what the sampler remembers
    of earlier steps; `noise` was drawn for the present step, and is kept until it is done, so that a step
    that is tried again draws nothing anew. `turn` are the images that are denoised or decoded next, all of
    them without one, and `predicted` has the predictions of those that had their turn in the present step.
    A request that is `exclusive` ran out of memory beside others, so nothing else runs on the device while it
    does; it stays so in whatever phase follows. One that is `untried` is longer than all whose memory was
    measured, so its first step has the device to itself. `saved` is what one that is swapped out goes on
    from. `runs` are what its runs begin at, until they have, and `run_bytes` what they hold, where they can
    begin anew. `num_decoded` counts the frames of clips that were decoded, and `media` has them unless they
    are passed on as they come, and the images and sounds that were decoded.
    """

    request_id: str
    params: GenerationParams
    workload: Workload
    step_bytes: int
    schedule: NoiseSchedule
    arrival: int
    options: ServingOptions = DEFAULT_OPTIONS
    phase: RequestPhase = RequestPhase.WAITING
    exclusive: bool = False
    untried: bool = False
    adapters: Uses = ()
    refusal: Exception | None = None
    conditioning: Conditioning | None = None
    generators: Sequence[torch.Generator] = ()
    latents: Tensor | None = None
    guides: tuple[Tensor, ...] = ()
    memory: Memory = ()
    noise: Tensor | None = None
    turn: range | None = None
    predicted: tuple[Tensor, ...] = ()
    step: int = 0
    saved: RequestProgress | None = None
    runs: tuple[RunProgress, ...] = ()
    run_bytes: int = 0
    skipped: int = 0
    age_seconds: float = 0.0
    num_decoded: int = 0
    media: list[Media] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def move_to(self, phase: RequestPhase) -> None:
        """Enter the next phase, which must be one that may follow; the stepping thread alone does so."""
        assert phase in MOVES[self.phase], f"request {self.request_id}: {self.phase} → {phase}"
        self.phase = phase

    @property
    def needs_device(self) -> bool:
        """True if nothing else may run on the device while it does."""
        return self.exclusive or self.untried

    @property
    def held_bytes(self) -> int:
        """Bytes that a swap-out frees; 0 before the latents are drawn, but for what its runs hold."""
        if self.latents is None:
            return self.run_bytes
        noise = () if self.noise is None else (self.noise,)
        tensors = (self.latents, *self.memory, *self.guides, *noise, *self.predicted)
        on_device: int = sum(tensor.nbytes for tensor in tensors if tensor.device.type != "cpu")
        return on_device + (0 if self.conditioning is None else self.conditioning.num_bytes)

    @property
    def num_steps(self) -> int:
        return self.schedule.num_steps

    @property
    def is_denoised(self) -> bool:
        return self.step == self.num_steps

    @property
    def is_ready_to_encode(self) -> bool:
        """True if its prompt may be encoded along with others', before its step."""
        is_here = self.phase is not RequestPhase.SWAPPED and not self.needs_device
        return is_here and self.conditioning is None

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

    def take_turn(self, max_tokens: int) -> "RequestState":
        """Choose the images of the next turn, of at most so many tokens."""
        turn = self._next_turn(max_tokens)
        self.turn = None if turn is None else turn.images
        return self

    @property
    def turn_workload(self) -> Workload:
        """The size of the turn, in sequences and in pixels to decode."""
        return self._workload_of(self.turn)

    @property
    def turn_bytes(self) -> int:
        """The predicted peak memory of the turn."""
        return self._bytes_of(self.turn)

    def advance(self, latents: Tensor | None, memory: Memory) -> None:
        """Store the result of a step."""
        self.latents, self.memory, self.noise = latents, memory, None
        self.turn, self.predicted = None, ()
        self.step += 1

    def with_turn(self, prediction: Tensor) -> Tensor | None:
        """Return the predictions of all images, once this turn's complete the step."""
        predicted = (*self.predicted, prediction)
        if sum(map(len, predicted)) < self.params.num_images:
            return None
        return torch.cat(predicted) if self.predicted else prediction

    def keep(self, chunk: FrameChunk) -> None:
        """Collect the frames of a clip, and its sound."""
        if chunk.start == 0:
            self.media.append(Media(sound=chunk.sound))
        self.media[chunk.index].frames += chunk.frames

    def candidate(self, max_tokens: int, fit: CostFit) -> Candidate:
        """Return the request as the scheduler sees it, with turns of at most so many tokens.

        Its seconds are those of its steps alone: others encode and decode along with it.
        """
        turn = self._next_turn(max_tokens)
        images = None if turn is None else turn.images
        workload = self._workload_of(images)
        return Candidate(
            request_id=self.request_id,
            priority=self.options.priority,
            arrival=self.arrival,
            skipped=self.skipped,
            tokens=workload.step_tokens,
            step_bytes=self._bytes_of(images),
            is_alone=self.options.alone or self.needs_device,
            held_bytes=self.held_bytes,
            num_steps=self.num_steps,
            step=self.step,
            turns_left=1 if turn is None else turn.left,
            step_tokens=self.workload.step_tokens,
            step_seconds=fit.step_seconds([self.workload]),
            turn_seconds=fit.added_seconds([workload]),
            age_seconds=self.age_seconds,
        )

    def denoise_input(self) -> DenoiseInput:
        """Return the input of a step of all images."""
        assert self.conditioning is not None
        assert self.latents is not None
        at = self.schedule_step
        return DenoiseInput(
            self.params,
            self.conditioning,
            self.latents,
            at.timestep,
            at.input_scale,
            self.guides,
            self.adapters,
            at.taken,
            at.schedule.num_steps,
        )

    def turn_input(self) -> DenoiseInput:
        """Return the input of the turn."""
        whole = self.denoise_input()
        if self.turn is None:
            return whole
        guides = tuple(self._of_turn(guide) if len(guide) > 1 else guide for guide in whole.guides)
        return replace(whole, params=self.turn_params, latents=self._of_turn(whole.latents), guides=guides)

    @property
    def turn_params(self) -> GenerationParams:
        """The parameters, with the number of images in the turn."""
        return self.params if self.turn is None else replace(self.params, num_images=len(self.turn))

    @property
    def turn_latents(self) -> Tensor:
        """The latents of the images in the turn."""
        assert self.latents is not None
        return self._of_turn(self.latents)

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

    def _next_turn(self, max_tokens: int) -> Turn | None:
        """Return the next turn, or `None` if the step is a single one."""
        num_images, num_done = self.params.num_images, sum(map(len, self.predicted))
        is_whole = num_images == 1 or self.workload.is_whole
        if is_whole or (not num_done and self.workload.step_tokens <= max_tokens):
            return None
        return next_turn(num_images, num_done, self.workload.step_tokens // num_images, max_tokens)

    def _of_turn(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor that belongs to the turn; its first axis counts images."""
        return tensor if self.turn is None else tensor[self.turn.start : self.turn.stop]

    def _workload_of(self, turn: range | None) -> Workload:
        if turn is None:
            return self.workload
        num_images, size = self.params.num_images, len(turn)
        return replace(
            self.workload,
            num_sequences=self.workload.num_sequences * size // num_images,
            num_pixels=self.workload.num_pixels * size // num_images,
            later_pixels=self.workload.later_pixels * size // num_images,
        )

    def _bytes_of(self, turn: range | None) -> int:
        return self.step_bytes if turn is None else -(-self.step_bytes * len(turn) // self.params.num_images)
