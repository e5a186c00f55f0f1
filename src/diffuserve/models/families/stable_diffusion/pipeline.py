"""Stable Diffusion 1, 2 and XL behind the engine's `Pipeline` contract."""

import functools
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.description import Description
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.adapters.placing import AdaptedModule, place_adapter
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.autoencoder.image_autoencoder import ImageAutoencoder
from diffuserve.models.autoencoder.image_vae import ImageVae
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.families.stable_diffusion.controlnet import load_controlnets
from diffuserve.models.families.stable_diffusion.image_prompts.attention import load_image_attentions
from diffuserve.models.families.stable_diffusion.image_prompts.image_prompts import ImagePrompter
from diffuserve.models.families.stable_diffusion.image_prompts.ip_adapter import open_ip_adapter
from diffuserve.models.families.stable_diffusion.images import ImageConditioner
from diffuserve.models.families.stable_diffusion.previews import PREVIEW, XL_PREVIEW
from diffuserve.models.families.stable_diffusion.rows import make_rows, num_rows, part_of, split_rows
from diffuserve.models.families.stable_diffusion.scheduler import scheduler_config
from diffuserve.models.families.stable_diffusion.text import StableDiffusionConditioning, TextConditioner
from diffuserve.models.families.stable_diffusion.unet import load_unet
from diffuserve.models.families.stable_diffusion.unet_input import UNetInput
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.layers.adapted.lora_pair import Components
from diffuserve.models.layers.sequence_parallel import part_size
from diffuserve.models.machine.devices import flops_per_second
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.base import Conditioning, DenoiseInput, InitialLatents
from diffuserve.models.pipelines.image_pipeline import ImagePipeline
from diffuserve.models.pipelines.input_tensors import put_back
from diffuserve.models.pipelines.loaded_pipeline import with_dtype
from diffuserve.models.preview import read_preview_map
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import num_parameters
from diffuserve.parallel.ranks import SequenceRanks
from diffuserve.samplers.base import NoiseSchedule, Sampler, ScheduleStep
from diffuserve.samplers.registry import requested_sampler

_LAYER_SECONDS = 4e-5  # of a layer in a pass of any size; measured in tiny-sd and at ten times its layers
_KEPT_SAMPLERS = 64  # clients choose their options, and there are many numbers


def load_stable_diffusion(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> "StableDiffusionPipeline":
    """Load a folder that has all of its files."""
    return StableDiffusionPipeline(folder, spec, with_dtype(plan, folder, "unet", half=torch.float16))


class StableDiffusionPipeline(ImagePipeline):
    """A loaded Stable Diffusion checkpoint."""

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        config, parts = UNetConfig.read(folder), plan.parts
        scheduler = scheduler_config(folder, config)
        self._sampler = functools.lru_cache(_KEPT_SAMPLERS)(
            lambda name, options: requested_sampler(name, options, scheduler)
        )
        self._sampler(None, ())  # refuses what is not supported
        self.text = TextConditioner(folder, spec, plan.when(parts.encoding))
        self.vae = ImageVae(
            folder,
            replace(plan, dtype=_vae_dtype(folder, config, self.dtype)),
            _encoder_dtype(folder, config, self.dtype),
            has_encoder=parts.encoding and spec.max_input_images > 0,
            has_decoder=parts.decoding,
        )
        self.images = ImageConditioner(self.vae, self.dtype, config.reads_mask)
        default_map = XL_PREVIEW if config.is_xl else PREVIEW
        self.preview_map = read_preview_map(folder, self.vae.latent_channels, default_map, self.device)
        self.unet = load_unet(config, folder.weights("unet"), plan.when(parts.denoising))
        own = (config, self.vae.scale, spec, plan.when(parts.denoising))
        self.controlnets = load_controlnets(folder.controlnets, *own)
        self.prompter = self._load_prompter(folder, config, plan)

    def describe(self) -> Description:
        return self.described("sdpa", self.vae.dtype)

    def cost_prior(self) -> CostFit:
        rate = flops_per_second(self.device, self.dtype)
        text_token = 2 * self.text.num_parameters / rate
        cell, pair = self.unet.cell_operations / rate, self.unet.config.pair_operations / rate
        # Two thousand operations per decoded pixel and parameter.
        pixel = 2 * num_parameters(self.vae.decoder) / rate / 16
        start = _LAYER_SECONDS * self.unet.num_layers
        fit = CostFit((0.002, text_token), (start, cell, pair, 0.0001), (0.001, pixel))
        return self.residency.slowed(fit, self.device.type)

    def components(self) -> Sequence[Component]:
        encoders = [encoder.component for encoder in self.text.encoders]
        encoders += [] if self.prompter is None else [self.prompter.component]
        return (*encoders, self.unet.component, *self.vae.components)

    def step_bytes(self, workload: Workload) -> int:
        rows = workload.num_sequences
        own = rows if self.ranks is None else part_size(rows, self.ranks.size)
        return self.unet.config.step_bytes(replace(workload, num_sequences=own), self.dtype.itemsize)

    def place_adapter(self, name: str, components: Components) -> Adapter:
        unet = AdaptedModule("unet", self.unet, self.unet.placements())
        return place_adapter(name, components, [unet, *self.text.adapted_modules], self.device)

    def conditioning_key(self, params: GenerationParams) -> Hashable:
        reads = (params.prompt_images, self.controlnets.key(params))
        return (self.text.key(params), self.images.key(params), *reads)

    @torch.inference_mode()
    def encode(self, params: Sequence[GenerationParams], adapters: Sequence[Uses] = ()) -> list[Conditioning]:
        uses = adapters or [()] * len(params)
        texts = self.text.encode(params, uses, one_by_one=self.deterministic)
        prompts = [None] * len(params) if self.prompter is None else self.prompter.encode(params)
        controls = map(self.controlnets.encode, params)
        each = zip(texts, self.images.encode(params), prompts, controls, strict=True)
        return [
            replace(text, image=image, prompt_images=prompt, controls=controls)
            for text, image, prompt, controls in each
        ]

    @torch.inference_mode()
    def init_latents(
        self, params: GenerationParams, conditioning: Conditioning, generators: Sequence[torch.Generator]
    ) -> InitialLatents:
        """Draw on the CPU, as diffusers does with CPU generators."""
        assert isinstance(conditioning, StableDiffusionConditioning)
        sampler, schedule = self.sampler(params), self.schedule(params)
        return self.images.draw(params, conditioning.image, generators, sampler, schedule)

    def latents_shape(self, params: GenerationParams) -> tuple[int, ...]:
        assert params.height is not None
        assert params.width is not None
        size = (params.height // self.vae.scale, params.width // self.vae.scale)
        return (params.num_images, self.vae.latent_channels, *size)

    def sampler(self, params: GenerationParams) -> Sampler:
        return self._sampler(params.sampler, params.sampler_options)

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        assert params.num_inference_steps is not None
        schedule = self.sampler(params).schedule(params.num_inference_steps)
        return schedule.starting_at(self.spec.first_step(params))

    @torch.inference_mode()
    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        """Return each request's prediction, guided; requests of one size share a forward pass."""
        groups = self._groups(batch)
        predicted = self._predict([self._rows(group) for group in groups.values()])
        predictions: dict[int, Tensor] = {}
        for (indices, group), rows in zip(groups.items(), predicted, strict=True):
            predictions |= zip(indices, split_rows(rows, group), strict=True)
        return [predictions[index] for index in range(len(batch))]

    def restore(self, latents: Tensor, request: DenoiseInput, at: ScheduleStep) -> Tensor:
        if self.unet.config.reads_mask or not request.guides:
            return latents
        return put_back(latents, request.guides, self.sampler(request.params), at)

    @property
    def autoencoder(self) -> ImageAutoencoder:
        return self.vae

    def latent_images(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> Float[Tensor, "images channels height width"]:
        return torch.cat(list(latents))

    @torch.inference_mode()
    def preview(self, latents: Tensor, params: GenerationParams) -> Tensor:
        return self.preview_map.draw(latents[0])

    def _load_prompter(self, folder: ModelFolder, config: UNetConfig, plan: LoadPlan) -> ImagePrompter | None:
        """Load what reads image prompts, and have the UNet attend to them; return `None` if there is none."""
        path = folder.companions.image_prompter
        if path is None:
            return None
        adapter = open_ip_adapter(path, config)
        own = replace(plan, quantization=Quantization.NONE, copy=None)
        self.unet.attend_images(load_image_attentions(adapter, config, own.when(plan.parts.denoising)))
        return ImagePrompter(adapter, own.when(plan.parts.encoding))

    def _groups(self, batch: Sequence[DenoiseInput]) -> dict[tuple[int, ...], list[DenoiseInput]]:
        """Return the requests that run together, by their places in the batch: of one size, or each alone.

        Those with equal adapters are neighbors.
        """
        places = defaultdict[Hashable, list[int]](list)
        for index, request in enumerate(batch):
            places[index if self.deterministic else request.latents.shape[-2:]].append(index)
        groups = [sorted(indices, key=lambda index: _adapters(batch[index])) for indices in places.values()]
        return {tuple(indices): [batch[index] for index in indices] for indices in groups}

    def _rows(self, group: Sequence[DenoiseInput]) -> UNetInput:
        controls = self.controlnets.rows(group, [num_rows(request) for request in group])
        return replace(make_rows(group, self.unet.config), controls=controls)

    def _predict(self, groups: Sequence[UNetInput]) -> list[Tensor]:
        """Return the UNet's rows of each group, on every rank; each rank computes a part of them."""
        ranks = self.ranks
        if ranks is None:
            return [self.unet(rows) for rows in groups]
        everybody = SequenceRanks(ranks.world.group)  # it has no tokens to share, so a plan divides its rows
        parts = [self.unet(part_of(rows, everybody)) for rows in groups]
        with ranks.together():
            return [everybody.gather(part)[: len(rows)] for part, rows in zip(parts, groups, strict=True)]


def _adapters(request: DenoiseInput) -> list[tuple[str, float]]:
    return [(adapter.name, weight) for adapter, weight in request.adapters]  # the same on all ranks


def _vae_dtype(folder: ModelFolder, config: UNetConfig, dtype: torch.dtype) -> torch.dtype:
    """Return float32 for SDXL's VAE in fp16, where it overflows, unless its config says that it does not."""
    overflows = config.is_xl and dtype == torch.float16 and AutoencoderConfig.read(folder).force_upcast
    return torch.float32 if overflows else dtype


def _encoder_dtype(folder: ModelFolder, config: UNetConfig, dtype: torch.dtype) -> torch.dtype:
    """Return float32 for SDXL's VAE wherever its config asks for it, as diffusers' pipelines encode."""
    return torch.float32 if config.is_xl and AutoencoderConfig.read(folder).force_upcast else dtype
