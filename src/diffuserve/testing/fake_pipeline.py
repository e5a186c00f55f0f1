"""A pipeline unlike the built-in ones, for tests of the engine's contract.

Latents have five dimensions (images, channels, frames, rows, columns), nothing is packed, and guidance
is classifier-free: two passes a step. It computes in closed form, so tests know every pixel: the color of
the prompt or, of a request with input images, their mean moved to that color by `strength`; what a mask
keeps is the mean itself. A control image draws it half of the way to its own colors at a scale of 1, and a
last frame is the last latent frame. A sound, alone or with a clip, is a tone in each channel, whose pitch is
the prompt's first or second color. Tests can make it fail for chosen prompts.
"""

import hashlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.description import Description
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.input_image import as_image
from diffuserve.models.frames import Frames, Sound
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.pipelines.base import Conditioning, DenoiseInput, InitialLatents, PipelineDefaults
from diffuserve.parallel.ranks import Ranks
from diffuserve.samplers.base import NoiseSchedule, Sampler, ScheduleStep
from diffuserve.samplers.flow_match_euler import FlowMatchEuler

_CHANNELS = 3
_SCALE = 8
_LOUDNESS, _LOWEST_HZ = 0.5, 220.0

FAKE_SPEC = ModelSpec(
    name="fake-video",
    family="fake",
    width=64,
    height=64,
    num_inference_steps=4,
    max_sequence_length=16,
    longest_sequence_length=64,
    guidance_scale=2.0,
    has_guidance=True,
    guidance_passes=2,
    has_negative_prompt=True,
    max_frames=16,
    fps=8,
    pixels_per_token=_SCALE**2,
    has_joint_attention=False,
    max_input_images=2,
    has_mask=True,
    has_strength=True,
    has_control_image=True,
    has_last_frame=True,
)


FAKE_SOUND_SPEC = replace(
    FAKE_SPEC,
    name="fake-sound",
    width=1,
    height=1,
    max_frames=1,
    sample_rate=16_000,
    seconds=0.5,
    max_seconds=10.0,
    has_lyrics=True,
    pixels_per_token=1_600,
    max_input_images=0,
    has_mask=False,
    has_strength=False,
)


@dataclass(frozen=True)
class FakeConditioning(Conditioning):
    """The colors of the prompt and of the negative prompt, each (channels, 1, 1, 1).

    With input images also their mean, (channels, 1, rows, columns), and what a mask changes of it, in 0…1;
    a control image and a last frame are as large.
    """

    positive: Tensor
    negative: Tensor
    image: Tensor | None = None
    mask: Tensor | None = None
    control: Tensor | None = None
    last: Tensor | None = None


@dataclass
class FakePipeline(PipelineDefaults):
    """Moves noise toward the prompt's color.

    `on_encode`, `on_denoise` and `on_decode` are called with each call's parameters before it runs, and
    may raise, block or count, to inject faults. `poison` replaces a request's prediction.
    """

    spec: ModelSpec = FAKE_SPEC
    parts: Parts = ALL_PARTS
    on_encode: Callable[[Sequence[GenerationParams]], None] = lambda _: None
    on_denoise: Callable[[Sequence[GenerationParams]], None] = lambda _: None
    on_decode: Callable[[Sequence[GenerationParams]], None] = lambda _: None
    poison: Callable[[GenerationParams, Tensor], Tensor] = lambda _, prediction: prediction
    ranks: Ranks | None = None
    bytes_per_token: int = 1024
    bytes_per_decoded_pixel: int = 16
    max_decode_pixels: int = 4 * 64 * 64 * 16
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    solver: Sampler = field(default_factory=FlowMatchEuler)
    denoised_batches: list[list[GenerationParams]] = field(default_factory=list)
    encoded_batches: list[list[GenerationParams]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def describe(self) -> Description:
        return {"model": self.spec.name, "device": "cpu", "dtype": "float32", "attention": "none"}

    def cost_prior(self) -> CostFit:
        return CostFit((1e-4, 1e-6), (1e-4, 1e-7, 1e-12, 1e-6), (1e-4, 1e-9))

    def step_bytes(self, workload: Workload) -> int:
        return workload.step_tokens * self.bytes_per_token

    def conditioning_key(self, params: GenerationParams) -> Hashable:
        size = (params.width, params.height) if params.input_images else None
        return (params.prompt, params.negative_prompt or "", params.input_images, size)

    def encode(self, params: Sequence[GenerationParams], adapters: Sequence[Uses] = ()) -> list[Conditioning]:
        with self._lock:
            self.encoded_batches.append(list(params))
        self.on_encode(params)
        return [self._encode(request) for request in params]

    def _encode(self, params: GenerationParams) -> FakeConditioning:
        _, rows, columns = self._grid(params)
        levels: dict[str, list[Tensor]] = {}
        for name, image in params.input_images:
            assert isinstance(image, InputImage)
            levels.setdefault(name, []).append(_levels(image, rows, columns))
        means = {name: torch.stack(images).mean(0) for name, images in levels.items()}
        colors = {name: mean * 2 - 1 for name, mean in means.items()}
        return FakeConditioning(
            (),
            color_of(params.prompt),
            color_of(params.negative_prompt or ""),
            image=colors.get("image"),
            mask=means.get("mask"),
            control=colors.get("control_image"),
            last=colors.get("last_image"),
        )

    def init_latents(
        self, params: GenerationParams, conditioning: Conditioning, generators: Sequence[torch.Generator]
    ) -> InitialLatents:
        assert isinstance(conditioning, FakeConditioning)
        shape = (_CHANNELS, *self._grid(params))
        noise = torch.stack([torch.randn(shape, generator=drawn) for drawn in generators])
        if conditioning.image is None:
            return InitialLatents(noise)
        start = self.schedule(params).at(self.spec.first_step(params))
        return InitialLatents(_noised(conditioning.image, noise, start.sigma), (noise,))

    def latents_shape(self, params: GenerationParams) -> tuple[int, ...]:
        return (params.num_images, _CHANNELS, *self._grid(params))

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        schedule = self.sampler(params).schedule(params.num_inference_steps or 0)
        return schedule.starting_at(self.spec.first_step(params))

    def sampler(self, params: GenerationParams) -> Sampler:
        return self.solver

    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        with self._lock:
            self.denoised_batches.append([request.params for request in batch])
        self.on_denoise([request.params for request in batch])
        with nullcontext() if self.ranks is None else self.ranks.together():
            return [self.poison(request.params, self._velocity(request)) for request in batch]

    def _velocity(self, request: DenoiseInput) -> Tensor:
        """Return the guided velocity."""
        conditioning = request.conditioning
        assert isinstance(conditioning, FakeConditioning)
        colors = (conditioning.positive, conditioning.negative)[: self.spec.num_passes(request.params)]
        positive, *rest = [_velocity_to(_goal(color, request), request) for color in colors]
        scale = request.params.guidance_scale or 0.0
        return rest[0] + scale * (positive - rest[0]) if rest else positive

    def restore(self, latents: Tensor, request: DenoiseInput, at: ScheduleStep) -> Tensor:
        conditioning = request.conditioning
        assert isinstance(conditioning, FakeConditioning)
        if conditioning.image is None or conditioning.mask is None:
            return latents
        kept = _noised(conditioning.image, request.guides[0], at.next_sigma)
        return conditioning.mask * latents + (1 - conditioning.mask) * kept

    def decode(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> Sequence[Sequence[Frames | Sound]]:
        assert len({tuple(tensor.shape[2:]) for tensor in latents}) == 1, "a decode group has one size"
        self.on_decode(params)
        if self.spec.is_audio:
            lengths = [request.seconds or 0.0 for request in params]
            return [
                [self._sound(sound, seconds) for sound in sounds]
                for sounds, seconds in zip(latents, lengths, strict=True)
            ]
        return [[_frames(image, self.spec.temporal_stride) for image in images] for images in latents]

    def decode_chunks(self, latents: Tensor, params: GenerationParams) -> Iterator[Frames | Sound]:
        """Yield the frames of each latent frame by itself; `on_decode` is called before each."""
        stride = self.spec.temporal_stride
        if self.spec.has_sound:
            yield self._sound(latents[0], (params.num_frames or 1) / (params.fps or 1))
        for index, cells in enumerate(latents[0].unbind(1)):
            self.on_decode([params])
            frames = _frames(cells.unsqueeze(1), stride)
            yield frames * stride if index else frames

    def _sound(self, latents: Tensor, seconds: float) -> Sound:
        """Return the tones of the first two colors of a clip's or a sound's first latents."""
        rate = self.spec.sample_rate
        times = np.arange(round(seconds * rate)) / rate
        pitches = [_LOWEST_HZ * 2.0 ** float(level) for level in latents[:2, 0, 0, 0]]
        tones = np.stack([_LOUDNESS * np.sin(2 * np.pi * pitch * times) for pitch in pitches])
        return Sound(tones.astype(np.float32), rate)

    def decode_bytes(self, params: GenerationParams) -> int:
        if self.spec.is_audio:
            return self.spec.image_tokens(params) * self.spec.pixels_per_token * self.bytes_per_decoded_pixel
        assert params.height is not None
        assert params.width is not None
        return params.height * params.width * self.bytes_per_decoded_pixel

    def preview(self, latents: Tensor, params: GenerationParams) -> Tensor:
        """Return the latent frames side by side."""
        num_frames, rows, columns = self._grid(params)
        strip = latents[0].permute(0, 2, 1, 3).reshape(_CHANNELS, 1, rows, num_frames * columns)
        return _levels_of(strip[:, 0]).permute(1, 2, 0)

    def _grid(self, params: GenerationParams) -> tuple[int, int, int]:
        """Return latent frames, rows and columns; of a sound its tokens are a row."""
        if self.spec.is_audio:
            return (1, 1, self.spec.image_tokens(params))
        assert params.height is not None
        assert params.width is not None
        return (self.spec.latent_frames(params), params.height // _SCALE, params.width // _SCALE)


def color_of(prompt: str) -> Tensor:
    """Return the color that a prompt stands for, in -1…1, as (channels, 1, 1, 1)."""
    digest = hashlib.sha256(prompt.encode()).digest()[:_CHANNELS]
    return torch.tensor([level / 127.5 - 1 for level in digest]).view(_CHANNELS, 1, 1, 1)


def _goal(color: Tensor, request: DenoiseInput) -> Tensor:
    """Return where a request's latents go: to the color or, from an image, as far as its strength says.

    From there a control image draws them to itself, and the last frame of a clip is the one that is given.
    """
    conditioning, params = request.conditioning, request.params
    assert isinstance(conditioning, FakeConditioning)
    goal = color
    if conditioning.image is not None and params.strength is not None:
        goal = conditioning.image + params.strength * (color - conditioning.image)
    if conditioning.control is not None:
        goal = goal + (params.control_scale or 0) / 2 * (conditioning.control - goal)
    if conditioning.last is None:
        return goal
    frames = goal.expand(request.latents.shape[1:]).clone()
    frames[:, -1:] = conditioning.last
    return frames


def _noised(image: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Return what a rectified flow has made of an image at a noise level."""
    return (1 - sigma) * image + sigma * noise


def _levels(image: InputImage, rows: int, columns: int) -> Tensor:
    """Return an image's levels in 0…1 on the grid of latents, as (channels, 1, rows, columns)."""
    small = as_image(image).resize((columns, rows), Image.Resampling.BOX)
    levels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).float() / 255
    return levels.view(rows, columns, -1).permute(2, 0, 1).unsqueeze(1)


def _velocity_to(color: Tensor, request: DenoiseInput) -> Tensor:
    """Return the velocity that leads straight from the latents to a color: x₀ = x - σ·v."""
    return (request.latents - color) * (1000 / request.timestep)


def _levels_of(image: Tensor) -> Tensor:
    return ((image * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)


def _frames(image: Tensor, temporal_stride: int) -> Frames:
    """Decode (channels, frames, rows, columns): one frame of the first, a stride of the others."""
    first, rest = image[:, :1], image[:, 1:].repeat_interleave(temporal_stride, dim=1)
    image = torch.cat([first, rest], dim=1)
    levels = _levels_of(image)
    grown = levels.repeat_interleave(_SCALE, dim=-1).repeat_interleave(_SCALE, dim=-2)
    return [Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()) for frame in grown.unbind(1)]
