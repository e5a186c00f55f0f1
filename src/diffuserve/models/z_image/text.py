"""Z-Image's prompts, as a user's message to Qwen 3, of which the last layer but one is read.

Reference implementation: `encode_prompt` of diffusers' `ZImagePipeline`. Prompts are not padded here; the
transformer's own blocks refine and pad them.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from jaxtyping import Int
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.quantized_layers import QuantizedLayers
from diffuserve.models.machine.devices import to_device
from diffuserve.models.offload.components import Component
from diffuserve.models.packed_images.loading import load_transformer
from diffuserve.models.packed_images.texts import EncodedText, GuidedTexts
from diffuserve.models.text.qwen import load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.text.tokenizer import PromptText, PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.z_image.captions import CaptionRefiner
from diffuserve.models.z_image.config import ZImageConfig
from diffuserve.models.z_image.transformer import WEIGHTS as STEP_WEIGHTS

_BEFORE, _AFTER = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
_NONE = QuantizedLayers("")


class ZImageTextEncoder(GuidedTexts):
    """Qwen 3 with its tokenizer, and the blocks that refine prompts.

    They are on the meta device if they are not loaded. Ranks that share weights encode together.
    """

    def __init__(self, folder: ModelFolder, spec: ModelSpec, config: ZImageConfig, plan: LoadPlan) -> None:
        self.spec, self.device = spec, plan.device
        self._ranks = plan.ranks if plan.ranks is not None and plan.ranks.plan.is_sharded else None
        qwen = QwenConfig.read(folder, "text_encoder")
        self.largest = load_qwen(qwen, folder, plan)
        kernel = choose_kernel(plan.device, plan.chosen_dtype, plan.deterministic)
        self.refiner = load_transformer(
            lambda: CaptionRefiner(config, kernel), _NONE, folder, plan, ignored_prefixes=STEP_WEIGHTS
        )
        self.tokenizer = PromptTokenizer.read(folder, "tokenizer", is_wanted=plan.is_wanted)

    @property
    def components(self) -> Sequence[Component]:
        return (self.largest.component, self.refiner.component)

    def encode_texts(self, texts: Sequence[PromptText]) -> list[EncodedText]:
        """Encode texts in one row."""
        read = [self._read(text) for text in texts]
        lengths = [len(ids) for ids, _ in read]
        row = to_device(torch.cat([ids for ids, _ in read]), self.device)
        with nullcontext() if self._ranks is None else self._ranks.together():
            refined = self.refiner(self.largest(row, lengths), lengths)
        pairs = zip(refined, read, strict=True)
        return [EncodedText(tokens.clone(), warnings) for tokens, (_, warnings) in pairs]

    def _read(self, text: PromptText) -> tuple[Int[Tensor, "tokens"], tuple[str, ...]]:
        """Return the ids of a text, and warnings about it."""
        tokens = self.tokenizer.tokenize([_BEFORE + text.words + _AFTER], text.length, subject=text.subject)
        return tokens.ids[tokens.mask], tokens.warnings[0]
