"""The prompts of Qwen-Image's editors, with the images that they are about.

Reference implementations: `encode_prompt` of diffusers' `QwenImageEditPipeline`, which reads one image
large, and `QwenImageEditPlusPipeline`, which reads several small ones and numbers them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.qwen_image.text import QwenImageTextEncoder, ReadingTask
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.offload.components import Component
from diffuserve.models.text.qwen import PackedPrompts
from diffuserve.models.text.qwen_pixels import image_patches
from diffuserve.models.text.qwen_vision import PackedPatches, load_qwen_vision
from diffuserve.models.text.qwen_vision_config import QwenPixelsConfig, QwenVisionConfig
from diffuserve.models.text.tokenizer import PromptText
from diffuserve.models.weights.load_plan import LoadPlan

_EDITING = ReadingTask(
    "Describe the key features of the input image (color, shape, size, texture, objects, background), then "
    "explain how the user's text instruction should alter or modify the image. Generate a new image that "
    "meets the user's requirements while maintaining consistency with the original input where appropriate.",
    64,
)
_PLACE = "<|image_pad|>"  # stands for all tokens of an image
_IMAGE = f"<|vision_start|>{_PLACE}<|vision_end|>"
_LARGE, _SMALL = 1024 * 1024, 384 * 384  # pixels of an image that is read alone, and of several
_TITLE_TOKENS = 16  # at most, of what stands around an image in a prompt


@dataclass(frozen=True)
class EditText(PromptText):
    """A text, and the images that it is about."""

    images: tuple[InputImage, ...]


class EditTextEncoder(QwenImageTextEncoder):
    """Qwen2.5-VL with its vision tower, which reads images together with each prompt.

    `grid_positions`: images' tokens have the positions that Qwen2.5-VL was trained with, of rows and columns.
    Diffusers places them one after another, as if they were text.
    """

    task = _EDITING

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(folder, spec, plan)
        self.pixels = QwenPixelsConfig.read(folder)
        config, files = QwenVisionConfig.read(folder, "text_encoder"), folder.weights("text_encoder")
        self.tower = load_qwen_vision(config, files, plan, self.attention)
        self.grid_positions = bool(folder.settings.get("grid_positions", False))
        self._dtype = plan.chosen_dtype

    @property
    def components(self) -> Sequence[Component]:
        return (*super().components, self.tower.component)

    def text(self, params: GenerationParams, words: str, subject: str) -> EditText:
        images = tuple(self.spec.references(params))
        if self.spec.max_input_images == 1:
            titled = [_IMAGE for _ in images]
        else:
            titled = [f"Picture {number}: {_IMAGE}" for number in range(1, len(images) + 1)]
        plain = super().text(params, words, subject)
        length = plain.length + _TITLE_TOKENS * len(images)
        return EditText("".join(titled) + words, length, subject, images)

    def pack(
        self, rows: Sequence[Int[Tensor, "_"]], texts: Sequence[PromptText]
    ) -> tuple[PackedPrompts, Float[Tensor, "image_tokens d"]]:
        of_texts = [text.images for text in texts if isinstance(text, EditText)]
        read = self._read(list(dict.fromkeys(image for images in of_texts for image in images)))
        grids = [[read[image].grid for image in images] for images in of_texts]
        prompts = PackedPrompts.with_images(rows, grids, self.tokenizer.id_of(_PLACE), self.device)
        tokens = torch.cat([read[image].tokens for images in of_texts for image in images])
        return prompts if self.grid_positions else prompts.in_a_line(), tokens

    def _read(self, images: Sequence[InputImage]) -> dict[InputImage, "_ReadImage"]:
        """Return the tokens of each image, all of which pass the tower in one row."""
        num_pixels = _LARGE if self.spec.max_input_images == 1 else _SMALL
        config = self.tower.config
        patches = [image_patches(image, num_pixels, self.pixels, config) for image in images]
        row = self.tower(PackedPatches.of(patches, config, self.device, self._dtype))
        parts = zip(images, patches, row.split([each.num_tokens for each in patches]), strict=True)
        return {image: _ReadImage(tokens, (each.rows, each.columns)) for image, each, tokens in parts}


@dataclass(frozen=True)
class _ReadImage:
    """The tokens of an image, and their rows and columns."""

    tokens: Float[Tensor, "image_tokens d"]
    grid: tuple[int, int]
