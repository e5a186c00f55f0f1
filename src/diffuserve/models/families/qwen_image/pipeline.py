"""Qwen-Image and its editors behind the engine's `Pipeline` contract."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.packed_images.compiled import DOUBLE_HALVES, use_compiled
from diffuserve.models.families.packed_images.images import LatentImages
from diffuserve.models.families.packed_images.loading import load_transformer
from diffuserve.models.families.packed_images.pipeline import PackedImagePipeline
from diffuserve.models.families.packed_images.shift import SizeShift
from diffuserve.models.families.qwen_image.compiled import block_shape
from diffuserve.models.families.qwen_image.config import TRANSFORMER_LAYERS, QwenImageConfig
from diffuserve.models.families.qwen_image.edit_text import EditTextEncoder
from diffuserve.models.families.qwen_image.positions import layout_rules
from diffuserve.models.families.qwen_image.text import QwenImageTextEncoder
from diffuserve.models.families.qwen_image.transformer import QwenImageTransformer
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import RowAdapters, Uses, key_of
from diffuserve.models.layers.joint.schedule_factors import ScheduleFactors
from diffuserve.models.pipelines.base import CompilableParts, DenoiseInput
from diffuserve.models.pipelines.loaded_pipeline import with_dtype
from diffuserve.models.video_autoencoder.image_frames import ImageFrames
from diffuserve.models.video_autoencoder.previews import preview_map
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import check_shared
from diffuserve.samplers.registry import named_sampler

_CLEAN = 0.0  # the timestep of references, which hold no noise


def load_qwen_image(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> "QwenImagePipeline":
    """Load a folder that has all of its files."""
    plan = with_dtype(plan, folder, "transformer", half=torch.bfloat16)
    if plan.ranks is not None:
        check_shared(plan.ranks.plan, "attention heads", QwenImageConfig.read(folder).num_attention_heads)
    return QwenImagePipeline(folder, spec, plan)


class QwenImagePipeline(PackedImagePipeline):
    """A loaded checkpoint of Qwen-Image or of one of its editors."""

    transformer: QwenImageTransformer

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        self._config, parts = QwenImageConfig.read(folder), plan.parts
        scheduler = folder.json("scheduler/scheduler_config.json")
        self.samplers = {name: named_sampler(name, scheduler) for name in spec.samplers}
        self._shift = SizeShift.from_config(scheduler)
        encoder = EditTextEncoder if spec.min_input_images else QwenImageTextEncoder
        self.text_encoder = encoder(folder, spec, plan.when(parts.encoding))
        encodes = parts.encoding and spec.max_input_images > 0
        vae = ImageFrames(folder, plan, has_encoder=encodes, has_decoder=parts.decoding)
        self.images = LatentImages(spec, vae, self.dtype)
        self.preview_map = preview_map(folder, vae.latent_channels, self.device)
        make = functools.partial(QwenImageTransformer, self._config, self.attention)
        self.transformer = load_transformer(make, TRANSFORMER_LAYERS, folder, plan.when(parts.denoising))
        self.layout_rules = layout_rules(self._config.axes_dims_rope, self._config.zero_cond_t)
        row_bytes = self.transformer.num_factors * self._config.dim * self.dtype.itemsize
        self._factors = ScheduleFactors(row_bytes)

    @property
    def blocks(self) -> CompilableParts:
        use = functools.partial(use_compiled, self.transformer.transformer_blocks, ())
        return CompilableParts(block_shape(self._config), DOUBLE_HALVES, use)

    def mu(self, params: GenerationParams) -> float:
        return self._shift.mu(self.grid(params).tokens)

    def guided(self, prompt: Tensor, negative: Tensor, scale: float) -> Tensor:
        """Return the guided velocity, each token as long as without guidance."""
        guided = super().guided(prompt, negative, scale)
        return guided * (prompt.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True))

    def factors(self, request: DenoiseInput, timesteps: Sequence[float]) -> Tensor:
        key, make = key_of(request.adapters), functools.partial(self._make_factors, request.adapters)
        row = self._factors.of(key, timesteps, make)
        if not self._config.zero_cond_t:
            return row
        return torch.cat([row, self._factors.of(key, (_CLEAN,), make)])

    def _make_factors(self, uses: Uses, timesteps: Sequence[float]) -> Tensor:
        adapters = RowAdapters.of([len(timesteps)], [uses])
        return self.transformer.factors(torch.tensor(timesteps).to(self.device), adapters)
