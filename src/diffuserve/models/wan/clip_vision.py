"""CLIP's image encoder (Radford et al. 2021, arXiv:2103.00020), with which Wan 2.1 reads a first frame.

The reference implementations are transformers' `CLIPVisionModel` and `CLIPImageProcessor`, whose operations
and names of parameters are kept.
"""

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.text.clip import ClipLayers
from diffuserve.models.wan.clip_config import ClipVisionConfig, ImageProcessorConfig
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, empty_embedding, load_weights, tensor_names

ImageStates = Float[Tensor, "images tokens dim"]

_PREFIX = "vision_model."
_IGNORED = ("embeddings.position_ids", f"{_PREFIX}embeddings.position_ids")  # a buffer in older checkpoints
_UNUSED = ("post_layernorm.", f"{_PREFIX}post_layernorm.", "visual_projection.")


class ClipImageEncoder:
    """Encodes images as Wan's transformer reads them: the states before the last layer."""

    def __init__(self, folder: ModelFolder, plan: LoadPlan) -> None:
        config = ClipVisionConfig.read(folder, "image_encoder")
        self.processor = ImageProcessorConfig.read(folder)
        self.num_tokens, self.device, self.dtype = config.num_tokens, plan.device, plan.chosen_dtype
        self.model = _load(config, folder, plan)

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        return Component(self.model, [Ring(list(self.model.encoder.layers))], is_encoder=True)

    def encode(self, image: InputImage) -> Float[Tensor, "tokens dim"]:
        """Return the embeddings of an image, in its own proportions."""
        pixels = processed_image(image, self.processor).to(self.device, self.dtype)
        states: Tensor = self.model(pixels)
        return states[0]


def processed_image(image: InputImage, config: ImageProcessorConfig) -> Float[Tensor, "1 3 height width"]:
    """Return the middle of an image whose shorter side has the size that CLIP reads, normalized."""
    assert image.pixels is not None
    opened = Image.frombytes(image.mode, (image.width, image.height), image.pixels).convert("RGB")
    short = min(opened.size)
    sides = [int(config.size.shortest_edge * side / short) for side in opened.size]
    levels = np.asarray(opened.resize((sides[0], sides[1]), Image.Resampling.BICUBIC))
    scaled = (_middle(levels, config) * config.rescale_factor).astype(np.float32)
    mean, deviation = (np.array(values, np.float32) for values in (config.image_mean, config.image_std))
    return torch.from_numpy(((scaled - mean) / deviation).transpose(2, 0, 1).copy())[None]


def _middle(
    levels: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", config: ImageProcessorConfig
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """Cut out the middle of an image, with black around it if it is smaller."""
    (height, width), crop = levels.shape[:2], config.crop_size
    rows, columns = max(0, crop.height - height), max(0, crop.width - width)
    padded = np.pad(levels, ((-(-rows // 2), rows // 2), (-(-columns // 2), columns // 2), (0, 0)))
    top, left = (max(0, height - crop.height) // 2, max(0, width - crop.width) // 2)
    return padded[top : top + crop.height, left : left + crop.width]


def _load(config: ClipVisionConfig, folder: ModelFolder, plan: LoadPlan) -> "_ClipVisionEncoder":
    files = folder.weights("image_encoder")
    with torch.device("meta"):
        encoder = _ClipVisionEncoder(config)
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in tensor_names(files)) else ""
    placements = {f"{prefix}{name}": Placement(name) for name, _ in encoder.named_parameters()}
    load_weights(encoder, files, placements, plan, ignored_prefixes=(*_IGNORED, *_UNUSED))
    return encoder.eval()


class _ClipVisionEncoder(nn.Module):
    """A transformer over the patches of an image."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)  # transformers' spelling
        self.encoder = ClipLayers(config, is_causal=False)

    def forward(self, pixels: Float[Tensor, "images 3 height width"]) -> ImageStates:
        penultimate, _ = self.encoder(self.pre_layrnorm(self.embeddings(pixels)))
        assert isinstance(penultimate, Tensor)
        return penultimate


class _Embeddings(nn.Module):
    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        dim, side = config.hidden_size, config.patch_size
        self.class_embedding = nn.Parameter(torch.empty(dim), requires_grad=False)
        self.patch_embedding = nn.Conv2d(3, dim, kernel_size=side, stride=side, bias=False)
        self.position_embedding = empty_embedding(config.num_tokens, dim)

    def forward(self, pixels: Float[Tensor, "images 3 height width"]) -> ImageStates:
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        whole = self.class_embedding.expand(len(pixels), 1, -1)
        states: Tensor = torch.cat([whole, patches], dim=1) + self.position_embedding.weight
        return states
