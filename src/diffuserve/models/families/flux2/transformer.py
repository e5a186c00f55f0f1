"""FLUX.2's transformer over packed sequences.

Reference implementations: Black Forest Labs' `flux2/model.py` and diffusers' `Flux2Transformer2DModel`, whose
tensor names the checkpoints use. Here the tokens of all requests run in one row, each modulated by its own
request's timestep and guidance. All blocks of a kind share one modulation, and no layer has a bias.

Shapes: `text`, `image` and `joint` count packed tokens, `seq` counts sequences, `d` is the width, and `own_d`
this rank's part of it, if ranks share the weights.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Complex64, Float
from torch import Tensor, nn

from diffuserve.models.families.flux2.config import RATIO, Flux2Config
from diffuserve.models.families.packed_images.transformer import FUSED_QKV, PackedTransformer
from diffuserve.models.layers.adapted.adapters import RowAdapters, Uses
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.gated_feed_forward import GatedFeedForward, gated
from diffuserve.models.layers.joint.attention import HeadNorm, JointAttention
from diffuserve.models.layers.joint.double_stream import DoubleStream
from diffuserve.models.layers.joint.joint_row import RawQkv, image_of, join
from diffuserve.models.layers.joint.modulation import (
    FACTORS,
    Modulation,
    OfSequences,
    factors_of_tokens,
    normalize,
)
from diffuserve.models.layers.joint.packing import PackedInput
from diffuserve.models.layers.joint.single_stream import SingleStream
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.tensor_parallel import Sharding
from diffuserve.models.layers.timestep import timestep_embedding
from diffuserve.models.offload.components import Component, Ring

_SHARDS = {
    r".*\.attn\.(to_qkv|add_qkv_proj)": Sharding(parts=(1, 1, 1)),
    r".*\.attn\.(to_out\.0|to_add_out)": Sharding(by_inputs=True),
    r".*\.(ff|ff_context)\.linear_in": Sharding(parts=(1, 1)),
    r".*\.(ff|ff_context)\.linear_out": Sharding(by_inputs=True),
    r".*\.attn\.to_qkv_mlp_proj": Sharding(parts=(1, 1, 1, RATIO, RATIO)),
    r"single_transformer_blocks\.\d+\.attn\.to_out": Sharding(by_inputs=True, parts=(1, RATIO)),
    r"double_stream_modulation_(img|txt)\.linear": Sharding(parts=(1,) * 2 * len(FACTORS)),
    r"single_stream_modulation\.linear": Sharding(parts=(1,) * len(FACTORS)),
    r"norm_out\.linear": Sharding(parts=(1, 1)),
}
"""How ranks share the weights: attention by heads, and of modulation each rank has some channels of each
factor, which it gathers from the others. Embedders, head norms and the last product are whole on each."""


class Flux2Transformer(PackedTransformer):
    """Predicts the velocity (noise minus image) of every image token.

    Submodules are named as in diffusers' `Flux2Transformer2DModel`.
    """

    shardings = _SHARDS
    fused = FUSED_QKV

    def __init__(self, config: Flux2Config, attention: AttentionKernel) -> None:
        super().__init__(config)
        dim = config.dim
        self.config = config
        self.time_guidance_embed = _TimeGuidanceEmbed(config)
        self.double_stream_modulation_img = Modulation(dim, 2 * FACTORS, bias=False)
        self.double_stream_modulation_txt = Modulation(dim, 2 * FACTORS, bias=False)
        self.single_stream_modulation = Modulation(dim, FACTORS, bias=False)
        self.x_embedder = Linear(config.in_channels, dim, bias=False)
        self.context_embedder = Linear(config.joint_attention_dim, dim, bias=False)
        self.transformer_blocks = nn.ModuleList(
            Flux2DoubleBlock(config, attention) for _ in range(config.num_layers)
        )
        self.single_transformer_blocks = nn.ModuleList(
            Flux2SingleBlock(config, attention) for _ in range(config.num_single_layers)
        )
        self.norm_out = Modulation(dim, ("scale", "shift"), bias=False)
        self.proj_out = Linear(dim, config.num_outputs, bias=False)

    def factors(
        self, guidance: float, uses: Uses, timesteps: Sequence[float]
    ) -> Float[Tensor, "timesteps factors own_d"]:
        """Return the modulation factors at timesteps in 0…1000, with a request's adapters."""
        adapters = RowAdapters.of([len(timesteps)], [uses])
        condition = F.silu(self.time_guidance_embed(guidance, timesteps, adapters))
        return torch.cat([modulation(condition, adapters) for modulation in self._modulations()], dim=1)

    def forward(self, packed: PackedInput) -> Float[Tensor, "image outputs"]:
        layout, adapters = packed.layout, packed.adapters
        whole = packed.factors if self.ranks is None else self.ranks.gather(packed.factors)
        kinds = whole.split([kind.num_factors for kind in self._modulations()], dim=1)
        image = self.x_embedder(packed.image, adapters.image)
        text = self.context_embedder(packed.text, adapters.text)
        for block in self.transformer_blocks:
            image, text = block(image, text, kinds[0], kinds[1], layout, adapters)
        joint = join(text, image, layout)
        for block in self.single_transformer_blocks:
            joint = block(joint, kinds[2], layout, adapters)
        (scale, shift), owner = factors_of_tokens(kinds[3], layout.image_owner)
        return self.proj_out(normalize(image_of(joint, layout), scale, shift, owner), adapters.image)

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        ring = Ring([*self.transformer_blocks, *self.single_transformer_blocks])
        return Component(self, [ring], is_denoiser=True, entries=("forward", "factors"))

    @property
    def num_factors(self) -> int:
        """Number of factors of a sequence, each as wide as a token."""
        return sum(modulation.num_factors for modulation in self._modulations())

    def _modulations(self) -> tuple[Modulation, ...]:
        return (
            self.double_stream_modulation_img,
            self.double_stream_modulation_txt,
            self.single_stream_modulation,
            self.norm_out,
        )


class _TimeGuidanceEmbed(OfSequences):
    """A vector for each timestep, and for the guidance if it is an input."""

    def __init__(self, config: Flux2Config) -> None:
        super().__init__()
        self.channels = config.timestep_guidance_channels
        self.timestep_embedder = _Embedder(self.channels, config.dim)
        self.guidance_embedder = _Embedder(self.channels, config.dim) if config.guidance_embeds else None

    def forward(
        self, guidance: float, timesteps: Sequence[float], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "timesteps d"]:
        weight = self.timestep_embedder.linear_1.weight
        # The reference passes t/1000 in the model's dtype and multiplies it there: in bf16 that moves the
        # timestep, and checkpoints are trained with it.
        levels = torch.tensor(timesteps).to(weight.device, weight.dtype) / 1000
        vector = self.timestep_embedder(self._waves(levels), adapters)
        if self.guidance_embedder is not None:
            waves = self._waves(torch.full_like(levels, guidance))
            vector = vector + self.guidance_embedder(waves, adapters)
        return vector

    def _waves(self, levels: Float[Tensor, "timesteps"]) -> Float[Tensor, "timesteps channels"]:
        return timestep_embedding(levels * 1000, self.channels).to(levels.dtype)


class _Embedder(nn.Module):
    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__()
        self.linear_1 = Linear(in_features, dim, bias=False)
        self.linear_2 = Linear(dim, dim, bias=False)

    def forward(
        self, x: Float[Tensor, "seq in"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "seq d"]:
        return self.linear_2(F.silu(self.linear_1(x, adapters)), adapters)


class Flux2DoubleBlock(DoubleStream):
    """A double-stream block."""

    networks = ("ff", "ff_context")

    def __init__(self, config: Flux2Config, attention: AttentionKernel) -> None:
        super().__init__(JointAttention(config.dim, config.attention_head_dim, bias=False), attention)
        self.ff, self.ff_context = (GatedFeedForward(config.dim, config.inner_dim) for _ in range(2))


class Flux2SingleBlock(SingleStream):
    """A single-stream block: text and image as one sequence."""

    start_weights = ("attn.to_qkv_mlp_proj.", "attn.norm_")
    end_weights = ("attn.to_out.",)
    starts_both = True

    def __init__(self, config: Flux2Config, attention: AttentionKernel) -> None:
        super().__init__(attention)
        self.attn = _ParallelAttention(config)

    def start(
        self,
        x: Float[Tensor, "joint d"],
        rotation: Complex64[Tensor, "joint half"] | None,
        adapters: RowAdapters | None = None,
    ) -> tuple[RawQkv, Float[Tensor, "joint features"]]:
        return self.attn.start(x, rotation, adapters)

    def outputs(
        self,
        rest: Float[Tensor, "joint features"],
        attended: Float[Tensor, "joint own_d"],
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "joint d"]:
        return self.attn.to_out.of_parts(attended, rest, adapters)


class _ParallelAttention(nn.Module):
    """Attention and the gated feed-forward network side by side: one product reads for both, one writes."""

    def __init__(self, config: Flux2Config) -> None:
        super().__init__()
        dim, head_dim = config.dim, config.attention_head_dim
        self.head_dim = head_dim
        self.to_qkv_mlp_proj = Linear(dim, (3 + 2 * RATIO) * dim, bias=False)
        self.norm_q, self.norm_k = HeadNorm(head_dim), HeadNorm(head_dim)
        self.to_out = Linear((1 + RATIO) * dim, dim, bias=False)

    def start(
        self,
        x: Float[Tensor, "joint d"],
        rotation: Complex64[Tensor, "joint half"] | None,
        adapters: RowAdapters | None = None,
    ) -> tuple[RawQkv, Float[Tensor, "joint features"]]:
        """Return queries, keys and values, and what the feed-forward network has before its last product."""
        both = self.to_qkv_mlp_proj(x, adapters)
        qkv, hidden = both.tensor_split([3 * both.shape[-1] // (3 + 2 * RATIO)], dim=-1)
        qkv = qkv.unflatten(-1, (3, -1, self.head_dim))
        return RawQkv(qkv, self.norm_q.weight, self.norm_k.weight, rotation), gated(hidden)
