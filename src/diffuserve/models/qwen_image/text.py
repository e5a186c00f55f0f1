"""Qwen-Image's texts: prompts in the template of a chat, encoded by Qwen2.5-VL.

Reference implementation: `encode_prompt` of diffusers' `QwenImagePipeline`. Of the states those of the
template's beginning are cut off.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.offload.components import Component
from diffuserve.models.packed_images.conditioning import ImageConditioning
from diffuserve.models.text.qwen import PackedPrompts, load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.text.tokenizer import PromptText, PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan


@dataclass(frozen=True)
class Template:
    """What stands around a prompt; the first `num_cut` tokens are not passed on."""

    before: str
    num_cut: int

    def around(self, words: str) -> str:
        return f"<|im_start|>system\n{self.before}<|im_end|>\n<|im_start|>user\n{words}<|im_end|>\n{_ANSWER}"


DRAW = Template(
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships "
    "of the objects and background:",
    34,
)
_ANSWER = "<|im_start|>assistant\n"
_BLANK = " "  # what guides where no negative prompt is given, as the authors recommend


@dataclass(frozen=True)
class EncodedText:
    """The states of a text's tokens."""

    states: Float[Tensor, "tokens dim"]
    warnings: tuple[str, ...]


class QwenImageTextEncoder:
    """Qwen2.5-VL with its tokenizer; on the meta device, without either's content, if they are not loaded.

    Its sharded weights are over all ranks, which encode together.
    """

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        self._ranks = plan.ranks if plan.ranks is not None and plan.ranks.plan.is_sharded else None
        self.model = load_qwen(
            QwenConfig.read(folder, "text_encoder"),
            folder.weights("text_encoder"),
            plan,
            choose_kernel(plan.device, plan.chosen_dtype, plan.deterministic),
            ranks=None if self._ranks is None else self._ranks.world,
        )
        self.tokenizer = PromptTokenizer.read(folder, "tokenizer", plan.is_wanted)
        self.spec, self.device = spec, plan.device

    @property
    def largest(self) -> nn.Module:
        return self.model

    @property
    def components(self) -> Sequence[Component]:
        return (self.model.component,)

    def key(self, params: GenerationParams) -> tuple[PromptText, ...]:
        """Return the texts of a request: its prompt and, if it is guided, its negative prompt."""
        assert params.max_sequence_length is not None
        prompt = PromptText(params.prompt, params.max_sequence_length, "the prompt")
        if self.spec.num_passes(params) == 1:
            return (prompt,)
        negative = _BLANK if params.negative_prompt is None else params.negative_prompt
        return (prompt, PromptText(negative, params.max_sequence_length, "the negative prompt"))

    def encode(self, params: Sequence[GenerationParams], one_by_one: bool) -> list[ImageConditioning]:
        """Encode the texts of requests, equal ones once; in one row unless `one_by_one`."""
        keys = [self.key(wanted) for wanted in params]
        texts = list(dict.fromkeys(text for key in keys for text in key))
        encoded = [self._encode([text])[0] for text in texts] if one_by_one else self._encode(texts)
        found = dict(zip(texts, encoded, strict=True))
        return [_conditioning([found[text] for text in key]) for key in keys]

    def _encode(self, texts: Sequence[PromptText]) -> list[EncodedText]:
        ids, warnings = zip(*(self._tokenize(text) for text in texts), strict=True)
        packed = PackedPrompts.of(ids, self.device)
        with nullcontext() if self._ranks is None else self._ranks.together():
            [states] = self.model(packed)
        parts = zip(states.split(packed.lengths), warnings, strict=True)
        return [EncodedText(each[DRAW.num_cut :].clone(), warning) for each, warning in parts]

    def _tokenize(self, text: PromptText) -> tuple[Tensor, tuple[str, ...]]:
        tokens = self.tokenizer.tokenize(
            [DRAW.around(text.words)], DRAW.num_cut + text.length, subject=text.subject
        )
        return tokens.ids[0][tokens.mask[0]], tokens.warnings[0]


def _conditioning(texts: Sequence[EncodedText]) -> ImageConditioning:
    warnings = tuple(warning for text in texts for warning in text.warnings)
    return ImageConditioning(warnings, tuple(text.states for text in texts))
