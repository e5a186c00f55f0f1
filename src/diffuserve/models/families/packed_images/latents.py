"""Latent images as tokens: square patches, row by row."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor


def unpack_latents(
    tokens: Float[Tensor, "batch tokens channels"], rows: int, patch: int = 2
) -> Float[Tensor, "batch latent_channels height width"]:
    """Return the latent image of tokens that are patches of it, in `rows` rows."""
    return rearrange(tokens, "b (h w) (c ph pw) -> b c (h ph) (w pw)", h=rows, ph=patch, pw=patch)


def pack_latents(
    latents: Float[Tensor, "batch latent_channels height width"], patch: int = 2
) -> Float[Tensor, "batch tokens channels"]:
    """Return the patches of a latent image, row by row, as tokens."""
    return rearrange(latents, "b c (h ph) (w pw) -> b (h w) (c ph pw)", ph=patch, pw=patch)
