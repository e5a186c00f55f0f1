"""Attention of the UNet's transformers: of an image's positions to one another, and to what prompts say."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.families.stable_diffusion.image_prompts.attention import ImageAttention, ImageRun
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.linear import PositionsLinear

Tokens = Float[Tensor, "rows positions dim"]


@dataclass(frozen=True)
class Context:
    """What rows attend to beside their own positions: their prompts' tokens, and those of image prompts."""

    text: Float[Tensor, "rows tokens text_dim"]
    images: tuple[ImageRun, ...] = ()


class Attention(nn.Module):
    """Attention of positions to a source; with `images` loaded, cross-attention to image prompts too."""

    def __init__(self, width: int, source_width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.to_q = PositionsLinear(width, width, bias=False)
        self.to_k, self.to_v = (PositionsLinear(source_width, width, bias=False) for _ in range(2))
        self.to_out = nn.ModuleList([PositionsLinear(width, width)])
        self.images: ImageAttention | None = None

    def forward(
        self,
        tokens: Tokens,
        source: Float[Tensor, "rows sources source_dim"],
        adapters: RowAdapters | None,
        images: tuple[ImageRun, ...] = (),
    ) -> Tokens:
        query, key, value = (
            states.unflatten(-1, (self._heads, -1)).transpose(1, 2)
            for states in (
                self.to_q(tokens, adapters),
                self.to_k(source, adapters),
                self.to_v(source, adapters),
            )
        )
        attended = F.scaled_dot_product_attention(query, key, value)
        if images and self.images is not None:
            self.images.add_(attended, query, images)
        return self.to_out[0](attended.transpose(1, 2).flatten(2), adapters)
