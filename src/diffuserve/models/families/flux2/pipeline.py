"""FLUX.2 (klein and dev) behind the engine's `Pipeline` contract."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.flux2_preview import FLUX2_PREVIEW
from diffuserve.models.autoencoder.patched_vae import PatchedImageVae
from diffuserve.models.families.flux2.compiled import block_shape
from diffuserve.models.families.flux2.config import PATCH, TRANSFORMER_LAYERS, Flux2Config
from diffuserve.models.families.flux2.images import Flux2Images
from diffuserve.models.families.flux2.positions import layout_rules
from diffuserve.models.families.flux2.shift import empirical_mu
from diffuserve.models.families.flux2.text import Flux2TextEncoder
from diffuserve.models.families.flux2.transformer import Flux2Transformer
from diffuserve.models.families.packed_images.compiled import DOUBLE_HALVES, SINGLE_HALVES, use_compiled
from diffuserve.models.families.packed_images.latents import unpack_latents
from diffuserve.models.families.packed_images.loading import load_transformer
from diffuserve.models.families.packed_images.pipeline import PackedImagePipeline
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import key_of
from diffuserve.models.layers.joint.schedule_factors import ScheduleFactors
from diffuserve.models.pipelines.base import CompilableParts, DenoiseInput
from diffuserve.models.pipelines.loaded_pipeline import with_dtype
from diffuserve.models.preview import read_preview_map
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import check_shared
from diffuserve.samplers.registry import named_sampler


def load_flux2(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> "Flux2Pipeline":
    """Load a folder that has all of its files."""
    plan = with_dtype(plan, folder, "transformer", half=torch.bfloat16)
    if plan.ranks is not None:
        check_shared(plan.ranks.plan, "attention heads", Flux2Config.read(folder).num_attention_heads)
    return Flux2Pipeline(folder, spec, plan)


class Flux2Pipeline(PackedImagePipeline):
    """A loaded FLUX.2 checkpoint, whose latents are those of patches: a token is one cell of them."""

    transformer: Flux2Transformer

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        config, parts = Flux2Config.read(folder), plan.parts
        scheduler = folder.json("scheduler/scheduler_config.json")
        self.samplers = {name: named_sampler(name, scheduler) for name in spec.samplers}
        self.text_encoder = Flux2TextEncoder(folder, spec, plan.when(parts.encoding))
        vae = PatchedImageVae(folder, plan, has_encoder=parts.encoding, has_decoder=parts.decoding)
        self.images = Flux2Images(spec, vae, self.dtype, patch=1)
        channels = vae.latent_channels // PATCH**2
        self.preview_map = read_preview_map(folder, channels, FLUX2_PREVIEW, self.device)
        make = functools.partial(Flux2Transformer, config, self.attention)
        self.transformer = load_transformer(make, TRANSFORMER_LAYERS, folder, plan.when(parts.denoising))
        self.layout_rules = layout_rules(config.axes_dims_rope, config.rope_theta)
        row_bytes = self.transformer.num_factors * config.dim * self.dtype.itemsize
        self._factors = ScheduleFactors(row_bytes)

    @property
    def blocks(self) -> CompilableParts:
        transformer = self.transformer
        kinds = (transformer.transformer_blocks, transformer.single_transformer_blocks)
        use = functools.partial(use_compiled, *kinds)
        return CompilableParts(block_shape(transformer.config), (*DOUBLE_HALVES, *SINGLE_HALVES), use)

    def mu(self, params: GenerationParams) -> float:
        assert params.num_inference_steps is not None
        return empirical_mu(self.grid(params).tokens, params.num_inference_steps)

    def factors(self, request: DenoiseInput, timesteps: Sequence[float]) -> Tensor:
        # Guidance by two passes is no input.
        is_input = self.transformer.config.guidance_embeds
        guidance = float(request.params.guidance_scale or 0.0) if is_input else 0.0
        make = functools.partial(self.transformer.factors, guidance, request.adapters)
        return self._factors.of((guidance, key_of(request.adapters)), timesteps, make)

    @torch.inference_mode()
    def preview(self, latents: Tensor, params: GenerationParams) -> Tensor:
        return self.preview_map.draw(unpack_latents(latents[:1], self.grid(params).rows, PATCH)[0])
