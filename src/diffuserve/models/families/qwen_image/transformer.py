"""Qwen-Image's transformer over packed sequences.

Reference implementation: diffusers' `QwenImageTransformer2DModel`, whose tensor names the checkpoints use.
Here the tokens of all requests run in one row (see `packing`), and each token is modulated by its own
request's timestep, so one forward pass serves requests of any size at any step.

Shapes: `text` and `image` count packed tokens, `rows` rows of factors, `d` is the width, and `own_d` this
rank's part of it, if ranks share the weights.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.models.families.packed_images.transformer import FUSED_QKV, PackedTransformer
from diffuserve.models.families.qwen_image.config import QwenImageConfig
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.feed_forward import FeedForward
from diffuserve.models.layers.joint.attention import JointAttention
from diffuserve.models.layers.joint.double_stream import DoubleStream
from diffuserve.models.layers.joint.modulation import (
    FACTORS,
    Modulation,
    OfSequences,
    factors_of_tokens,
    normalize,
)
from diffuserve.models.layers.joint.packing import PackedInput
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.rms_norm import TokenRmsNorm
from diffuserve.models.layers.tensor_parallel import Sharding
from diffuserve.models.layers.timestep import timestep_embedding
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.weights.loading import Placement

_TIMESTEP_CHANNELS = 256
_EPS = 1e-6
_SHARDS = {
    r".*\.attn\.(to_qkv|add_qkv_proj)": Sharding(parts=(1, 1, 1)),
    r".*\.attn\.(to_out\.0|to_add_out)": Sharding(by_inputs=True),
    r".*_mlp\.net\.0\.proj": Sharding(),
    r".*_mlp\.net\.2": Sharding(by_inputs=True),
    r".*_mod\.linear": Sharding(parts=(1,) * 2 * len(FACTORS)),
    r"norm_out\.linear": Sharding(parts=(1, 1)),
}
"""How ranks share the weights, as FLUX.1's do: attention by heads, and of each factor some channels."""


class QwenImageBlock(DoubleStream):
    """A block with two streams."""

    networks = ("img_mlp", "txt_mlp")

    def __init__(self, config: QwenImageConfig, attention: AttentionKernel) -> None:
        dim = config.dim
        super().__init__(JointAttention(dim, config.attention_head_dim), attention)
        self.img_mod, self.txt_mod = (Modulation(dim, 2 * FACTORS) for _ in range(2))
        self.img_mlp, self.txt_mlp = (FeedForward(dim, 4 * dim) for _ in range(2))


class QwenImageTransformer(PackedTransformer):
    """Predicts the velocity (noise minus image) of every image token.

    Submodules are named as in diffusers' `QwenImageTransformer2DModel`, but the products of modulations.
    """

    shardings = _SHARDS
    fused = FUSED_QKV

    def __init__(self, config: QwenImageConfig, attention: AttentionKernel) -> None:
        super().__init__(config)
        dim = config.dim
        self.time_text_embed = _TimeEmbed(dim)
        self.txt_norm = TokenRmsNorm(config.joint_attention_dim, _EPS)
        self.img_in = Linear(config.in_channels, dim)
        self.txt_in = Linear(config.joint_attention_dim, dim)
        self.transformer_blocks = nn.ModuleList(
            QwenImageBlock(config, attention) for _ in range(config.num_layers)
        )
        self.norm_out = Modulation(dim, ("scale", "shift"))
        self.proj_out = Linear(dim, config.in_channels)

    def factors(
        self, timesteps: Float[Tensor, "rows"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "rows factors own_d"]:
        """Return the modulation factors of all blocks at timesteps in 0…1000, with adapters of these rows.

        They depend on nothing else, so those of all steps of a schedule can be computed at once.
        """
        condition = F.silu(self.time_text_embed(timesteps, adapters))
        return torch.cat([modulation(condition, adapters) for modulation in self._modulations()], dim=1)

    def forward(self, packed: PackedInput) -> Float[Tensor, "image channels"]:
        layout, adapters = packed.layout, packed.adapters
        whole = packed.factors if self.ranks is None else self.ranks.gather(packed.factors)
        factors = iter(whole.split([part.num_factors for part in self._modulations()], dim=1))
        image = self.img_in(packed.image, adapters.image)
        text = self.txt_in(self.txt_norm(packed.text), adapters.text)
        for block in self.transformer_blocks:
            image, text = block(image, text, next(factors), next(factors), layout, adapters)
        (scale, shift), owner = factors_of_tokens(next(factors), layout.image_owner)
        return self.proj_out(normalize(image, scale, shift, owner), adapters.image)

    @property
    def component(self) -> Component:
        modulations = list(self._modulations())[:-1]  # they run before their blocks
        rings = [Ring(list(self.transformer_blocks), apart=modulations)]
        rings.append(Ring(modulations, is_in_every_pass=False))
        return Component(self, rings, is_denoiser=True, entries=("forward", "factors"))

    @property
    def num_factors(self) -> int:
        """Number of factors of a sequence, each as wide as a token."""
        return sum(modulation.num_factors for modulation in self._modulations())

    def placements(self) -> dict[str, Placement]:
        places = super().placements()
        return {name.replace("_mod.linear.", "_mod.1."): place for name, place in places.items()}

    def _modulations(self) -> Iterator[Modulation]:
        """Yield the modulations in the order in which a forward pass needs their factors."""
        for block in self.transformer_blocks:
            assert isinstance(block, QwenImageBlock)
            yield block.img_mod
            yield block.txt_mod
        yield self.norm_out


class _TimeEmbed(OfSequences):
    """A vector for each timestep."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.timestep_embedder = _Embedder(dim)

    def forward(
        self, timesteps: Float[Tensor, "rows"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "rows d"]:
        dtype = self.timestep_embedder.linear_2.weight.dtype
        # The reference passes t/1000 in the model's dtype: in bf16 that moves the timestep, and checkpoints
        # are trained with it.
        moved = (timesteps.to(dtype) / 1000).float() * 1000
        return self.timestep_embedder(timestep_embedding(moved, _TIMESTEP_CHANNELS).to(dtype), adapters)


class _Embedder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear_1 = Linear(_TIMESTEP_CHANNELS, dim)
        self.linear_2 = Linear(dim, dim)

    def forward(
        self, x: Float[Tensor, "rows channels"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "rows d"]:
        return self.linear_2(F.silu(self.linear_1(x, adapters)), adapters)
