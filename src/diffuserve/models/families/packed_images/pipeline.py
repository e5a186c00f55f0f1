"""Pipelines of packed image transformers, behind the engine's contract.

A request's images are sequences, once for each of its texts: the prompt, and the negative prompt where one
guides. Sequences of all requests share one forward pass.
"""

import functools
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.description import Description
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.adapters.placing import AdaptedModule, place_adapter
from diffuserve.models.autoencoder.image_autoencoder import ImageAutoencoder
from diffuserve.models.families.packed_images.conditioning import ImageConditioning
from diffuserve.models.families.packed_images.images import LatentImages
from diffuserve.models.families.packed_images.passes import (
    ImagePass,
    by_request,
    conditioning_of,
    in_forwards,
    pack,
    passes_of,
)
from diffuserve.models.families.packed_images.transformer import PackedTransformer
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.layers.adapted.lora_pair import Components
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint.packing import (
    Grid,
    LayoutRules,
    PackedInput,
    PackedLayout,
    SequenceShape,
    pack_layout,
)
from diffuserve.models.layers.joint.sharding import Shard, shard_layout
from diffuserve.models.layers.sequence_parallel import rank_bytes, rank_workload, sharing_sequences, ulysses
from diffuserve.models.machine.devices import flops_per_second
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.base import Conditioning, DenoiseInput, InitialLatents
from diffuserve.models.pipelines.image_pipeline import ImagePipeline
from diffuserve.models.preview import PreviewMap
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import num_parameters
from diffuserve.parallel.pass_ranks import Hands, PassRanks, deal
from diffuserve.samplers.base import NoiseSchedule, Sampler, ScheduleStep


@runtime_checkable
class TextEncoder(Protocol):
    """The encoders of a family's texts; `largest` is the one that takes most of the time."""

    @property
    def largest(self) -> nn.Module: ...
    @property
    def components(self) -> Sequence[Component]: ...
    def key(self, params: GenerationParams) -> Hashable:
        """Return all that encoding reads of a request."""
        ...

    def encode(
        self, params: Sequence[GenerationParams], adapters: Sequence[Uses], one_by_one: bool
    ) -> Sequence[ImageConditioning]: ...


class PackedImagePipeline(ImagePipeline):
    """A loaded checkpoint of a family of packed image transformers.

    Families load these parts: `samplers` by name, the encoders of texts, the autoencoder within `images`, the
    transformer and the map of previews; `layout_rules` say where tokens stand.
    """

    samplers: Mapping[str, Sampler]
    text_encoder: TextEncoder
    images: LatentImages
    transformer: PackedTransformer
    preview_map: PreviewMap
    layout_rules: LayoutRules

    def __init__(self, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        kernel, ranks = choose_kernel(self.device, self.dtype, self.deterministic), plan.ranks
        self._sequence, self._pass_ranks = (
            sharing_sequences(ranks),
            PassRanks() if ranks is None else ranks.passes,
        )
        self.own_attention = kernel  # over whole sequences, whatever ranks share
        self.attention = kernel if self._sequence is None else ulysses(kernel, self._sequence)
        self._layout = functools.lru_cache(maxsize=8)(self._make_layout)
        self._shard = functools.lru_cache(maxsize=8)(self._make_shard)

    @abstractmethod
    def mu(self, params: GenerationParams) -> float:
        """Return the shift μ of a request's schedule."""

    @abstractmethod
    def factors(self, request: DenoiseInput, timesteps: Sequence[float]) -> Tensor:
        """Return the factor rows of an image of a request, at the first of its remaining `timesteps`.

        There is one, or one for the image and its text and one for its references.
        """

    def guided(self, prompt: Tensor, negative: Tensor, scale: float) -> Tensor:
        """Return the velocity that guidance makes of two: classifier-free guidance (arXiv:2207.12598)."""
        return negative + scale * (prompt - negative)

    def inputs(self, request: DenoiseInput) -> Tensor:
        """Return the channels of the tokens of a request's images, without references."""
        return request.latents

    def controlled(self, packed: PackedInput, passes: Sequence[ImagePass]) -> PackedInput:
        """Return the input of passes with what ControlNets add in their step."""
        return packed

    def padding(self, text: int, image: Grid) -> int:
        """Return the learned tokens after an image."""
        return 0

    def describe(self) -> Description:
        return self.described(self.attention.name)

    def cost_prior(self) -> CostFit:
        shape, rate = self.transformer.shape, flops_per_second(self.device, self.dtype)
        text_token = 2 * num_parameters(self.text_encoder.largest) / rate
        token, pair = shape.token_operations / rate, shape.pair_operations / rate
        # Two thousand operations per decoded pixel and parameter.
        pixel = 2 * self.images.vae.decoder_parameters / rate / 16
        fit = CostFit((0.002, text_token), (0.002, token, pair, 0.0001), (0.001, pixel))
        return self.residency.slowed(fit, self.device.type)

    def components(self) -> Sequence[Component]:
        return (
            *self.text_encoder.components,
            self.transformer.component,
            *self.images.vae.components,
        )

    def step_bytes(self, workload: Workload) -> int:
        own = rank_workload(workload, self.ranks)
        return rank_bytes(self.transformer.shape.step_bytes(own, self.dtype.itemsize), self.ranks)

    def place_adapter(self, name: str, components: Components) -> Adapter:
        return place_adapter(name, components, self.adapted_modules, self.device)

    @property
    def adapted_modules(self) -> Sequence[AdaptedModule]:
        """Return what takes adapters."""
        return [AdaptedModule("transformer", self.transformer, self.transformer.placements())]

    def conditioning_key(self, params: GenerationParams) -> Hashable:
        text = self.text_encoder.key(params)
        if not params.images:
            return text
        if not self.spec.starts_from_image(params):
            return (text, params.images)
        return (text, params.images, params.mask, params.width, params.height)

    @torch.inference_mode()
    def encode(self, params: Sequence[GenerationParams], adapters: Sequence[Uses] = ()) -> list[Conditioning]:
        adapters = adapters or [()] * len(params)
        texts = self.text_encoder.encode(params, adapters, one_by_one=self.deterministic)
        return [self.images.encode(text, wanted) for text, wanted in zip(texts, params, strict=True)]

    @torch.inference_mode()
    def init_latents(
        self, params: GenerationParams, conditioning: Conditioning, generators: Sequence[torch.Generator]
    ) -> InitialLatents:
        """Draw noise on the CPU, as diffusers does with CPU generators.

        The result is packed: (num_images, tokens, channels).
        """
        grid, patch, schedule = self.grid(params), self.images.patch, self.schedule(params)
        size = (1, self.images.vae.latent_channels, patch * grid.rows, patch * grid.columns)
        first = schedule.at(schedule.start)
        return self.images.begin(size, conditioning_of(conditioning), generators, self.sampler(params), first)

    def latents_shape(self, params: GenerationParams) -> tuple[int, ...]:
        return (params.num_images, self.grid(params).tokens, self._channels)

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        assert params.num_inference_steps is not None
        schedule = self.sampler(params).schedule(params.num_inference_steps, self.mu(params))
        return schedule.starting_at(self.spec.first_step(params))

    def sampler(self, params: GenerationParams) -> Sampler:
        return self.samplers[params.sampler or self.spec.sampler]

    @torch.inference_mode()
    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        """Return each request's velocity in the shape of its latents: (num_images, tokens, channels)."""
        passes = self._passes_of(batch)
        velocities: dict[int, Tensor] = {}
        for indices in in_forwards(passes, self.is_compiled):
            velocities |= zip(indices, self._forward([passes[index] for index in indices]), strict=True)
        in_order = [velocities[index] for index in range(len(passes))]
        by_text = zip(batch, by_request(batch, in_order), strict=True)
        return [self._prediction(request.params, texts) for request, texts in by_text]

    def prepare(self, batch: Sequence[DenoiseInput]) -> None:
        passes = self._passes_of(batch)
        for indices in in_forwards(passes, self.is_compiled):
            ordered = [passes[index] for index in indices]
            shapes = self._own_shapes(ordered, self._hands(ordered))
            if shapes:
                (self._layout if self._sequence is None else self._shard)(shapes)

    @property
    def is_compiled(self) -> bool:
        """Return whether blocks of the transformer run compiled halves."""
        lists = (each for each in self.transformer.children() if isinstance(each, nn.ModuleList))
        firsts = (blocks[0] for blocks in lists if len(blocks))
        return any(getattr(block, "compiled", None) is not None for block in firsts)

    def restore(self, latents: Tensor, request: DenoiseInput, at: ScheduleStep) -> Tensor:
        return self.images.restore(latents, request, self.sampler(request.params), at)

    @property
    def autoencoder(self) -> ImageAutoencoder:
        return self.images.vae

    def latent_images(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> Float[Tensor, "images channels height width"]:
        return self.images.unpack(torch.cat(list(latents)), self.grid(params[0]).rows)

    @torch.inference_mode()
    def preview(self, latents: Tensor, params: GenerationParams) -> Tensor:
        return self.preview_map.draw(self.images.unpack(latents[:1], self.grid(params).rows)[0])

    def grid(self, params: GenerationParams) -> Grid:
        """Return the tokens of a generated image."""
        assert params.height is not None
        assert params.width is not None
        return self._grid(params.width, params.height)

    def _passes_of(self, batch: Sequence[DenoiseInput]) -> list[ImagePass]:
        return [each for request in batch for each in passes_of(request, self._shape)]

    def _prediction(self, params: GenerationParams, velocities: Sequence[Tensor]) -> Tensor:
        """Return the velocity of a request's images from those with each of its texts."""
        prompt, *negative = velocities
        return self.guided(prompt, negative[0], params.guidance_scale or 0.0) if negative else prompt

    def _forward(self, passes: Sequence[ImagePass]) -> Sequence[Tensor]:
        """Return the velocities of the image tokens of passes, of which each group of ranks runs some."""
        hands, lengths = self._hands(passes), [each.shape.image_tokens for each in passes]
        own = self._own_input([passes[index] for index in hands[self._pass_ranks.index]])
        with nullcontext() if self.ranks is None else self.ranks.together():
            return self._pass_ranks.gather(self._run(own), lengths, hands)

    def _own_input(self, passes: Sequence[ImagePass]) -> PackedInput | None:
        """Lay out passes of this group of ranks, and return this rank's part; `None` if there are none."""
        if not passes:
            return None
        shapes = tuple(each.shape for each in passes)
        packed = self.controlled(pack(passes, self._layout(shapes), self.inputs, self._factors_of), passes)
        return packed if self._sequence is None else self._shard(shapes).of(packed)

    def _run(self, own: PackedInput | None) -> Tensor:
        """Return the velocities of all image tokens of this group's passes, one after the other."""
        if own is None:
            return torch.empty(0, self._channels, dtype=self.dtype, device=self.device)
        velocities: Tensor = self.transformer(own)
        return velocities if self._sequence is None else self._sequence.gather(velocities)

    def _hands(self, passes: Sequence[ImagePass]) -> Hands:
        """Return which passes each group of ranks runs."""
        per_token, per_pair = self.transformer.shape.token_operations, self.transformer.shape.pair_operations
        tokens = [each.shape.tokens for each in passes]
        return deal([count * (per_token + per_pair * count) for count in tokens], self._pass_ranks.size)

    def _own_shapes(self, passes: Sequence[ImagePass], hands: Hands) -> tuple[SequenceShape, ...]:
        return tuple(passes[index].shape for index in hands[self._pass_ranks.index])

    def _factors_of(self, request: DenoiseInput) -> Tensor:
        """Return the factor rows of a request's step; the first step computes those of all steps."""
        return self.factors(request, self._timesteps_ahead(request))

    def _timesteps_ahead(self, request: DenoiseInput) -> Sequence[float]:
        """Return the timesteps of a request from its step on."""
        timesteps = self.schedule(request.params).timesteps
        is_planned = request.timestep in timesteps
        return timesteps[timesteps.index(request.timestep) :] if is_planned else (request.timestep,)

    @property
    def _channels(self) -> int:
        """Return the channels of a token of latents, which its velocity has too."""
        return self.images.patch**2 * self.images.vae.latent_channels

    def _make_layout(self, shapes: tuple[SequenceShape, ...]) -> PackedLayout:
        return pack_layout(shapes, self.layout_rules, self.device)

    def _make_shard(self, shapes: tuple[SequenceShape, ...]) -> Shard:
        assert self._sequence is not None
        return shard_layout(self._layout(shapes), self._sequence.index, self._sequence.size)

    def _shape(self, request: DenoiseInput, text: Tensor) -> SequenceShape:
        """Return the tokens of an image of a request, with one of its texts."""
        grid = self.grid(request.params)
        references = self._references(request.params)
        return SequenceShape(len(text), grid, references, self.padding(len(text), grid))

    def _references(self, params: GenerationParams) -> tuple[Grid, ...]:
        return tuple(self._grid(*size) for size in self.spec.reference_sizes(params))

    def _grid(self, width: int, height: int) -> Grid:
        pixels = self.images.patch * self.images.vae.scale
        return Grid(height // pixels, width // pixels)
