"""The texts of requests that two passes guide: the prompt, and the negative prompt."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.packed_images.conditioning import ImageConditioning
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.text.tokenizer import PromptText


@dataclass(frozen=True)
class TextStates:
    """The tokens of a text as the transformer reads them, and what to tell the client."""

    tokens: Float[Tensor, "tokens dim"]
    warnings: tuple[str, ...]


class GuidedTexts(ABC):
    """Encodes the texts of requests, equal ones once.

    `no_negative` is read in place of a negative prompt where a request has none.
    """

    spec: ModelSpec
    no_negative = ""

    @abstractmethod
    def encode_texts(self, texts: Sequence[PromptText], adapters: Sequence[Uses]) -> Sequence[TextStates]:
        """Encode texts together, each with its adapters."""

    def key(self, params: GenerationParams) -> tuple[PromptText, ...]:
        """Return the texts of a request: its prompt and, if it is guided, its negative prompt."""
        prompt = self.text(params, params.prompt, "the prompt")
        if self.spec.num_passes(params) == 1:
            return (prompt,)
        negative = self.no_negative if params.negative_prompt is None else params.negative_prompt
        return (prompt, self.text(params, negative, "the negative prompt"))

    def text(self, params: GenerationParams, words: str, subject: str) -> PromptText:
        """Return all that is read of a request for one of its texts."""
        assert params.max_sequence_length is not None
        return PromptText(words, params.max_sequence_length, subject)

    def encode(
        self, params: Sequence[GenerationParams], adapters: Sequence[Uses], one_by_one: bool
    ) -> list[ImageConditioning]:
        """Encode the texts of requests, together unless `one_by_one`."""
        pairs = zip(params, adapters, strict=True)
        keys = [[(text, uses) for text in self.key(wanted)] for wanted, uses in pairs]
        texts = list(dict.fromkeys(text for key in keys for text in key))
        groups = [[text] for text in texts] if one_by_one else [texts]
        encoded = [each for group in groups for each in self.encode_texts(*_apart(group))]
        found = dict(zip(texts, encoded, strict=True))
        return [_conditioning([found[text] for text in key]) for key in keys]


def _apart(texts: Sequence[tuple[PromptText, Uses]]) -> tuple[list[PromptText], list[Uses]]:
    return [text for text, _ in texts], [uses for _, uses in texts]


def _conditioning(texts: Sequence[TextStates]) -> ImageConditioning:
    warnings = tuple(warning for text in texts for warning in text.warnings)
    return ImageConditioning(warnings, tuple(text.tokens for text in texts))
