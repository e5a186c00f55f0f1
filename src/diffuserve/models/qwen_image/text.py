"""Qwen-Image's prompts in the template of a chat, encoded by Qwen2.5-VL.

Reference implementation: `encode_prompt` of diffusers' `QwenImagePipeline`. Of the states those of the
template's beginning are cut off.
"""

from collections.abc import Sequence
from contextlib import nullcontext

from torch import nn

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.offload.components import Component
from diffuserve.models.packed_images.texts import GuidedTexts, TextStates
from diffuserve.models.text.chat import qwen_chat
from diffuserve.models.text.qwen import PackedPrompts, load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.text.tokenizer import PromptText, PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan

_SYSTEM = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships "
    "of the objects and background:"
)
_NUM_CUT = 34  # tokens of the template before a prompt


class QwenImageTextEncoder(GuidedTexts):
    """Qwen2.5-VL with its tokenizer; on the meta device, without either's content, if they are not loaded.

    Ranks that share its weights encode together.
    """

    no_negative = " "  # as the authors recommend: without one diffusers' pipeline guides nothing

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        self.spec, self.device = spec, plan.device
        self._ranks = plan.ranks if plan.ranks is not None and plan.ranks.plan.is_sharded else None
        self.model = load_qwen(
            QwenConfig.read(folder, "text_encoder"),
            folder.weights("text_encoder"),
            plan,
            choose_kernel(plan.device, plan.chosen_dtype, plan.deterministic),
            ranks=None if self._ranks is None else self._ranks.world,
        )
        self.tokenizer = PromptTokenizer.read(folder, "tokenizer", plan.is_wanted, qwen_chat(_SYSTEM))

    @property
    def largest(self) -> nn.Module:
        return self.model

    @property
    def components(self) -> Sequence[Component]:
        return (self.model.component,)

    def encode_texts(self, texts: Sequence[PromptText]) -> list[TextStates]:
        """Encode texts in one row."""
        tokens = [
            self.tokenizer.tokenize([text.words], _NUM_CUT + text.length, subject=text.subject)
            for text in texts
        ]
        packed = PackedPrompts.of([each.rows[0] for each in tokens], self.device)
        with nullcontext() if self._ranks is None else self._ranks.together():
            [states] = self.model(packed)
        pairs = zip(states.split(packed.lengths), tokens, strict=True)
        return [TextStates(each[_NUM_CUT:].clone(), read.warnings[0]) for each, read in pairs]
