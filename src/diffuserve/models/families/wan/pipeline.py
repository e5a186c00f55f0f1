"""Wan 2.1 and 2.2 behind the engine's `Pipeline` contract."""

import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.description import Description
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.adapters.placing import AdaptedModule, place_adapter
from diffuserve.models.families.wan.checkpoint import WanCheckpoint
from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.families.wan.images import FirstFrames, put_first_frame
from diffuserve.models.families.wan.packing import ClipShape, Layouts, unpatchify
from diffuserve.models.families.wan.passes import Pass, guided, pack, passes_of, wan
from diffuserve.models.families.wan.scheduler import EULER, flow_config, own_sampler, scheduler_config
from diffuserve.models.families.wan.sharding import ClipShard, shard_layout
from diffuserve.models.families.wan.text import WanConditioning, WanTextEncoder
from diffuserve.models.families.wan.transformer import PackedWanInput, load_transformer
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.frames import Frames
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.layers.adapted.lora_pair import Components
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.sequence_parallel import (
    rank_bytes,
    rank_workload,
    sharing_sequences,
    ulysses,
)
from diffuserve.models.machine.devices import flops_per_second, to_device
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.base import Conditioning, DenoiseInput, InitialLatents
from diffuserve.models.pipelines.batches import run_in_groups, split_by_counts
from diffuserve.models.pipelines.loaded_pipeline import LoadedPipeline, with_dtype
from diffuserve.models.video_autoencoder.cost import decode_bytes, decode_operations
from diffuserve.models.video_autoencoder.previews import draw_strip, preview_map
from diffuserve.models.video_autoencoder.video_vae import VideoVae, vae_dtype
from diffuserve.models.vision.clip_vision import ClipImageEncoder
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import num_parameters
from diffuserve.parallel.pass_ranks import Hands, PassRanks, deal
from diffuserve.parallel.plan import check_shared
from diffuserve.samplers.base import NoiseSchedule, Sampler, ScheduleStep
from diffuserve.samplers.flow_match_euler import FlowMatchEulerBetweenEnds
from diffuserve.samplers.registry import checkpoint_sampler, named_sampler


def load_wan(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> "WanPipeline":
    """Load a folder that has all of its files."""
    plan = with_dtype(plan, folder, "transformer", half=torch.bfloat16)
    if plan.ranks is not None:
        heads = WanTransformerConfig.read(folder).num_attention_heads
        check_shared(plan.ranks.plan, "attention heads", heads)
    return WanPipeline(folder, spec, plan)


class WanPipeline(LoadedPipeline):
    """A loaded Wan checkpoint."""

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        self.checkpoint = checkpoint = WanCheckpoint.read(folder)
        parts, encoder_plan = plan.parts, plan.when(plan.parts.encoding)
        scheduler = scheduler_config(folder)
        self._own_sampler = _own_sampler(scheduler)
        self._named_sampler = functools.cache(
            lambda name: (
                self._own_sampler
                if name == own_sampler(scheduler)
                else named_sampler(name, flow_config(scheduler, name))
            )
        )
        self._num_timesteps = scheduler.get("num_train_timesteps", 1000)
        self._second_guidance = _second_guidance(folder, spec)
        self.text = WanTextEncoder(folder, spec, encoder_plan)
        encodes = parts.encoding and spec.max_input_images > 0
        vae_plan = replace(plan, dtype=vae_dtype(folder, self.device))
        self.vae = VideoVae(folder, vae_plan, encodes, parts.decoding)
        reads_clip = checkpoint.has_image_encoder
        image_encoder = ClipImageEncoder.read(folder, encoder_plan) if reads_clip else None
        self.images = FirstFrames(self.vae, image_encoder, checkpoint.reads_clip)
        self.preview_map = preview_map(folder, checkpoint.vae.z_dim, self.device)
        kernel = choose_kernel(self.device, self.dtype, self.deterministic)
        self._sequence = sharing_sequences(self.ranks)
        self._passes = PassRanks() if self.ranks is None else self.ranks.passes
        self.attention = kernel if self._sequence is None else ulysses(kernel, self._sequence)
        self.experts = [
            load_transformer(folder, component, self.attention, plan.when(parts.denoising))
            for component in checkpoint.experts
        ]
        self._layouts = Layouts(checkpoint.transformer, self.device)
        self._shard = functools.lru_cache(maxsize=8)(self._make_shard)

    def describe(self) -> Description:
        return self.described(self.attention.name, self.vae.dtype)

    def cost_prior(self) -> CostFit:
        config, vae = self.checkpoint.transformer, self.checkpoint.vae
        rate = flops_per_second(self.device, self.dtype)
        token = 2 * num_parameters(self.experts[0]) / rate
        text_token = 2 * num_parameters(self.text.model) / rate
        pair = 4 * config.dim * config.num_layers / rate
        width, height = self.spec.width, self.spec.height
        shorter, longer = (decode_operations(vae, width, height, frames) for frames in (5, 9))
        pixel = (longer - shorter) / (width * height) / flops_per_second(self.device, self.vae.dtype)
        fit = CostFit((0.002, text_token), (0.002, token, pair, 0.0001), (0.001, pixel))
        return self.residency.slowed(fit, self.device.type)

    def components(self) -> Sequence[Component]:
        image_encoder = self.images.image_encoder
        encoders = [self.text.model.component, *([] if image_encoder is None else [image_encoder.component])]
        return (*encoders, *(expert.component for expert in self.experts), *self.vae.components)

    def step_bytes(self, workload: Workload) -> int:
        own = rank_workload(workload, self.ranks)
        return rank_bytes(self.checkpoint.transformer.step_bytes(own, self.dtype.itemsize), self.ranks)

    def place_adapter(self, name: str, components: Components) -> Adapter:
        experts = zip(self.checkpoint.experts, self.experts, strict=True)
        modules = [AdaptedModule(component, each, each.placements()) for component, each in experts]
        return place_adapter(name, components, modules, self.device)

    def conditioning_key(self, params: GenerationParams) -> Hashable:
        return (self.text.key(params), self.images.key(params))

    @torch.inference_mode()
    def encode(self, params: Sequence[GenerationParams], adapters: Sequence[Uses] = ()) -> list[Conditioning]:
        texts = self.text.encode(params, one_by_one=self.deterministic)
        pairs = zip(texts, self.images.encode(params), strict=True)
        return [replace(text, first_frame=image) for text, image in pairs]

    @torch.inference_mode()
    def init_latents(
        self, params: GenerationParams, conditioning: Conditioning, generators: Sequence[torch.Generator]
    ) -> InitialLatents:
        """Draw noise on the CPU in float32, as diffusers does with CPU generators, for any dtype."""
        assert isinstance(conditioning, WanConditioning)
        _, *size = self.latents_shape(params)
        noise = torch.cat([torch.randn(1, *size, generator=generator) for generator in generators])
        return InitialLatents(self._with_first_frame(to_device(noise, self.device), conditioning))

    def latents_shape(self, params: GenerationParams) -> tuple[int, ...]:
        assert params.height is not None
        assert params.width is not None
        config = self.vae.config
        size = (self.spec.latent_frames(params), params.height // config.scale, params.width // config.scale)
        return (params.num_images, config.z_dim, *size)

    def sampler(self, params: GenerationParams) -> Sampler:
        return self._own_sampler if params.sampler is None else self._named_sampler(params.sampler)

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        assert params.num_inference_steps is not None
        return self.sampler(params).schedule(params.num_inference_steps)

    @torch.inference_mode()
    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        """Return each request's velocity, guided, in float32; requests of one expert share a forward pass."""
        return run_in_groups(batch, self._expert_of, self._predict)

    def prepare(self, batch: Sequence[DenoiseInput]) -> None:
        config = self.checkpoint.transformer

        def lay_out(requests: Sequence[DenoiseInput]) -> Sequence[DenoiseInput]:
            passes = [each for request in requests for each in passes_of(request)]
            ordered = [shape for _, shape in _in_order(passes, config)]
            if own := self._hands(ordered)[self._passes.index]:
                self._layouts.layout_of(tuple(ordered[index] for index in own))
            return requests

        run_in_groups(batch, self._expert_of, lay_out)

    def restore(self, latents: Tensor, request: DenoiseInput, at: ScheduleStep) -> Tensor:
        return self._with_first_frame(latents, wan(request))

    @torch.inference_mode()
    def decode(self, latents: Sequence[Tensor], params: Sequence[GenerationParams]) -> list[list[Frames]]:
        stacked = torch.cat(list(latents))
        if stacked.shape[2] > 1:
            clips = [self.decode_chunks(clip, params[0]) for clip in stacked.split(1)]
            frames = [[frame for chunk in clip for frame in chunk] for clip in clips]
        else:
            pixels = stacked.shape[-2] * stacked.shape[-1] * self.vae.config.scale**2
            group = max(1, self.max_decode_pixels // pixels)
            frames = [[image] for part in stacked.split(group) for image in self.vae.decode_first(part)]
        return split_by_counts(frames, [wanted.num_images for wanted in params])

    def decode_chunks(self, latents: Tensor, params: GenerationParams) -> Iterator[Frames]:
        return self.vae.decode_chunks(latents)

    def decode_bytes(self, params: GenerationParams) -> int:
        assert params.height is not None
        assert params.width is not None
        return decode_bytes(self.vae.config, params.width, params.height, self.vae.dtype.itemsize)

    @torch.inference_mode()
    def preview(self, latents: Tensor, params: GenerationParams) -> Tensor:
        return draw_strip(self.preview_map, latents[0])

    def _expert_of(self, request: DenoiseInput) -> int:
        """Return which transformer a request's step needs: the second one at low noise levels."""
        boundary = self.checkpoint.boundary_ratio
        return int(boundary is not None and request.timestep < boundary * self._num_timesteps)

    def _predict(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        """Return the velocities of requests of one expert."""
        expert = self._expert_of(batch[0])
        passes = [each for request in batch for each in passes_of(request)]
        velocities = iter(self._velocities(expert, passes))
        return [self._guided(expert, request, velocities) for request in batch]

    def _guided(self, expert: int, request: DenoiseInput, velocities: Iterator[Tensor]) -> Tensor:
        """Return a request's velocity from those of its passes, which are the next ones."""
        scale = (request.params.guidance_scale or 0.0) * (self._second_guidance if expert else 1.0)
        num_passes = len(wan(request).texts)
        clips = [
            guided([next(velocities) for _ in range(num_passes)], scale)
            for _ in range(request.params.num_images)
        ]
        velocity = torch.cat(clips).float()
        if wan(request).first_frame is not None and not self.checkpoint.reads_clip:
            velocity[:, :, 0] = 0.0  # a given first frame stays as it is
        return velocity

    def _velocities(self, expert: int, passes: Sequence[Pass]) -> list[Tensor]:
        """Return the velocity of each pass: in one forward pass, or one by one in deterministic mode."""
        if self.deterministic:
            return [self._forward(expert, [each])[0] for each in passes]
        order = [index for index, _ in _in_order(passes, self.checkpoint.transformer)]
        ordered = self._forward(expert, [passes[index] for index in order])
        velocities = dict(zip(order, ordered, strict=True))
        return [velocities[index] for index in range(len(passes))]

    def _forward(self, expert: int, passes: Sequence[Pass]) -> list[Tensor]:
        """Return the velocities of passes, of which each group of ranks runs some."""
        config = self.checkpoint.transformer
        shapes = [each.shape(config) for each in passes]
        lengths, hands = [shape.tokens for shape in shapes], self._hands(shapes)
        own = self._own_input([passes[index] for index in hands[self._passes.index]])
        with nullcontext() if self.ranks is None else self.ranks.together():
            outputs = self._passes.gather(self._run(expert, own), lengths, hands)
        pairs = zip(outputs, shapes, strict=True)
        return [unpatchify(tokens, shape, config.patch_size) for tokens, shape in pairs]

    def _hands(self, shapes: Sequence[ClipShape]) -> Hands:
        """Return which passes each group of ranks runs."""
        config = self.checkpoint.transformer
        per_token, per_pair = config.token_operations, config.pair_operations
        costs = [shape.tokens * (per_token + per_pair * shape.tokens) for shape in shapes]
        return deal(costs, self._passes.size)

    def _own_input(self, passes: Sequence[Pass]) -> PackedWanInput | None:
        """Lay out passes of this group of ranks, and return this rank's part; `None` if there are none."""
        if not passes:
            return None
        config = self.checkpoint.transformer
        shapes = tuple(each.shape(config) for each in passes)
        packed = pack(passes, shapes, self._layouts.layout_of(shapes), config)
        return packed if self._sequence is None else self._shard(shapes).of(packed)

    def _run(self, expert: int, own: PackedWanInput | None) -> Tensor:
        """Return the outputs of all tokens of this group's passes, and copies of the last one after them."""
        transformer, config = self.experts[expert], self.checkpoint.transformer
        if own is None:
            width = config.num_outputs * config.patch_cells
            return torch.empty(0, width, dtype=transformer.dtype, device=self.device)
        outputs: Tensor = transformer(own)
        return outputs if self._sequence is None else self._sequence.gather(outputs)

    def _make_shard(self, shapes: tuple[ClipShape, ...]) -> ClipShard:
        assert self._sequence is not None
        layout = self._layouts.layout_of(shapes)
        return shard_layout(shapes, layout, self._sequence.index, self._sequence.size)

    def _with_first_frame(self, latents: Tensor, conditioning: WanConditioning) -> Tensor:
        """Return latents with the first frame that a request brings, where the model has it among them."""
        if conditioning.first_frame is None or self.checkpoint.reads_clip:
            return latents
        return put_first_frame(latents, conditioning.first_frame.latents)


def _in_order(passes: Sequence[Pass], config: WanTransformerConfig) -> list[tuple[int, ClipShape]]:
    """Return the passes in the order of a forward pass: which they are, and their shapes."""
    shapes = list(enumerate(each.shape(config) for each in passes))
    return sorted(shapes, key=lambda indexed: passes[indexed[0]].sort_key(indexed[1]))


def _own_sampler(scheduler: Mapping[str, object]) -> Sampler:
    """Return the checkpoint's sampler. The reference gives Euler's scheduler no levels of its own."""
    if scheduler.get("_class_name") == EULER:
        return FlowMatchEulerBetweenEnds.from_config(scheduler)
    return checkpoint_sampler(scheduler)


def _second_guidance(folder: ModelFolder, spec: ModelSpec) -> float:
    """Return the guidance of the second transformer, as a multiple of a request's."""
    own = folder.settings.get("guidance_scale_2")
    return 1.0 if own is None or not spec.guidance_scale else float(own) / spec.guidance_scale
