"""Wan's prompts: cleaned as in the reference, and encoded by UMT5.

Models also attend to the padding, which is set to zero after the encoder and so is a constant key.
Conditioning holds the tokens without padding.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import ftfy
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.wan.images import FirstFrame
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.pipelines.base import Conditioning
from diffuserve.models.pipelines.batches import run_in_groups
from diffuserve.models.text.encoder_ranks import EncoderRanks
from diffuserve.models.text.t5 import load_t5
from diffuserve.models.text.t5_config import Umt5Config
from diffuserve.models.text.tokenizer import PromptText, PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan

_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class EncodedPrompt:
    """UMT5's states of a text's tokens, without padding."""

    states: Float[Tensor, "tokens dim"]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class WanConditioning(Conditioning):
    """The states of the prompt, of the negative prompt if the request is guided, and the first frame."""

    prompt: Float[Tensor, "tokens dim"]
    negative: Float[Tensor, "negative_tokens dim"] | None = None
    first_frame: FirstFrame | None = None

    @property
    def texts(self) -> tuple[Tensor, ...]:
        """Return the states that each pass of a step reads: the prompt's, then the negative prompt's."""
        return (self.prompt,) if self.negative is None else (self.prompt, self.negative)


class WanTextEncoder:
    """UMT5 with its tokenizer; on the meta device, without either's content, if they are not loaded.

    Ranks that share its weights encode together.
    """

    def __init__(
        self,
        folder: ModelFolder,
        spec: ModelSpec,
        plan: LoadPlan,
    ) -> None:
        config = Umt5Config.read(folder, "text_encoder")
        self._ranks = EncoderRanks.of(plan, config.shared)
        self.model = load_t5(config, folder.weights("text_encoder"), plan, self._ranks.sharing)
        self.tokenizer = PromptTokenizer.read(folder, "tokenizer", is_wanted=plan.is_wanted)
        self.spec, self.device = spec, plan.device
        self._is_lowercase = bool(folder.settings.get("lowercase_prompt", False))

    def key(self, params: GenerationParams) -> tuple[PromptText, ...]:
        """Return the texts of a request: its prompt and, if it is guided, its negative prompt."""
        assert params.max_sequence_length is not None
        prompt = self._text(params.prompt, params.max_sequence_length, "the prompt")
        if self.spec.num_passes(params) == 1:
            return (prompt,)
        negative = params.negative_prompt or ""
        return (prompt, self._text(negative, params.max_sequence_length, "the negative prompt"))

    def _text(self, words: str, length: int, subject: str) -> PromptText:
        return PromptText(words.lower() if self._is_lowercase else words, length, subject)

    def encode(self, params: Sequence[GenerationParams], one_by_one: bool) -> list[WanConditioning]:
        """Encode the texts of requests, equal ones once; together unless `one_by_one`."""
        keys = [self.key(wanted) for wanted in params]
        texts = list(dict.fromkeys(text for key in keys for text in key))
        if one_by_one:
            encoded = [self._encode([text])[0] for text in texts]
        else:
            encoded = run_in_groups(texts, lambda text: (text.length, text.subject), self._encode)
        found = dict(zip(texts, encoded, strict=True))
        return [_conditioning([found[text] for text in key]) for key in keys]

    def _encode(self, texts: Sequence[PromptText]) -> list[EncodedPrompt]:
        """Encode texts of one length and subject together, padded to the longest among them."""
        cleaned = [clean(text.words) for text in texts]
        tokens = self.tokenizer.tokenize(cleaned, texts[0].length, subject=texts[0].subject)
        counts = tokens.mask.sum(dim=1)
        longest = int(counts.max())
        ids, mask = (part[:, :longest].to(self.device) for part in (tokens.ids, tokens.mask))
        with self._ranks.together():
            states = self.model(ids, mask)
        parts = zip(states, counts.tolist(), tokens.warnings, strict=True)
        return [EncodedPrompt(each[:count].clone(), warnings) for each, count, warnings in parts]


def clean(prompt: str) -> str:
    """Return a prompt in the form of the training data: repaired, unescaped twice, on one line."""
    unescaped = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return _SPACES.sub(" ", unescaped).strip()


def _conditioning(texts: Sequence[EncodedPrompt]) -> WanConditioning:
    warnings = tuple(warning for text in texts for warning in text.warnings)
    prompt, *negative = (text.states for text in texts)
    return WanConditioning(warnings, prompt, negative[0] if negative else None)
