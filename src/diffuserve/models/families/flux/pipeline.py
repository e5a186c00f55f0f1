"""FLUX.1 (schnell, dev, Kontext and Fill) behind the engine's `Pipeline` contract."""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.adapters.placing import AdaptedModule
from diffuserve.models.autoencoder.flux_preview import FLUX_PREVIEW
from diffuserve.models.autoencoder.image_vae import ImageVae
from diffuserve.models.families.flux.compiled import block_shape
from diffuserve.models.families.flux.config import TRANSFORMER_LAYERS, FluxConfig, fills_in
from diffuserve.models.families.flux.controlnet import load_flux_controlnet
from diffuserve.models.families.flux.controls import FluxControls
from diffuserve.models.families.flux.images import FillImages
from diffuserve.models.families.flux.positions import layout_rules
from diffuserve.models.families.flux.redux import ReduxPrompter
from diffuserve.models.families.flux.redux_folder import open_redux
from diffuserve.models.families.flux.text import FluxConditioning, FluxTextEncoder
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.families.packed_images.compiled import DOUBLE_HALVES, SINGLE_HALVES, use_compiled
from diffuserve.models.families.packed_images.images import LatentImages
from diffuserve.models.families.packed_images.loading import load_transformer
from diffuserve.models.families.packed_images.passes import ImagePass
from diffuserve.models.families.packed_images.pipeline import PackedImagePipeline
from diffuserve.models.families.packed_images.shift import SizeShift
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import Uses, key_of
from diffuserve.models.layers.joint.packing import PackedInput
from diffuserve.models.layers.joint.schedule_factors import ScheduleFactors
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.base import CompilableParts, Conditioning, DenoiseInput, InitialLatents
from diffuserve.models.pipelines.loaded_pipeline import with_dtype
from diffuserve.models.preview import read_preview_map
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import check_shared
from diffuserve.samplers.base import ScheduleStep
from diffuserve.samplers.registry import named_sampler


def load_flux(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> "FluxPipeline":
    """Load a folder that has all of its files."""
    plan = with_dtype(plan, folder, "transformer")
    if plan.ranks is not None:
        check_shared(plan.ranks.plan, "attention heads", FluxConfig.read(folder).num_attention_heads)
    return FluxPipeline(folder, spec, plan)


class FluxPipeline(PackedImagePipeline):
    """A loaded FLUX.1 checkpoint."""

    transformer: FluxTransformer
    text_encoder: FluxTextEncoder

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        config, parts = FluxConfig.read(folder), plan.parts
        scheduler = folder.json("scheduler/scheduler_config.json")
        self.samplers = {name: named_sampler(name, scheduler) for name in spec.samplers}
        self._shift = SizeShift.from_config(scheduler)
        lowercase = bool(folder.settings.get("lowercase_prompt", False))
        self.text_encoder = FluxTextEncoder(folder, plan.when(parts.encoding), lowercase)
        encodes = parts.encoding and spec.max_input_images > 0
        vae = ImageVae(folder, plan, has_encoder=encodes, has_decoder=parts.decoding)
        self.fills_in = fills_in(folder)
        self.images = (FillImages if self.fills_in else LatentImages)(spec, vae, self.dtype)
        self.preview_map = read_preview_map(folder, vae.latent_channels, FLUX_PREVIEW, self.device)
        make = functools.partial(FluxTransformer, config, self.attention)
        self.transformer = load_transformer(make, TRANSFORMER_LAYERS, folder, plan.when(parts.denoising))
        nets = {
            each.name: load_flux_controlnet(each, config, self.own_attention, plan.when(parts.denoising))
            for each in folder.controlnets
        }
        self.controls = FluxControls(spec, self.images, nets)
        self.layout_rules = layout_rules(config.axes_dims_rope)
        row_bytes = self.transformer.num_factors * config.dim * self.dtype.itemsize
        self._factors = ScheduleFactors(row_bytes)
        self.prompter = _load_prompter(folder, config, plan)

    def components(self) -> Sequence[Component]:
        own = super().components()
        return own if self.prompter is None else (*own, self.prompter.component)

    @property
    def adapted_modules(self) -> Sequence[AdaptedModule]:
        clip = self.text_encoder.clip
        own = AdaptedModule("text_encoder", clip, clip.placements(), encodes=True)
        return [*super().adapted_modules, own]

    @property
    def blocks(self) -> CompilableParts:
        transformer = self.transformer
        kinds = (transformer.transformer_blocks, transformer.single_transformer_blocks)
        use = functools.partial(use_compiled, *kinds)
        return CompilableParts(block_shape(transformer.config), (*DOUBLE_HALVES, *SINGLE_HALVES), use)

    def mu(self, params: GenerationParams) -> float:
        return self._shift.mu(self.grid(params).tokens)

    def inputs(self, request: DenoiseInput) -> Tensor:
        return torch.cat([request.latents, *request.guides], dim=-1) if self.fills_in else request.latents

    def conditioning_key(self, params: GenerationParams) -> Hashable:
        own = (super().conditioning_key(params), self.controls.key(params))
        return (*own, params.prompt_images, params.image_prompt_scale) if params.prompt_images else own

    @torch.inference_mode()
    def encode(self, params: Sequence[GenerationParams], adapters: Sequence[Uses] = ()) -> list[Conditioning]:
        encoded = super().encode(params, adapters)
        encoded = encoded if self.prompter is None else self.prompter.extend(encoded, params)
        pairs = zip(encoded, params, strict=True)
        return [
            replace(_conditioning(encoded), controls=self.controls.encode(wanted))
            for encoded, wanted in pairs
        ]

    @torch.inference_mode()
    def init_latents(
        self, params: GenerationParams, conditioning: Conditioning, generators: Sequence[torch.Generator]
    ) -> InitialLatents:
        """Draw the latents of control images, and then those of the request, as diffusers does."""
        controls = self.controls.draw(params, _conditioning(conditioning), generators)
        begun = super().init_latents(params, conditioning, generators)
        return replace(begun, guides=(*begun.guides, *controls))

    def restore(self, latents: Tensor, request: DenoiseInput, at: ScheduleStep) -> Tensor:
        own = replace(request, guides=self.controls.other_guides(request))
        return super().restore(latents, own, at)

    def controlled(self, packed: PackedInput, passes: Sequence[ImagePass]) -> PackedInput:
        changes = self.controls.changes(passes, self._layout, self._timesteps_ahead)
        return replace(packed, changes=changes) if changes else packed

    def factors(self, request: DenoiseInput, timesteps: Sequence[float]) -> Tensor:
        assert isinstance(request.conditioning, FluxConditioning)
        pooled = request.conditioning.pooled
        guidance = float(request.params.guidance_scale or 0.0)
        make = functools.partial(self.transformer.factors_of, pooled, guidance, request.adapters)
        condition = (guidance, key_of(request.adapters))
        return self._factors.of_prompt(pooled, condition, timesteps, make)


def _load_prompter(folder: ModelFolder, config: FluxConfig, plan: LoadPlan) -> ReduxPrompter | None:
    """Load what reads image prompts, if there is something."""
    path = folder.companions.image_prompter
    if path is None:
        return None
    own = replace(plan, quantization=Quantization.NONE, copy=None).when(plan.parts.encoding)
    return ReduxPrompter(open_redux(path, config), own)


def _conditioning(conditioning: Conditioning) -> FluxConditioning:
    assert isinstance(conditioning, FluxConditioning)
    return conditioning
