"""The texts of requests that two passes guide: the prompt, and the negative prompt."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.packed_images.conditioning import ImageConditioning
from diffuserve.models.text.tokenizer import PromptText


@dataclass(frozen=True)
class EncodedText:
    """The tokens of a text as the transformer reads them, and what to tell the client."""

    tokens: Float[Tensor, "tokens dim"]
    warnings: tuple[str, ...]


class GuidedTexts(ABC):
    """Encodes the texts of requests, equal ones once."""

    spec: ModelSpec

    @abstractmethod
    def encode_texts(self, texts: Sequence[PromptText]) -> Sequence[EncodedText]:
        """Encode texts together."""

    def key(self, params: GenerationParams) -> tuple[PromptText, ...]:
        """Return the texts of a request: its prompt and, if it is guided, its negative prompt."""
        assert params.max_sequence_length is not None
        prompt = PromptText(params.prompt, params.max_sequence_length, "the prompt")
        if self.spec.num_passes(params) == 1:
            return (prompt,)
        negative = params.negative_prompt or ""
        return (prompt, PromptText(negative, params.max_sequence_length, "the negative prompt"))

    def encode(self, params: Sequence[GenerationParams], one_by_one: bool) -> list[ImageConditioning]:
        """Encode the texts of requests, together unless `one_by_one`."""
        keys = [self.key(wanted) for wanted in params]
        texts = list(dict.fromkeys(text for key in keys for text in key))
        groups = [[text] for text in texts] if one_by_one else [texts]
        encoded = [each for group in groups for each in self.encode_texts(group)]
        found = dict(zip(texts, encoded, strict=True))
        return [_conditioning([found[text] for text in key]) for key in keys]


def _conditioning(texts: Sequence[EncodedText]) -> ImageConditioning:
    warnings = tuple(warning for text in texts for warning in text.warnings)
    return ImageConditioning(warnings, tuple(text.tokens for text in texts))
