"""The contract between the engine and a model family.

A `Pipeline` holds weights, but not the progress of requests: that is in the engine's `RequestState`, so
requests at different steps can share one forward pass.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.description import Description
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.residency import RESIDENT, Residency
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.sendable import Sendable
from diffuserve.models.frames import Frames, Media, Sound
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.layers.adapted.lora_pair import Components
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.run_progress import RunProgress
from diffuserve.parallel.ranks import Ranks
from diffuserve.samplers.base import NoiseSchedule, Sampler, ScheduleStep

Value = TypeVar("Value")
Request = TypeVar("Request", bound="RunningRequest")


@dataclass(frozen=True)
class Conditioning(Sendable):
    """The output of the encoders for a request's prompts and images; families add their tensors.

    It does not depend on the seed. `warnings` tell the client about changes to its request, such as a
    truncated prompt.
    """

    warnings: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the tensors, and of other values that have a `num_bytes`."""
        return sum(_num_bytes(getattr(self, field.name)) for field in fields(self))


def _num_bytes(value: object) -> int:
    if isinstance(value, tuple):
        return sum(map(_num_bytes, value))
    return int(getattr(value, "nbytes", 0))


def map_tensors(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """Return a value with `change` applied to its tensors, including those in tuples and dataclasses."""
    if isinstance(value, Tensor):
        return cast(Value, change(value))
    if isinstance(value, tuple):
        return cast(Value, tuple(map_tensors(item, change) for item in value))
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: map_tensors(getattr(value, field.name), change) for field in fields(value)}
        return replace(value, **own)
    return value


@dataclass(frozen=True)
class InitialLatents:
    """Latents before the first step, with images along the first axis, and the tensors that guide all steps.

    `guides` stay with the request until its end. They were drawn with its latents or are the same for all its
    steps, such as a mask, the latents of a masked image, or the first noise.
    """

    latents: Tensor
    guides: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class DenoiseInput:
    """A request's part of a shared denoising step.

    The first axis of `latents` counts images; `timestep` is on the scale of the schedule's `timesteps`.
    Families whose sampler scales the model's input multiply the latents by `input_scale`. `adapters` are
    those of the request, in the device's memory. The request has taken `step` of `num_steps` steps before.
    """

    params: GenerationParams
    conditioning: Conditioning
    latents: Tensor
    timestep: float
    input_scale: float = 1.0
    guides: tuple[Tensor, ...] = ()
    adapters: Uses = ()
    step: int = 0
    num_steps: int = 1


@dataclass(frozen=True)
class CompilableParts:
    """Blocks of a loaded model that compiled halves can run; `shape` is what those depend on.

    `use` has them run by the halves of these names.
    """

    shape: str
    names: tuple[str, ...]
    use: Callable[[Mapping[str, Callable[..., tuple[Tensor, ...]]]], None]


@runtime_checkable
class Pipeline(Protocol):
    """A loaded model, whichever way it runs. Parameters passed to it have been resolved by `spec.resolve`.

    `spec.workload` is the size that price, admission and budgets go by, so it must be the size of the
    work that a step does. `max_decode_pixels` bounds the pixels of one call of the decoder; a single request
    larger than that is decoded alone. `parts` are those that are loaded; nothing else of it is called.
    `dtype` is the denoiser's, `quantization` is what weights are kept in, and `residency` where they are.
    What only some families do has a default in `PipelineDefaults`.
    """

    residency: Residency

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def parts(self) -> Parts: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def ranks(self) -> Ranks | None: ...
    @property
    def quantization(self) -> Quantization: ...
    @property
    def max_decode_pixels(self) -> int: ...
    @property
    def blocks(self) -> CompilableParts | None:
        """Return the blocks that compiled halves can run; `None` if there are none."""

    def describe(self) -> Description:
        """Return the choices made at load time: dtype, attention kernel…"""
        ...

    def cost_prior(self) -> CostFit:
        """Estimate a fit from the architecture and the device, for use until steps are measured."""
        ...

    def step_bytes(self, workload: Workload) -> int:
        """Predict the peak memory, in bytes, of a request's part of a denoising step, on each rank."""
        ...

    def decode_bytes(self, params: GenerationParams) -> int:
        """Predict the peak memory, in bytes, of decoding one image or clip.

        For a clip this is the peak of decoding one chunk plus what is kept between chunks.
        """
        ...

    def has_measured(self, workload: Workload) -> bool:
        """Return whether `step_bytes` is known for so long a sequence, not guessed from shorter ones."""
        ...

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        """Return the noise levels of a request's steps, starting at the level of its `strength`."""
        ...

    def conditioning_key(self, params: GenerationParams) -> Hashable | None:
        """Return the prompt cache's key: requests with equal keys have equal conditioning.

        It covers everything that encoding reads: prompts, lengths, and input images with the size to which
        they are scaled. `None` stands for conditioning that belongs to its request alone.
        """
        ...

    def place_adapter(self, name: str, components: Components) -> Adapter:
        """Bring an adapter, as its file has it, to the device.

        Raise `InvalidAdapter`, which names it and the layer, if it does not fit the model.
        """
        ...

    def components(self) -> Sequence[Component]:
        """Return the parts whose weights may stay on the host; all other weights are on the device."""
        ...


@runtime_checkable
class PackedPipeline(Pipeline, Protocol):
    """A model whose requests share one forward pass: it holds nothing of them, the engine holds all."""

    def encode(self, params: Sequence[GenerationParams], adapters: Sequence[Uses] = ()) -> list[Conditioning]:
        """Encode prompts and input images, in batches where possible; return results in order.

        `adapters` are, for each request, those of its adapters that change how prompts are encoded; without
        any argument there are none.

        This draws no random numbers: the result holds the distribution of an input image's latents, from
        which `init_latents` draws.
        """
        ...

    def init_latents(
        self, params: GenerationParams, conditioning: Conditioning, generators: Sequence[torch.Generator]
    ) -> InitialLatents:
        """Return the latents before the first step, in the size of the request.

        Each image draws from its own generator, on the CPU and in the order in which diffusers draws;
        samplers draw their noise from the same generators later.
        """
        ...

    def latents_shape(self, params: GenerationParams) -> tuple[int, ...]:
        """Return the shape of a request's latents, images along the first axis."""
        ...

    def sampler(self, params: GenerationParams) -> Sampler:
        """Return the sampler of a request."""
        ...

    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        """Return the model's prediction for each request, shaped like its latents.

        Requests may differ in everything: a prediction, with guidance, depends on its own alone (INV-1).
        """
        ...

    def restore(self, latents: Tensor, request: DenoiseInput, at: ScheduleStep) -> Tensor:
        """Return the latents after a step, with the kept parts of the request's input image restored.

        `request` is the input of the step `at`, and `latents` are at the next noise level. Families that
        restore nothing return `latents`.
        """
        ...

    def decode(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> Sequence[Sequence[Frames | Sound]]:
        """Decode finished latents of equal size; return `num_images` lists of frames for each request.

        Models of sounds return sounds instead.
        """
        ...

    def decodes_in_slabs(self, params: GenerationParams) -> bool:
        """Return whether an image of this size is decoded by all ranks together, each a slab of its rows."""
        ...

    def decode_in_slabs(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> Sequence[Sequence[Frames | Sound]]:
        """Return on every rank what `decode` returns, decoded by all ranks together."""
        ...

    def preview(self, latents: Tensor, params: GenerationParams) -> Tensor:
        """Return a small, cheap RGB preview of the first of these unfinished images.

        For a clip it is a strip of evenly spaced frames. It is an 8-bit tensor of shape (rows, columns, 3) on
        the pipeline's device, since copying it here would make the step wait.
        """
        ...

    def prepare(self, batch: Sequence[DenoiseInput]) -> None:
        """Make and keep what `denoise` will need beside its input, where a step of this batch is likely.

        It is called while the device works on another step, so that the device need not wait for it. It
        only saves time: `denoise` makes what is missing.
        """
        ...

    def decode_chunks(self, latents: Tensor, params: GenerationParams) -> Iterator[Frames | Sound]:
        """Yield the frames of one clip in order, some at a time, after its sound if it has one.

        `latents` are those of a single clip, with a first axis of length 1. Each `next` decodes a chunk;
        in between, the device may work on other requests. All chunks together equal the clip decoded as a
        whole, bit for bit. Closing the iterator frees what it keeps from chunk to chunk.
        """
        ...


def packed(pipeline: Pipeline) -> PackedPipeline:
    """Return a pipeline as what it is known to be: packed."""
    assert isinstance(pipeline, PackedPipeline), f"{pipeline.spec.name} runs its requests by themselves"
    return pipeline


@runtime_checkable
class RunningRequest(Protocol):
    """A request in a pipeline that runs by itself: its state is here, and not in the engine.

    `warnings` tell the client what the pipeline changed about its request, and `held_bytes` is about what
    ending it frees.
    """

    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def held_bytes(self) -> int:
        """Return the bytes of what it holds on the device between its passes."""
        ...

    @property
    def num_calls(self) -> int:
        """Return how often its models were called so far, the calls at which it stands included."""
        ...

    def progress(self) -> tuple[RunProgress, ...]:
        """Return what each of its images goes on from, on the CPU; called where `spec.resumes`."""
        ...

    def close(self) -> None:
        """End the request where it stands, and free what it holds; do nothing if it has ended."""
        ...


@runtime_checkable
class RunningPipeline(Pipeline, Protocol[Request]):
    """A model whose requests run by themselves and stop at its forward passes, which they may share.

    Methods that advance requests return, for each, `None` or the exception that it alone raised; one that
    failed in a pass stands where it stood, and the same pass may be tried again.
    """

    def begin(
        self, params: GenerationParams, progress: Sequence[RunProgress] = (), adapters: Uses = ()
    ) -> Request:
        """Return a request that stands before its first line; image `i` has the seed `seed + i`.

        With `progress`, one for each image, it goes on from there. `adapters` are in the device's memory.
        """
        ...

    def encode(self, requests: Sequence[Request]) -> list[Exception | None]:
        """Run each request up to its first denoising pass, or the first one after its progress."""
        ...

    def step(self, steps: Sequence["RunningStep[Request]"]) -> list[Exception | None]:
        """Take each request through its step, in shared passes where they fit together."""
        ...

    def previews(self, request: Request) -> tuple[Tensor, ...]:
        """Return a small preview of each image, as `PackedPipeline.preview` does; none if it has none."""
        ...

    def decode(self, requests: Sequence[Request], images: Sequence[range]) -> list[list[Media] | Exception]:
        """Run some images of each denoised request to their ends, and return what they are."""
        ...


@dataclass(frozen=True)
class RunningStep(Generic[Request]):
    """Step `index` of the `count` of a request, of some of its images."""

    request: Request
    index: int
    count: int
    images: range


class PipelineDefaults:
    """Defaults of pipelines that draw single images, and whose weights are resident and as they were."""

    deterministic = False
    ranks: Ranks | None = None
    quantization = Quantization.NONE
    residency = RESIDENT

    @property
    def blocks(self) -> CompilableParts | None:
        return None

    def has_measured(self, workload: Workload) -> bool:
        """Return that sizes are known by the architecture."""
        return True

    def prepare(self, batch: Sequence[DenoiseInput]) -> None:
        """Do nothing: steps need nothing beside their input."""

    def place_adapter(self, name: str, components: Components) -> Adapter:
        raise InvalidAdapter(f"adapter {name!r}: {type(self).__name__} takes none")

    def decode_chunks(self, latents: Tensor, params: GenerationParams) -> Iterator[Frames | Sound]:
        raise NotImplementedError(f"{type(self).__name__} generates no clips")

    def decodes_in_slabs(self, params: GenerationParams) -> bool:
        """Return that a rank decodes a request by itself."""
        return False

    def decode_in_slabs(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> Sequence[Sequence[Frames | Sound]]:
        raise NotImplementedError(f"{type(self).__name__} decodes each image on one rank")

    def components(self) -> Sequence[Component]:
        return ()
