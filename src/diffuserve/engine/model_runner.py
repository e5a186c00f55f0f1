"""Runs the model on batches, and keeps one request's failure from its neighbors (INV-3)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from diffuserve.domain.errors import DeviceUnavailable
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine.requests.clip_decoding import ClipDecoding
from diffuserve.engine.requests.phases import RequestPhase
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.runner import Runner, StepOutcome, StepResult, TurnResult
from diffuserve.models.folders.folder import first_line
from diffuserve.models.frames import Media, media_of
from diffuserve.models.layers.adapted.adapters import Uses, of_prompts
from diffuserve.models.machine.devices import to_device
from diffuserve.models.machine.isolation import is_device_fault, is_out_of_memory, isolate
from diffuserve.models.pipelines.base import Conditioning, PackedPipeline, map_tensors

_NOISE_SHOWN = 0.5  # the part of the noise kept in a preview; the prediction stays legible


@dataclass(frozen=True, eq=False)
class AdaptedPrompt:
    """What is encoded of a request; `adapters` are those that change how prompts are."""

    params: GenerationParams
    adapters: Uses = ()

    @classmethod
    def of(cls, state: RequestState) -> "AdaptedPrompt":
        return cls(state.params, of_prompts(state.adapters))


class ModelRunner(Runner):
    """Runs a packed model: each batch is one forward pass."""

    def __init__(self, pipeline: PackedPipeline) -> None:
        super().__init__(pipeline)
        self.packed = pipeline

    def encode(self, states: Sequence[RequestState]) -> list[Conditioning | Exception]:
        return isolate([AdaptedPrompt.of(state) for state in states], self._encode)

    def step(self, states: Sequence[RequestState]) -> list[StepOutcome]:
        """Run one step or turn of each request in one forward pass; no state advances."""
        self._announce(states)
        return isolate(states, self._step)

    def prepare(self, states: Sequence[RequestState]) -> None:
        """Draw the noise and lay out the tokens of the step that is expected next.

        A failure here is ignored: it recurs in the step itself, where the culprit is isolated.
        """
        encoded = [state for state in states if state.conditioning is not None and not state.exclusive]
        try:
            self._prepare([state for state in encoded if state.phase is not RequestPhase.SWAPPED])
        except Exception as error:
            if is_device_fault(error):
                raise

    def decode(self, states: Sequence[RequestState]) -> list[list[Media] | Exception]:
        """Return the images or sounds in the turns of denoised requests; all must have one size."""
        self._announce(states)
        return isolate(states, self._decode_finite)

    def decodes_in_chunks(self, state: RequestState) -> bool:
        """Return whether the request has clips, which `decode_chunk` decodes instead of `decode`."""
        return state.clip_frames > 1

    def decode_chunk(self, clip: ClipDecoding) -> FrameChunk | Exception:
        """Return the next frames of the clips of a denoised request."""
        self._announce([clip.state])
        return isolate([clip], self._decode_chunks)[0]

    @torch.inference_mode()
    def _encode(self, prompts: Sequence[AdaptedPrompt]) -> list[Conditioning]:
        """Encode a batch, each request into memory of its own: a view would keep the whole batch alive."""
        params, adapters = [each.params for each in prompts], [each.adapters for each in prompts]
        return [map_tensors(conditioning, _owned) for conditioning in self.packed.encode(params, adapters)]

    def _step(self, states: Sequence[RequestState]) -> list[StepResult | TurnResult]:
        for state in states:
            self._draw(state)
        predictions = self.packed.denoise([state.turn_input() for state in states])
        return [
            self._advance(state, prediction) for state, prediction in zip(states, predictions, strict=True)
        ]

    @torch.inference_mode()
    def _draw(self, state: RequestState) -> None:
        """Draw a request's first latents and the noise of its step, unless an earlier attempt did."""
        if state.latents is None:
            assert state.conditioning is not None
            generators = image_generators(state.params)
            initial = self.packed.init_latents(state.params, state.conditioning, generators)
            state.latents, state.guides, state.generators = initial.latents, initial.guides, generators
        sampler = self.packed.sampler(state.params)
        if state.noise is None and sampler.draws_noise(state.schedule_step):
            shape = (1, *state.latents.shape[1:])
            drawn = [torch.randn(shape, generator=generator) for generator in state.generators]
            state.noise = to_device(torch.cat(drawn), state.latents.device)

    @torch.inference_mode()
    def _prepare(self, states: Sequence[RequestState]) -> None:
        for state in states:
            if state.latents is None:
                self._draw(state)
        if states:
            self.packed.prepare([state.turn_input() for state in states])

    @torch.inference_mode()
    def _advance(self, state: RequestState, of_turn: Tensor) -> StepResult | TurnResult:
        """Move latents one step along the request's own schedule, and make previews if requested.

        All images of a request advance together, after the last turn of the step.
        """
        assert state.latents is not None
        prediction = state.with_turn(of_turn)
        if prediction is None:
            return TurnResult(_owned(of_turn))
        sampler, at = self.packed.sampler(state.params), state.schedule_step
        latents, memory = sampler.step(state.latents, prediction, at, state.memory, state.noise)
        latents = self.packed.restore(latents, state.denoise_input(), at)
        if not state.options.wants_preview(state.step + 1):
            return StepResult(latents, memory)
        finished = sampler.predict_x0(state.latents, prediction, at)
        images = zip(finished.split(1), latents.split(1), strict=True)
        previews = (self.packed.preview(_emerging(*image), state.params) for image in images)
        # Copied without waiting, so that the host can issue the work of the next requests meanwhile.
        return StepResult(latents, memory, tuple(levels.to("cpu", non_blocking=True) for levels in previews))

    def _decode_finite(self, states: Sequence[RequestState]) -> list[list[Media]]:
        # Checked only here and not after each step: this is off the denoising thread, and NaN persists.
        latents = [finite(state.turn_latents) for state in states]
        decoded = self.packed.decode(latents, [state.turn_params for state in states])
        return [[media_of(each) for each in of_request] for of_request in decoded]

    def _decode_chunks(self, clips: Sequence[ClipDecoding]) -> list[FrameChunk]:
        for clip in clips:
            if clip.state.num_decoded == 0 and clip.state.latents is not None:
                finite(clip.state.latents)
        return [clip.next_chunk(self.packed) for clip in clips]


def finite(latents: Tensor) -> Tensor:
    """Return the latents. Raise `FloatingPointError` if any of them is not finite."""
    if not bool(latents.isfinite().all()):
        raise FloatingPointError("the latents are not finite")
    return latents


def image_generators(params: GenerationParams) -> list[torch.Generator]:
    """Return one generator per image: image `i` is drawn like a single image with seed `seed + i`."""
    assert params.seed is not None
    return [torch.Generator("cpu").manual_seed(params.seed + i) for i in range(params.num_images)]


def _owned(tensor: Tensor) -> Tensor:
    """Return a tensor with memory of its own: a copy if it is a view of part of another."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _emerging(finished: Tensor, latents: Tensor) -> Tensor:
    """Return the finished latents that a step predicts, with part of the remaining noise added.

    A good model predicts nearly the whole image in its first step, so all predictions look alike; the
    fading noise shows how far the request is. The noise is limited to the scale of finished latents, which
    are about standard normal, whatever scale the sampler uses.
    """
    noise = (latents - finished).float()
    return finished + _NOISE_SHOWN * noise / noise.std().clamp(min=1.0)


@contextmanager
def enough_memory(model: str, device: object) -> Iterator[None]:
    """Raise `DeviceUnavailable` in place of an out-of-memory error: the model does not fit on the device."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceUnavailable(
            f"device={str(device)!r}: not enough memory for {model} ({first_line(error)}); free some, or "
            "give another --device, a --dtype of fewer bytes, --offload, or a smaller model"
        ) from error


def fails_for_lack_of_room(state: RequestState, outcome: object) -> bool:
    """Return whether a request ran out of memory beside others, and so may succeed by itself."""
    return isinstance(outcome, Exception) and is_out_of_memory(outcome) and not state.needs_device
