"""FLUX.1 (schnell and dev) behind the engine's `Pipeline` contract."""

import functools
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ParamSpec, TypeVar

import torch
from PIL import Image
from torch import Tensor

from diffuserve.domain.cost import CostFit, Workload
from diffuserve.domain.errors import DeviceUnavailable, InvalidModel, InvalidParams
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.domain.params import GenerationParams
from diffuserve.models.base import Conditioning, DenoiseInput, Frames
from diffuserve.models.devices import default_dtype, dtype_name, flops_per_second
from diffuserve.models.flux.packing import PackedLayout, SequenceShape, pack_layout
from diffuserve.models.flux.sharding import Shard, shard_layout, ulysses
from diffuserve.models.flux.text import FluxConditioning, FluxTextEncoder
from diffuserve.models.flux.transformer import FluxConfig, FluxTransformer, PackedInput
from diffuserve.models.flux.vae import FLUX_PREVIEW, FluxVae, PreviewMap, pack_latents, unpack_latents
from diffuserve.models.folder import SETTINGS_FILE, ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.linear import Tiling
from diffuserve.models.weights import checkpoint_dtype, load_weights
from diffuserve.parallel.plan import check_plan
from diffuserve.parallel.ranks import Ranks
from diffuserve.samplers.base import NoiseSchedule
from diffuserve.samplers.flow_match_euler import FlowMatchEuler

_COMPONENTS = ("transformer", "vae", "text_encoder", "text_encoder_2")
_FILES = (
    *(f"{component}/config.json" for component in _COMPONENTS),
    "scheduler/scheduler_config.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer_2/tokenizer_config.json",
)
_PATCH = 2  # a token is a 2×2 patch of the latent image
# Of products over tokens, and of those with one row a sequence.
_CPU_TILINGS = (Tiling(rows=512, tail_rows=64), Tiling(rows=32, tail_rows=8))
_DETERMINISTIC_TILINGS = (Tiling(rows=256, tail_rows=256), Tiling(rows=16, tail_rows=16))

_VECTOR = 32  # kernels treat what is left over a multiple of their vectors differently

_FIXED = (
    "family",
    "has_guidance",
    "has_negative_prompt",
    "max_frames",
    "pixels_per_token",
)  # the checkpoint decides these
_SETTINGS: Mapping[str, Any] = {
    field.name: field.type for field in fields(ModelSpec) if field.name not in _FIXED
} | {"lowercase_prompt": bool}

P = ParamSpec("P")
R = TypeVar("R")


def _inference(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode():
            return function(*args, **kwargs)

    return run


class FluxPipeline:
    """A loaded FLUX.1 checkpoint."""

    def __init__(
        self,
        folder: ModelFolder,
        device: torch.device,
        dtype: torch.dtype,
        deterministic: bool,
        ranks: Ranks | None = None,
    ) -> None:
        self.device, self.dtype, self.deterministic = device, dtype, deterministic
        config = FluxConfig.from_dict(folder.json("transformer/config.json"))
        self.sampler = FlowMatchEuler.from_config(folder.json("scheduler/scheduler_config.json"))
        self.text_encoder = FluxTextEncoder(
            folder, device, dtype, lowercase=bool(folder.settings.get("lowercase_prompt", False))
        )
        self.vae = FluxVae(folder, device, dtype)
        self.spec = self.read_spec(folder)
        self.preview_map = _preview_map(folder, self.vae.latent_channels)
        self.ranks = ranks
        kernel = choose_kernel(device, dtype)
        self.attention = kernel if ranks is None else ulysses(kernel, ranks.sequence)
        self.transformer = self._load_transformer(folder, config)
        self._layout = functools.lru_cache(maxsize=8)(self._make_layout)
        self._shard = functools.lru_cache(maxsize=8)(self._make_shard)

    @classmethod
    def read_spec(cls, folder: ModelFolder) -> ModelSpec:
        """From the folder's configs alone."""
        spec = flux_spec(folder, FluxConfig.from_dict(folder.json("transformer/config.json")))
        vae_scale = 2 ** (len(folder.json("vae/config.json")["block_out_channels"]) - 1)
        return replace(spec, pixels_per_token=(_PATCH * vae_scale) ** 2)

    @classmethod
    def load(
        cls,
        folder: ModelFolder,
        device: torch.device,
        dtype: torch.dtype | None,
        deterministic: bool,
        ranks: Ranks | None = None,
    ) -> "FluxPipeline":
        """Check the whole folder, then load it.

        The default dtype is the checkpoint's; on a CPU without bf16 instructions it is float32.
        """
        if deterministic and (device.type != "cpu" or ranks is not None):
            raise DeviceUnavailable(f"device={str(device)!r}: deterministic mode runs on one CPU only")
        folder.require(_COMPONENTS, _FILES)
        if ranks is not None:
            config = FluxConfig.from_dict(folder.json("transformer/config.json"))
            check_plan(ranks.plan, ranks.size, config.num_attention_heads, has_passes=False)
        own = checkpoint_dtype(folder.weights("transformer"))
        return cls(folder, device, dtype or default_dtype(own, device), deterministic, ranks)

    @property
    def max_decode_pixels(self) -> int:
        """Groups of two at 128 px were the fastest on CPUs, where each new size of group also means new
        kernels; on GPUs four at 1024 px fill the device."""
        if self.deterministic:
            return 0
        return 4 * 1024 * 1024 if self.device.type == "cuda" else 2 * 128 * 128

    def describe(self) -> Mapping[str, str]:
        return {
            "model": self.spec.name,
            "device": str(self.device),
            "dtype": dtype_name(self.dtype),
            "attention": self.attention.name,
            "deterministic": str(self.deterministic).lower(),
            **({} if self.ranks is None else {"parallel": str(self.ranks.plan)}),
        }

    def workload(self, params: GenerationParams) -> Workload:
        return self.spec.workload(params)

    def cost_prior(self) -> CostFit:
        rate = flops_per_second(self.device, self.dtype)
        step_token = 2 * _num_parameters(self.transformer) / rate
        text_token = 2 * _num_parameters(self.text_encoder.t5) / rate
        # Four channel-wise products an attended pair; two thousand operations a decoded parameter-pixel.
        layers = self.transformer.config.num_layers + self.transformer.config.num_single_layers
        pair = 4 * self.transformer.config.dim * layers / rate
        pixel = 2 * _num_parameters(self.vae.vae.decoder) / rate / 16
        return CostFit((0.002, text_token), (0.002, step_token, pair, 0.0001), (0.001, pixel))

    def step_bytes(self, load: Workload) -> int:
        """Residual streams, factors, q, k, v and the widened feed-forward of one block, and its sums."""
        width = self.transformer.config.dim * self.dtype.itemsize
        return load.step_tokens * width * 32

    def conditioning_key(self, params: GenerationParams) -> Hashable:
        return (params.prompt, params.max_sequence_length)

    @_inference
    def encode(self, params: Sequence[GenerationParams]) -> list[Conditioning]:
        if self.deterministic:
            return [self.text_encoder.encode([one])[0] for one in params]
        by_length = defaultdict[int | None, list[int]](list)
        for index, one in enumerate(params):
            by_length[one.max_sequence_length].append(index)
        encoded: dict[int, Conditioning] = {}
        for indices in by_length.values():
            group = self.text_encoder.encode([params[index] for index in indices])
            encoded |= dict(zip(indices, group, strict=True))
        return [encoded[index] for index in range(len(params))]

    @_inference
    def init_latents(self, params: GenerationParams) -> Tensor:
        """Drawn on the CPU, one generator an image, as diffusers does with CPU generators."""
        assert params.seed is not None
        shape = self._shape(params)
        size = (1, self.vae.latent_channels, _PATCH * shape.rows, _PATCH * shape.columns)
        noise = [
            torch.randn(size, generator=torch.Generator("cpu").manual_seed(params.seed + i), dtype=self.dtype)
            for i in range(params.num_images)
        ]
        return pack_latents(torch.cat(noise)).to(self.device)

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        assert params.num_inference_steps is not None
        return self.sampler.schedule(params.num_inference_steps, self._shape(params).image)

    @_inference
    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        # Neighbours of equal length share one dense attention call, so equal shapes stand together.
        order = sorted(range(len(batch)), key=lambda i: self._sort_key(batch[i].params))
        ordered = [batch[i] for i in order]
        shapes = tuple(self._shape(one.params) for one in ordered for _ in range(one.params.num_images))
        velocity = self._velocity(self._pack(ordered, self._layout(shapes)), shapes)
        sizes = [one.latents.shape[0] * one.latents.shape[1] for one in ordered]
        parts = zip(order, ordered, velocity.split(sizes), strict=True)
        predictions = {index: part.view(one.latents.shape) for index, one, part in parts}
        return [predictions[i] for i in range(len(batch))]

    @_inference
    def decode(self, latents: Sequence[Tensor], params: Sequence[GenerationParams]) -> list[list[Frames]]:
        rows = self._shape(params[0]).rows
        unpacked = unpack_latents(torch.cat(list(latents)), rows)
        pixels = unpacked.shape[-2] * unpacked.shape[-1] * self.vae.scale**2
        group = max(1, self.max_decode_pixels // pixels)
        images = [image for part in unpacked.split(group) for image in self.vae.decode(part)]
        counts = [one.num_images for one in params]
        return [[[image] for image in part] for part in _split(images, counts)]

    @_inference
    def preview(self, latents: Tensor, params: GenerationParams) -> Image.Image:
        return self.preview_map.draw(latents[0], self._shape(params).rows)

    def _velocity(self, packed: PackedInput, shapes: tuple[SequenceShape, ...]) -> Tensor:
        """Of every image token, on every rank."""
        if self.ranks is None:
            return self.transformer(packed)
        part = self._shard(shapes).of(packed)
        with self.ranks.together():
            return self.ranks.sequence.gather(self.transformer(part))[: len(packed.image)]

    def _pack(self, batch: Sequence[DenoiseInput], layout: PackedLayout) -> PackedInput:
        """One sequence an image: images of one request share its conditioning and timestep."""
        images = [(one, _flux(one.conditioning)) for one in batch for _ in range(one.params.num_images)]
        timesteps = torch.tensor([one.timestep for one, _ in images])
        guidance = torch.tensor([float(one.params.guidance_scale or 0.0) for one, _ in images])
        return PackedInput(
            image=torch.cat([one.latents.flatten(0, 1) for one in batch]),
            text=torch.cat([conditioning.sequence for _, conditioning in images]),
            pooled=torch.stack([conditioning.pooled for _, conditioning in images]),
            timestep=timesteps.to(self.device),
            guidance=guidance.to(self.device) if self.transformer.config.guidance_embeds else None,
            layout=layout,
        )

    def _make_layout(self, shapes: tuple[SequenceShape, ...]) -> PackedLayout:
        return pack_layout(shapes, self.transformer.config.axes_dims_rope, self.device)

    def _make_shard(self, shapes: tuple[SequenceShape, ...]) -> Shard:
        assert self.ranks is not None
        return shard_layout(self._layout(shapes), self.ranks.sequence.index, self.ranks.sequence.size)

    def _shape(self, params: GenerationParams) -> SequenceShape:
        assert params.max_sequence_length is not None
        assert params.height is not None
        assert params.width is not None
        pixels = _PATCH * self.vae.scale
        return SequenceShape(params.max_sequence_length, params.height // pixels, params.width // pixels)

    def _sort_key(self, params: GenerationParams) -> tuple[int, int, int]:
        shape = self._shape(params)
        return (shape.tokens, shape.text, shape.rows)

    def _load_transformer(self, folder: ModelFolder, config: FluxConfig) -> FluxTransformer:
        with torch.device("meta"):
            transformer = FluxTransformer(config, self.attention)
        files = folder.weights("transformer")
        load_weights(transformer, files, transformer.placements(), self.device, self.dtype)
        if self.device.type == "cpu":
            tilings = _DETERMINISTIC_TILINGS if self.deterministic else _CPU_TILINGS
            transformer.set_tiling(*tilings)
        if self.deterministic and config.dim % _VECTOR:
            raise InvalidModel(
                f"{folder.path}: deterministic mode needs a width in multiples of {_VECTOR}, not {config.dim}"
            )
        return transformer.eval()


def flux_spec(folder: ModelFolder, config: FluxConfig) -> ModelSpec:
    """The family's defaults, overridden by what the folder's settings say."""
    defaults: dict[str, Any] = (
        {"width": 1024, "height": 1024, "num_inference_steps": 28, "guidance_scale": 3.5}
        | {"max_sequence_length": 512, "has_guidance": True}
        if config.guidance_embeds
        else {"width": 1360, "height": 768, "num_inference_steps": 4, "max_sequence_length": 256}
    )
    limits = {"longest_sequence_length": 512, "name": folder.name, "family": "flux"}
    try:
        spec = ModelSpec(**{**defaults, **limits, **_own_settings(folder)})
        spec.resolve(GenerationParams(prompt="the defaults"), seed=0)
    except InvalidParams as error:
        raise InvalidModel(f"{folder.path}/{SETTINGS_FILE}: the default {error}") from error
    return spec


def _own_settings(folder: ModelFolder) -> dict[str, Any]:
    """What the folder's settings say about the `ModelSpec`, each name known and of the right type."""
    own = {name: value for name, value in folder.settings.items() if name != "preview"}
    for name, value in own.items():
        wanted = _SETTINGS.get(name)
        if wanted is None:
            known = ", ".join([*_SETTINGS, "preview"])
            raise InvalidModel(f"{folder.path}/{SETTINGS_FILE}: unknown setting {name!r}; known: {known}")
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise InvalidModel(f"{folder.path}/{SETTINGS_FILE}: {name}={value!r} must be of type {wanted}")
    own.pop("lowercase_prompt", None)
    return own


def _preview_map(folder: ModelFolder, num_channels: int) -> PreviewMap:
    preview = folder.settings.get("preview")
    if preview is None:
        return FLUX_PREVIEW
    try:
        factors, bias = preview["factors"], preview["bias"]
        if [len(row) for row in factors] == [3] * num_channels and len(bias) == 3:
            return PreviewMap(factors, bias)
    except (KeyError, TypeError, ValueError):
        pass
    raise InvalidModel(
        f"{folder.path}/{SETTINGS_FILE}: preview needs factors, {num_channels} rows of 3 numbers, and bias, 3"
    )


def _flux(conditioning: Conditioning) -> FluxConditioning:
    assert isinstance(conditioning, FluxConditioning)
    return conditioning


def _split(images: list[Image.Image], counts: list[int]) -> list[list[Image.Image]]:
    remaining = iter(images)
    return [[next(remaining) for _ in range(count)] for count in counts]


def _num_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
