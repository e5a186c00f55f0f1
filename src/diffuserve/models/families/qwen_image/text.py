"""Qwen-Image's prompts in the template of a chat, encoded by Qwen2.5-VL.

Reference implementation: `encode_prompt` of diffusers' `QwenImagePipeline`. The states of the
template's beginning are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.families.packed_images.texts import GuidedTexts, TextStates
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.offload.components import Component
from diffuserve.models.text.chat import qwen_chat
from diffuserve.models.text.encoder_ranks import EncoderRanks
from diffuserve.models.text.qwen import PackedPrompts, load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.text.tokenizer import PromptText, PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan


@dataclass(frozen=True)
class ReadingTask:
    """What the text encoder is told to do; the `num_cut` tokens before a prompt are cut off."""

    system: str
    num_cut: int


_DRAWING = ReadingTask(
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships "
    "of the objects and background:",
    34,
)


class QwenImageTextEncoder(GuidedTexts):
    """Qwen2.5-VL with its tokenizer; on the meta device, without either's content, if they are not loaded.

    Ranks that share its weights encode together.
    """

    no_negative = " "  # as the authors recommend: without one diffusers' pipeline guides nothing
    task = _DRAWING

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        self.spec, self.device = spec, plan.device
        self.attention = choose_kernel(plan.device, plan.chosen_dtype, plan.deterministic)
        config, files = QwenConfig.read(folder, "text_encoder"), folder.weights("text_encoder")
        self._ranks = EncoderRanks.of(plan, config.shared)
        self.model = load_qwen(config, files, plan, self.attention, ranks=self._ranks.sharing)
        chat = qwen_chat(self.task.system)
        self.tokenizer = PromptTokenizer.read(folder, "tokenizer", plan.is_wanted, chat)

    @property
    def largest(self) -> nn.Module:
        return self.model

    @property
    def components(self) -> Sequence[Component]:
        return (self.model.component,)

    def encode_texts(self, texts: Sequence[PromptText], adapters: Sequence[Uses]) -> list[TextStates]:
        """Encode texts in one row. No adapter changes how."""
        start = self.task.num_cut
        read = [
            self.tokenizer.tokenize([text.words], start + text.length, subject=text.subject) for text in texts
        ]
        with self._ranks.together():
            prompts, images = self.pack([tokens.rows[0] for tokens in read], texts)
            [states] = self.model(prompts, images)
        pairs = zip(states.split(prompts.lengths), read, strict=True)
        return [TextStates(own[start:].clone(), tokens.warnings[0]) for own, tokens in pairs]

    def pack(
        self, rows: Sequence[Int[Tensor, "_"]], texts: Sequence[PromptText]
    ) -> tuple[PackedPrompts, Float[Tensor, "image_tokens d"] | None]:
        """Return the ids of texts in one row, and the tokens of the images among them."""
        return PackedPrompts.of(rows, self.device), None
