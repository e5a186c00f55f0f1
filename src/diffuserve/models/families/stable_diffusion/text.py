"""Stable Diffusion's text conditioning: the states of one CLIP, or of SDXL's two side by side.

Reference: `encode_prompt` of diffusers' `StableDiffusionPipeline` and `StableDiffusionXLPipeline`.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.prompt_syntax import WEIGHTS, WeightedWords, weighted_words
from diffuserve.models.adapters.placing import AdaptedModule
from diffuserve.models.families.stable_diffusion.config import UNetConfig, text_encoders
from diffuserve.models.families.stable_diffusion.image_prompts.image_prompts import PromptImages
from diffuserve.models.families.stable_diffusion.images import EncodedImage
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import RowAdapters, Uses
from diffuserve.models.pipelines.base import Conditioning
from diffuserve.models.pipelines.batches import run_in_groups
from diffuserve.models.text.clip import load_clip
from diffuserve.models.text.clip_config import ClipConfig
from diffuserve.models.text.tokenizer import PromptText, PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import num_parameters

Pieces: TypeAlias = Mapping[PromptText, Sequence[WeightedWords]]

_UNUSED = "negative_prompt changes nothing without guidance; give a guidance_scale above 1"


@dataclass(frozen=True)
class EncodedText:
    """The states of a text's tokens, and its pooled vector where the model reads one."""

    states: Float[Tensor, "tokens dim"]
    pooled: Float[Tensor, "pooled_dim"] | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StableDiffusionConditioning(Conditioning):
    """The encoded prompt, with guidance by two passes what is steered away from, and the encoded images.

    `controls` are the control images, as ControlNets embed them.

    Every tensor is a field, its own or a dataclass's: they are counted and sent to other ranks by field.
    """

    states: Float[Tensor, "tokens dim"]
    pooled: Float[Tensor, "pooled_dim"] | None = None
    negative_states: Float[Tensor, "tokens dim"] | None = None
    negative_pooled: Float[Tensor, "pooled_dim"] | None = None
    image: EncodedImage | None = None
    prompt_images: PromptImages | None = None
    controls: tuple[Float[Tensor, "1 width rows columns"], ...] = ()


class TextConditioner:
    """The CLIPs and tokenizers of a checkpoint; on the device of what is not loaded, without their content.

    Texts are always padded to the same number of tokens; `max_sequence_length` only cuts them.
    """

    def __init__(
        self,
        folder: ModelFolder,
        spec: ModelSpec,
        plan: LoadPlan,
    ) -> None:
        config = UNetConfig.read(folder)
        names = text_encoders(folder, config)
        self._spec, self._device, self._is_xl = spec, plan.device, config.is_xl
        self._zeros_for_none = config.is_xl and bool(folder.index.get("force_zeros_for_empty_prompt", True))
        self.tokenizers = [
            PromptTokenizer.read(folder, name.replace("text_encoder", "tokenizer"), plan.is_wanted)
            for name in names
        ]
        self.encoders = [
            load_clip(
                ClipConfig.read(folder, name),
                folder.weights(name),
                plan,
                has_projection=config.is_xl and name == names[-1],
                component=name,
            )
            for name in names
        ]
        self.adapted_modules = [
            AdaptedModule(name, encoder, encoder.placements(), encodes=True)
            for name, encoder in zip(names, self.encoders, strict=True)
        ]
        # A folder may say that its tokenizer has no limit; the model has one.
        limits = [tokenizer.max_length for tokenizer in self.tokenizers]
        self._length = min(*limits, spec.longest_sequence_length)

    @property
    def num_parameters(self) -> int:
        return sum(num_parameters(encoder) for encoder in self.encoders)

    def key(self, params: GenerationParams) -> Hashable:
        """Return what the conditioning depends on."""
        is_unused = bool(params.negative_prompt) and not self._is_guided(params)
        return (self._prompt(params), self._negative(params), self._is_guided(params), is_unused)

    def encode(
        self, params: Sequence[GenerationParams], adapters: Sequence[Uses], one_by_one: bool
    ) -> list[StableDiffusionConditioning]:
        """Encode all texts of some requests together, equal ones with equal adapters once; or each alone."""
        pairs = list(zip(params, adapters, strict=True))
        wanted = [(uses, text) for each, uses in pairs for text in (self._prompt(each), self._negative(each))]
        texts = [(uses, text) for uses, text in dict.fromkeys(wanted) if text is not None]
        groups = [[text] for text in texts] if one_by_one else [texts]
        encoded = [found for group in groups for found in self._encode(group)]
        found = dict(zip(texts, encoded, strict=True))
        return [
            self._conditioning(each, {text: found[own, text] for own, text in texts if own == uses})
            for each, uses in pairs
        ]

    def _conditioning(
        self, params: GenerationParams, found: Mapping[PromptText, EncodedText]
    ) -> StableDiffusionConditioning:
        prompt, negative = found[self._prompt(params)], self._negative(params)
        if not self._is_guided(params):
            unused = (_UNUSED,) if params.negative_prompt else ()
            return StableDiffusionConditioning(prompt.warnings + unused, prompt.states, prompt.pooled)
        away = _zeros_like(prompt) if negative is None else found[negative]
        return StableDiffusionConditioning(
            prompt.warnings + away.warnings, prompt.states, prompt.pooled, away.states, away.pooled
        )

    def _is_guided(self, params: GenerationParams) -> bool:
        return self._spec.num_passes(params) > 1

    def _prompt(self, params: GenerationParams) -> PromptText:
        return self._text(params.prompt, "the prompt", params)

    def _negative(self, params: GenerationParams) -> PromptText | None:
        """Return the text to steer away from; `None` without guidance, and where it is zeros."""
        is_zeros = params.negative_prompt is None and self._zeros_for_none
        if is_zeros or not self._is_guided(params):
            return None
        return self._text(params.negative_prompt or "", "the negative prompt", params)

    def _text(self, words: str, subject: str, params: GenerationParams) -> PromptText:
        is_weighted = params.prompt_syntax == WEIGHTS
        return PromptText(words, self._max_tokens(params), subject, is_weighted=is_weighted)

    def _max_tokens(self, params: GenerationParams) -> int:
        return min(params.max_sequence_length or self._length, self._length)

    def _encode(self, adapted: Sequence[tuple[Uses, PromptText]]) -> list[EncodedText]:
        texts = [text for _, text in adapted]
        adapters = RowAdapters.of([1] * len(texts), [uses for uses, _ in adapted])
        pieces = {text: _pieces(text) for text in texts}
        tokens = [self._tokenize(tokenizer, texts, pieces) for tokenizer in self.tokenizers]
        outputs = [
            encoder(torch.stack([ids for ids, _ in found]).to(self._device), adapters)
            for encoder, found in zip(self.encoders, tokens, strict=True)
        ]
        warnings = [warned for _, warned in tokens[0]]
        if not self._is_xl:
            pairs = zip(
                self._weighted(self.tokenizers[0], texts, pieces, outputs[0].sequence), warnings, strict=True
            )
            return [EncodedText(states, None, warned) for states, warned in pairs]
        both = [
            self._weighted(tokenizer, texts, pieces, output.penultimate)
            for tokenizer, output in zip(self.tokenizers, outputs, strict=True)
        ]
        states = torch.cat(both, dim=-1)
        return list(map(EncodedText, states, outputs[-1].pooled, warnings))

    def _weighted(
        self,
        tokenizer: PromptTokenizer,
        texts: Sequence[PromptText],
        pieces: Pieces,
        states: Float[Tensor, "texts tokens dim"],
    ) -> Float[Tensor, "texts tokens dim"]:
        """Return states times their tokens' weights, with the mean that a text had before.

        Reference: "Original" of the emphasis in AUTOMATIC1111's `sd_emphasis.py`.
        """
        return torch.stack(
            [
                _weighed(own, tokenizer.weights(pieces[text], self._length)) if text.is_weighted else own
                for text, own in zip(texts, states, strict=True)
            ]
        )

    def _tokenize(
        self, tokenizer: PromptTokenizer, texts: Sequence[PromptText], pieces: Pieces
    ) -> list[tuple[Int[Tensor, "tokens"], tuple[str, ...]]]:
        """Return the ids and warnings of each text."""

        def run(group: Sequence[PromptText]) -> list[tuple[Tensor, tuple[str, ...]]]:
            words = ["".join(piece.words for piece in pieces[text]) for text in group]
            length, subject = group[0].length, group[0].subject
            tokens = tokenizer.tokenize(words, length, self._length, subject)
            return list(zip(tokens.ids, tokens.warnings, strict=True))

        return run_in_groups(texts, lambda text: (text.length, text.subject), run)


def _pieces(text: PromptText) -> Sequence[WeightedWords]:
    return weighted_words(text.words) if text.is_weighted else [WeightedWords(text.words, 1.0)]


def _weighed(states: Float[Tensor, "tokens dim"], weights: Float[Tensor, "tokens"]) -> Tensor:
    moved = states.float() * weights.to(states.device)[:, None]
    return (moved * (states.float().mean() / moved.mean())).to(states.dtype)


def _zeros_like(text: EncodedText) -> EncodedText:
    pooled = None if text.pooled is None else torch.zeros_like(text.pooled)
    return EncodedText(torch.zeros_like(text.states), pooled)
