"""FLUX.1's transformer over packed sequences.

Reference implementations: Black Forest Labs' `flux/model.py` and diffusers'
`FluxTransformer2DModel`, whose tensor names the checkpoints use. Here the tokens of all requests
run in one row (see `packing`), and each token is modulated by its own request's timestep, guidance
and prompt, so one forward pass serves requests of any size at any step.

Shapes: `text`, `image` and `joint` count packed tokens, `seq` counts sequences, `d` is the width, and `own_d`
this rank's part of it, if ranks share the weights. Factors that are the same for all tokens have one row,
which `#tokens` allows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Complex64, Float
from torch import Tensor, nn

from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.packed_images.transformer import FUSED_QKV, PackedTransformer
from diffuserve.models.layers.adapted.adapters import RowAdapters, Uses
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.feed_forward import FeedForward
from diffuserve.models.layers.joint.attention import JointAttention, SelfAttention
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

_TIMESTEP_CHANNELS = 256
_SHARDS = {
    r".*\.attn\.(to_qkv|add_qkv_proj)": Sharding(parts=(1, 1, 1)),
    r".*\.attn\.(to_out\.0|to_add_out)": Sharding(by_inputs=True),
    r".*\.(ff|ff_context)\.net\.0\.proj|.*\.proj_mlp": Sharding(),
    r".*\.(ff|ff_context)\.net\.2": Sharding(by_inputs=True),
    r"single_transformer_blocks\.\d+\.proj_out": Sharding(by_inputs=True, parts=(1, 4)),
    r".*\.(norm1|norm1_context)\.linear": Sharding(parts=(1,) * 2 * len(FACTORS)),
    r".*\.norm\.linear": Sharding(parts=(1,) * len(FACTORS)),
    r"norm_out\.linear": Sharding(parts=(1, 1)),
}
"""How ranks share the weights: attention by heads, and of modulation each rank has some channels of each
factor, which it gathers from the others. Embedders, head norms and the last product are whole on each."""


@dataclass(frozen=True)
class Levels:
    """The level of each sequence, on which its factors depend; `timestep` is in 0…1000."""

    pooled: Float[Tensor, "seq pooled_dim"]
    timestep: Float[Tensor, "seq"]
    guidance: Float[Tensor, "seq"] | None


class FluxBlocks(PackedTransformer):
    """Embedders and blocks, which transformers have, and ControlNets fewer of.

    Submodules are named as in diffusers' `FluxTransformer2DModel`.
    """

    shardings = _SHARDS
    fused = FUSED_QKV

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__(config)
        dim = config.dim
        self.config = config
        self.time_text_embed = _TimeTextEmbed(config)
        self.context_embedder = Linear(config.joint_attention_dim, dim)
        self.x_embedder = Linear(config.in_channels, dim)
        self.transformer_blocks = nn.ModuleList(
            DoubleBlock(config, attention) for _ in range(config.num_layers)
        )
        self.single_transformer_blocks = nn.ModuleList(
            SingleBlock(config, attention) for _ in range(config.num_single_layers)
        )

    def factors(
        self, levels: Levels, adapters: RowAdapters | None = None
    ) -> Float[Tensor, "seq factors own_d"]:
        """Return the modulation factors of all blocks, with the adapters of each sequence.

        They do not depend on latents, so those of all steps of a schedule can be computed at once.
        """
        condition = F.silu(self.time_text_embed(levels, adapters))
        return torch.cat([modulation(condition, adapters) for modulation in self._modulations()], dim=1)

    def factors_of(
        self,
        pooled: Float[Tensor, "pooled_dim"],
        guidance: float,
        uses: Uses,
        timesteps: Sequence[float],
    ) -> Float[Tensor, "timesteps factors own_d"]:
        """Return the factors of a prompt at several timesteps, with its request's adapters."""
        count, device = len(timesteps), pooled.device
        levels = Levels(
            pooled=pooled.expand(count, -1),
            timestep=torch.tensor(timesteps).to(device),
            guidance=torch.full((count,), guidance).to(device) if self.config.guidance_embeds else None,
        )
        return self.factors(levels, RowAdapters.of([count], [uses]))

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        modulations = list(FluxBlocks._modulations(self))  # they run before their blocks
        rings = [Ring([*self.transformer_blocks, *self.single_transformer_blocks], apart=modulations)]
        rings.append(Ring(modulations, is_in_every_pass=False))
        return Component(self, rings, is_denoiser=True, entries=("forward", "factors"))

    @property
    def num_factors(self) -> int:
        """Number of factors of a sequence, each as wide as a token."""
        return sum(modulation.num_factors for modulation in self._modulations())

    def _modulations(self) -> Iterator["Modulation"]:
        """Yield the modulations in the order in which a forward pass needs their factors."""
        for block in self.transformer_blocks:
            assert isinstance(block, DoubleBlock)
            yield block.norm1
            yield block.norm1_context
        for block in self.single_transformer_blocks:
            assert isinstance(block, SingleBlock)
            yield block.norm


class FluxTransformer(FluxBlocks):
    """Predicts the velocity (noise minus image) of every image token."""

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__(config, attention)
        self.norm_out = Modulation(config.dim, ("scale", "shift"))
        self.proj_out = Linear(config.dim, config.num_outputs)

    def forward(self, packed: PackedInput) -> Float[Tensor, "image outputs"]:
        layout, adapters = packed.layout, packed.adapters
        whole = packed.factors if self.ranks is None else self.ranks.gather(packed.factors)
        factors = iter(whole.split([part.num_factors for part in self._modulations()], dim=1))
        image = self.x_embedder(packed.image, adapters.image)
        text = self.context_embedder(packed.text, adapters.text)
        for index, block in enumerate(self.transformer_blocks):
            image, text = block(image, text, next(factors), next(factors), layout, adapters)
            for change in packed.changes:
                image = change.after_double(image, index, self.config.num_layers)
        joint = join(text, image, layout)
        for index, block in enumerate(self.single_transformer_blocks):
            joint = block(joint, next(factors), layout, adapters)
            for change in packed.changes:
                joint = change.after_single(joint, index, self.config.num_single_layers, layout.image_at)
        (scale, shift), owner = factors_of_tokens(next(factors), layout.image_owner)
        return self.proj_out(normalize(image_of(joint, layout), scale, shift, owner), adapters.image)

    def _modulations(self) -> Iterator["Modulation"]:
        yield from super()._modulations()
        yield self.norm_out


class _TimeTextEmbed(OfSequences):
    """A vector for each sequence, from its timestep, guidance and pooled prompt."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.timestep_embedder = _Embedder(_TIMESTEP_CHANNELS, config.dim)
        if config.guidance_embeds:
            self.guidance_embedder = _Embedder(_TIMESTEP_CHANNELS, config.dim)
        self.text_embedder = _Embedder(config.pooled_projection_dim, config.dim)

    def forward(self, levels: Levels, adapters: RowAdapters | None = None) -> Float[Tensor, "seq d"]:
        dtype = levels.pooled.dtype
        # The reference passes t/1000 in the model's dtype and multiplies it there: in bf16 that moves the
        # timestep, and checkpoints are trained with it.
        timestep = (levels.timestep.to(dtype) / 1000) * 1000
        waves = timestep_embedding(timestep, _TIMESTEP_CHANNELS).to(dtype)
        vector = self.timestep_embedder(waves, adapters)
        if levels.guidance is not None:
            guidance = levels.guidance.to(dtype) * 1000
            waves = timestep_embedding(guidance, _TIMESTEP_CHANNELS).to(dtype)
            vector = vector + self.guidance_embedder(waves, adapters)
        return vector + self.text_embedder(levels.pooled, adapters)


class _Embedder(nn.Module):
    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__()
        self.linear_1 = Linear(in_features, dim)
        self.linear_2 = Linear(dim, dim)

    def forward(
        self, x: Float[Tensor, "seq in"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "seq d"]:
        return self.linear_2(F.silu(self.linear_1(x, adapters)), adapters)


class DoubleBlock(DoubleStream):
    """A double-stream block."""

    networks = ("ff", "ff_context")

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__(JointAttention(config.dim, config.attention_head_dim), attention)
        self.norm1 = Modulation(config.dim, 2 * FACTORS)
        self.norm1_context = Modulation(config.dim, 2 * FACTORS)
        self.ff, self.ff_context = (FeedForward(config.dim, 4 * config.dim) for _ in range(2))


class SingleBlock(SingleStream):
    """A single-stream block: text and image as one sequence."""

    start_weights = ("attn.to_qkv.", "attn.norm_")
    end_weights = ("proj_mlp.", "proj_out.")

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__(attention)
        dim = config.dim
        self.norm = Modulation(dim, FACTORS)
        self.attn = SelfAttention(dim, config.attention_head_dim)
        self.proj_mlp = Linear(dim, 4 * dim, gelu=True)
        self.proj_out = Linear(5 * dim, dim)

    def start(
        self,
        x: Float[Tensor, "joint d"],
        rotation: Complex64[Tensor, "joint half"] | None,
        adapters: RowAdapters | None = None,
    ) -> tuple[RawQkv, Float[Tensor, "joint d"]]:
        return self.attn.raw_qkv(x, rotation, adapters), x

    def outputs(
        self,
        rest: Float[Tensor, "joint d"],
        attended: Float[Tensor, "joint own_d"],
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "joint d"]:
        return self.proj_out.of_parts(attended, self.proj_mlp(rest, adapters), adapters)
