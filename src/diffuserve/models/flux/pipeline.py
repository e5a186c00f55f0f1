"""FLUX.1 (schnell, dev, Kontext and Fill) behind the engine's `Pipeline` contract."""

import functools
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.image_vae import ImageVae
from diffuserve.models.base import CompilableParts, Conditioning, DenoiseInput, InitialLatents
from diffuserve.models.batches import run_in_groups, split_by_counts
from diffuserve.models.flux.compiled import HALVES, block_shape, use_compiled
from diffuserve.models.flux.config import PATCH, TRANSFORMER_LAYERS, FluxConfig
from diffuserve.models.flux.images import FluxImages
from diffuserve.models.flux.latents import FLUX_PREVIEW, unpack_latents
from diffuserve.models.flux.packing import Grid, PackedLayout, SequenceShape, pack_layout
from diffuserve.models.flux.schedule_factors import ScheduleFactors
from diffuserve.models.flux.sharding import Shard, shard_layout
from diffuserve.models.flux.shift import SizeShift
from diffuserve.models.flux.text import FluxConditioning, FluxTextEncoder
from diffuserve.models.flux.transformer import FluxTransformer, PackedInput
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.frames import Frames
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.linear import check_deterministic_width, cpu_tilings
from diffuserve.models.layers.quantized_linear import quantize_layers
from diffuserve.models.layers.sequence_parallel import rank_bytes, ulysses
from diffuserve.models.loaded_pipeline import LoadedPipeline, with_dtype
from diffuserve.models.machine.devices import flops_per_second
from diffuserve.models.offload.components import Component
from diffuserve.models.preview import read_preview_map
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights, num_parameters
from diffuserve.parallel.plan import check_shared
from diffuserve.samplers.base import NoiseSchedule, Sampler, ScheduleStep
from diffuserve.samplers.registry import named_sampler


def load_flux(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> "FluxPipeline":
    """Load a folder that has all of its files."""
    plan = with_dtype(plan, folder, "transformer")
    if plan.ranks is not None:
        check_shared(plan.ranks.plan, "attention heads", FluxConfig.read(folder).num_attention_heads)
    return FluxPipeline(folder, spec, plan)


class FluxPipeline(LoadedPipeline):
    """A loaded FLUX.1 checkpoint."""

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        config, parts = FluxConfig.read(folder), plan.parts
        scheduler = folder.json("scheduler/scheduler_config.json")
        self._samplers = {name: named_sampler(name, scheduler) for name in spec.samplers}
        self._shift = SizeShift.from_config(scheduler)
        lowercase = bool(folder.settings.get("lowercase_prompt", False))
        self.text_encoder = FluxTextEncoder(folder, plan.when(parts.encoding), lowercase)
        encodes = parts.encoding and spec.max_input_images > 0
        self.vae = ImageVae(folder, plan, has_encoder=encodes, has_decoder=parts.decoding)
        self.images = FluxImages(folder, spec, self.vae, self.dtype)
        self.preview_map = read_preview_map(folder, self.vae.latent_channels, FLUX_PREVIEW, self.device)
        kernel = choose_kernel(self.device, self.dtype, self.deterministic)
        ranks = plan.ranks
        self._sequence = ranks.sequence if ranks is not None and ranks.sequence.size > 1 else None
        self.attention = kernel if self._sequence is None else ulysses(kernel, self._sequence)
        self.transformer = self._load_transformer(folder, config, plan.when(parts.denoising))
        self._factors = ScheduleFactors(self.transformer)
        self._layout = functools.lru_cache(maxsize=8)(self._make_layout)
        self._shard = functools.lru_cache(maxsize=8)(self._make_shard)

    def describe(self) -> Mapping[str, str]:
        return self.described(self.attention.name)

    def cost_prior(self) -> CostFit:
        config, rate = self.transformer.config, flops_per_second(self.device, self.dtype)
        text_token = 2 * num_parameters(self.text_encoder.t5) / rate
        token, pair = config.token_operations / rate, config.pair_operations / rate
        # Two thousand operations per decoded pixel and parameter.
        pixel = 2 * num_parameters(self.vae.decoder) / rate / 16
        fit = CostFit((0.002, text_token), (0.002, token, pair, 0.0001), (0.001, pixel))
        return self.residency.slowed(fit, self.device.type)

    @property
    def blocks(self) -> CompilableParts:
        shape = block_shape(self.transformer.config)
        return CompilableParts(shape, HALVES, functools.partial(use_compiled, self.transformer))

    def components(self) -> Sequence[Component]:
        encoders = (self.text_encoder.clip.component, self.text_encoder.t5.component)
        return (*encoders, self.transformer.component, *self.vae.components)

    def step_bytes(self, workload: Workload) -> int:
        return rank_bytes(self.transformer.config.step_bytes(workload, self.dtype.itemsize), self.ranks)

    def conditioning_key(self, params: GenerationParams) -> Hashable:
        text = (params.prompt, params.max_sequence_length)
        if not params.images:
            return text
        if not self.spec.has_strength:
            return (*text, params.images)
        return (*text, params.images, params.mask, params.width, params.height)

    @torch.inference_mode()
    def encode(self, params: Sequence[GenerationParams]) -> list[Conditioning]:
        if self.deterministic:
            texts = [self.text_encoder.encode([wanted])[0] for wanted in params]
        else:
            texts = run_in_groups(params, lambda wanted: wanted.max_sequence_length, self.text_encoder.encode)
        return [self.images.encode(text, wanted) for text, wanted in zip(texts, params, strict=True)]

    @torch.inference_mode()
    def init_latents(
        self, params: GenerationParams, conditioning: Conditioning, generators: Sequence[torch.Generator]
    ) -> InitialLatents:
        """Draw noise on the CPU, as diffusers does with CPU generators.

        The result is packed: (num_images, tokens, 4 · latent channels).
        """
        grid, schedule = self._shape(params).image, self.schedule(params)
        size = (1, self.vae.latent_channels, PATCH * grid.rows, PATCH * grid.columns)
        first = schedule.at(schedule.start)
        return self.images.begin(size, _flux(conditioning), generators, self.sampler(params), first)

    def latents_shape(self, params: GenerationParams) -> tuple[int, ...]:
        channels = PATCH * PATCH * self.vae.latent_channels
        return (params.num_images, self._shape(params).image.tokens, channels)

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        assert params.num_inference_steps is not None
        mu = self._shift.mu(self._shape(params).image.tokens)
        schedule = self.sampler(params).schedule(params.num_inference_steps, mu)
        return schedule.starting_at(self.spec.first_step(params))

    def sampler(self, params: GenerationParams) -> Sampler:
        return self._samplers[params.sampler or self.spec.sampler]

    @torch.inference_mode()
    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        """Return each request's velocity in the shape of its latents: (num_images, tokens, channels)."""
        # Adjacent sequences of equal length share one dense attention call, so sort by shape.
        order = sorted(range(len(batch)), key=lambda i: self._sort_key(batch[i].params))
        ordered = [batch[i] for i in order]
        shapes = self._shapes([request.params for request in ordered])
        velocity = self._velocity(self._pack(ordered, self._layout(shapes)), shapes)
        sizes = [len(request.latents) * self._shape(request.params).image_tokens for request in ordered]
        parts = zip(order, ordered, velocity.split(sizes), strict=True)
        predictions = {index: _of_image(part, request.latents) for index, request, part in parts}
        return [predictions[i] for i in range(len(batch))]

    def prepare(self, batch: Sequence[DenoiseInput]) -> None:
        ordered = sorted((request.params for request in batch), key=self._sort_key)
        shapes = self._shapes(ordered)
        self._layout(shapes)
        if self._sequence is not None:
            self._shard(shapes)

    def restore(self, latents: Tensor, request: DenoiseInput, at: ScheduleStep) -> Tensor:
        return self.images.restore(latents, request, self.sampler(request.params), at)

    @torch.inference_mode()
    def decode(self, latents: Sequence[Tensor], params: Sequence[GenerationParams]) -> list[list[Frames]]:
        rows = self._shape(params[0]).image.rows
        unpacked = unpack_latents(torch.cat(list(latents)), rows)
        pixels = unpacked.shape[-2] * unpacked.shape[-1] * self.vae.scale**2
        group = max(1, self.max_decode_pixels // pixels)
        frames = [[image] for part in unpacked.split(group) for image in self.vae.decode(part)]
        return split_by_counts(frames, [wanted.num_images for wanted in params])

    def decode_bytes(self, params: GenerationParams) -> int:
        return self.vae.decode_bytes(params)

    @torch.inference_mode()
    def preview(self, latents: Tensor, params: GenerationParams) -> Tensor:
        return self.preview_map.draw(unpack_latents(latents[:1], self._shape(params).image.rows)[0])

    def _velocity(self, packed: PackedInput, shapes: tuple[SequenceShape, ...]) -> Tensor:
        """Return the velocities of all image tokens, on every rank."""
        if self.ranks is None:
            return self.transformer(packed)
        part = packed if self._sequence is None else self._shard(shapes).of(packed)
        with self.ranks.together():
            velocity: Tensor = self.transformer(part)
            if self._sequence is not None:
                velocity = self._sequence.gather(velocity)[: len(packed.image)]
        return velocity

    def _pack(self, batch: Sequence[DenoiseInput], layout: PackedLayout) -> PackedInput:
        """Lay out a sequence for each image; those of one request share its conditioning and timestep."""
        images = [
            (request, _flux(request.conditioning))
            for request in batch
            for _ in range(request.params.num_images)
        ]
        return PackedInput(
            image=torch.cat([self._tokens(request) for request in batch]),
            text=torch.cat([conditioning.sequence for _, conditioning in images]),
            factors=torch.cat([self._factors_of(request) for request, _ in images]),
            layout=layout,
        )

    def _factors_of(self, request: DenoiseInput) -> Tensor:
        """Return the modulation factors of a request's step; the first step computes those of all steps."""
        timesteps = self.schedule(request.params).timesteps
        is_planned = request.timestep in timesteps
        ahead = timesteps[timesteps.index(request.timestep) :] if is_planned else (request.timestep,)
        guidance = float(request.params.guidance_scale or 0.0)
        return self._factors.of(_flux(request.conditioning).pooled, guidance, ahead)

    def _tokens(self, request: DenoiseInput) -> Tensor:
        """Return the tokens of a request's images, each with its guides and followed by its references."""
        tokens = request.latents
        if self.images.fills_in:
            tokens = torch.cat([tokens, *request.guides], dim=-1)
        references = _flux(request.conditioning).references
        if references is not None:
            tokens = torch.cat([tokens, references.expand(len(tokens), -1, -1)], dim=1)
        return tokens.flatten(0, 1)

    def _make_layout(self, shapes: tuple[SequenceShape, ...]) -> PackedLayout:
        return pack_layout(shapes, self.transformer.config.axes_dims_rope, self.device)

    def _make_shard(self, shapes: tuple[SequenceShape, ...]) -> Shard:
        assert self._sequence is not None
        return shard_layout(self._layout(shapes), self._sequence.index, self._sequence.size)

    def _shapes(self, ordered: Sequence[GenerationParams]) -> tuple[SequenceShape, ...]:
        """Return the shapes of the sequences of a batch in this order, one for each image."""
        return tuple(self._shape(params) for params in ordered for _ in range(params.num_images))

    def _shape(self, params: GenerationParams) -> SequenceShape:
        assert params.max_sequence_length is not None
        assert params.height is not None
        assert params.width is not None
        images = [image for image in params.images if isinstance(image, InputImage)]
        references = () if self.spec.has_strength else map(self.spec.reference_size, images)
        return SequenceShape(
            params.max_sequence_length,
            self._grid(params.width, params.height),
            tuple(self._grid(*size) for size in references),
        )

    def _grid(self, width: int, height: int) -> Grid:
        pixels = PATCH * self.vae.scale
        return Grid(height // pixels, width // pixels)

    def _sort_key(self, params: GenerationParams) -> tuple[int, int, int, int]:
        shape = self._shape(params)
        return (shape.tokens, shape.text, shape.image_tokens, shape.image.rows)

    def _load_transformer(self, folder: ModelFolder, config: FluxConfig, plan: LoadPlan) -> FluxTransformer:
        with torch.device("meta"):
            transformer = FluxTransformer(config, self.attention)
            quantize_layers(transformer, TRANSFORMER_LAYERS, plan.kept_in)
            if plan.ranks is not None and plan.ranks.tensor is not None:
                transformer.share_weights(plan.ranks.tensor)
        files = folder.weights("transformer")
        load_weights(transformer, files, transformer.placements(), plan)
        if plan.device.type == "cpu":
            transformer.set_tiling(*cpu_tilings(plan.deterministic))
        if plan.deterministic:
            check_deterministic_width(config.dim, folder.path)
        return transformer.eval()


def _of_image(part: Tensor, latents: Tensor) -> Tensor:
    """Return a request's velocities, without those of its references, in the shape of its latents."""
    return part.view(len(latents), -1, latents.shape[-1])[:, : latents.shape[1]]


def _flux(conditioning: Conditioning) -> FluxConditioning:
    assert isinstance(conditioning, FluxConditioning)
    return conditioning
