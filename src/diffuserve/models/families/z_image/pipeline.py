"""Z-Image and Z-Image-Turbo behind the engine's `Pipeline` contract.

Reference implementations: diffusers' `ZImagePipeline`, `ZImageImg2ImgPipeline` and `ZImageInpaintPipeline`,
called once for each image. Latents stay in float32, as theirs do.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.adapters.placing import AdaptedModule
from diffuserve.models.autoencoder.flux_preview import FLUX_PREVIEW
from diffuserve.models.autoencoder.image_vae import ImageVae
from diffuserve.models.families.packed_images.images import LatentImages
from diffuserve.models.families.packed_images.loading import load_transformer
from diffuserve.models.families.packed_images.pipeline import PackedImagePipeline
from diffuserve.models.families.packed_images.shift import SizeShift
from diffuserve.models.families.z_image.captions import WEIGHTS as CAPTION_WEIGHTS
from diffuserve.models.families.z_image.compiled import HALVES, block_shape, use_compiled
from diffuserve.models.families.z_image.config import TRANSFORMER_LAYERS, ZImageConfig
from diffuserve.models.families.z_image.positions import layout_rules, padding
from diffuserve.models.families.z_image.text import ZImageTextEncoder
from diffuserve.models.families.z_image.transformer import ZImageTransformer
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import RowAdapters, Uses, key_of
from diffuserve.models.layers.joint.packing import Grid
from diffuserve.models.layers.joint.schedule_factors import ScheduleFactors
from diffuserve.models.machine.devices import to_device
from diffuserve.models.pipelines.base import CompilableParts, DenoiseInput
from diffuserve.models.pipelines.loaded_pipeline import with_dtype
from diffuserve.models.preview import read_preview_map
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import check_shared
from diffuserve.samplers.registry import named_sampler

_LAST_TIMESTEP = 1000.0


def load_z_image(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> "ZImagePipeline":
    """Load a folder that has all of its files."""
    plan = with_dtype(plan, folder, "transformer", half=torch.bfloat16)
    if plan.ranks is not None:
        check_shared(plan.ranks.plan, "attention heads", ZImageConfig.read(folder).n_heads)
    return ZImagePipeline(folder, spec, plan)


class ZImagePipeline(PackedImagePipeline):
    """A loaded Z-Image checkpoint."""

    transformer: ZImageTransformer
    text_encoder: ZImageTextEncoder

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        config, parts = ZImageConfig.read(folder), plan.parts
        scheduler = folder.json("scheduler/scheduler_config.json")
        self.samplers = {name: named_sampler(name, scheduler) for name in spec.samplers}
        self._shift = SizeShift.from_config(scheduler)
        self.text_encoder = ZImageTextEncoder(folder, spec, config, plan.when(parts.encoding))
        vae = ImageVae(folder, plan, has_encoder=parts.encoding, has_decoder=parts.decoding)
        self.images = LatentImages(spec, vae, torch.float32)
        self.preview_map = read_preview_map(folder, vae.latent_channels, FLUX_PREVIEW, self.device)
        self.transformer = load_transformer(
            lambda: ZImageTransformer(config, self.attention),
            TRANSFORMER_LAYERS,
            folder,
            plan.when(parts.denoising),
            ignored_prefixes=CAPTION_WEIGHTS,
        )
        self.layout_rules = layout_rules(config)
        self._factors = ScheduleFactors(self.transformer.num_factors * config.dim * self.dtype.itemsize)

    @property
    def adapted_modules(self) -> Sequence[AdaptedModule]:
        """Return what takes adapters: files count the blocks that refine prompts to the transformer."""
        refiner = self.text_encoder.refiner
        own = AdaptedModule("transformer", refiner, refiner.placements(), encodes=True)
        return [*super().adapted_modules, own]

    @property
    def blocks(self) -> CompilableParts:
        transformer = self.transformer
        use = partial(use_compiled, transformer.blocks)
        return CompilableParts(block_shape(transformer.config), HALVES, use)

    def mu(self, params: GenerationParams) -> float:
        return self._shift.mu(self.grid(params).tokens)

    def factors(self, request: DenoiseInput, timesteps: Sequence[float]) -> Tensor:
        """Return factors, which depend on the timestep and adapters alone: equal ones are shared."""
        make = partial(self._make_factors, request.adapters)
        return self._factors.of(key_of(request.adapters), timesteps, make)

    def guided(self, prompt: Tensor, negative: Tensor, scale: float) -> Tensor:
        """Return the velocity of classifier-free guidance, from 0 on: a scale of 1 means 2 elsewhere."""
        return prompt + scale * (prompt - negative)

    def inputs(self, request: DenoiseInput) -> Tensor:
        """Return the channels of an image's tokens, padding included; the last is 1 for padding."""
        tokens = request.latents.shape[1]
        padded = F.pad(request.latents.to(self.dtype), (0, 1, 0, padding(tokens)))
        padded[:, tokens:, -1] = 1
        return padded

    def padding(self, text: int, image: Grid) -> int:
        return padding(image.tokens)

    def _make_factors(self, uses: Uses, timesteps: Sequence[float]) -> Tensor:
        levels = (_LAST_TIMESTEP - torch.tensor(timesteps)) / _LAST_TIMESTEP
        adapters = RowAdapters.of([len(timesteps)], [uses])
        return self.transformer.factors(to_device(levels, self.device), adapters)
