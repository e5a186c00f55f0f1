"""What denoising reads of a request's prompts and images."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from diffuserve.models.pipelines.base import Conditioning


@dataclass(frozen=True)
class ImageConditioning(Conditioning):
    """The tokens of a request's texts, and its images, if any.

    `texts` are the prompt's tokens, then those of the negative prompt where one guides. `references` are
    packed, one after another. An `image` to start from is given by the mean and deviation of its latents; the
    `mask` is packed.
    """

    texts: tuple[Float[Tensor, "_ dim"], ...]
    references: Float[Tensor, "reference_tokens channels"] | None = None
    image: Float[Tensor, "2 latent_channels height width"] | None = None
    mask: Float[Tensor, "image_tokens mask_channels"] | None = None
