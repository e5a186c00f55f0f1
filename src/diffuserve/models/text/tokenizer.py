"""Tokenizers of text encoders, read from a model folder by the `tokenizers` library.

Nothing in the folder is run: transformers' `AutoTokenizer` would import a class that a folder names.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, with_config
from tokenizers import Tokenizer, models
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, parse_config
from diffuserve.domain.requests.prompt_syntax import WeightedWords
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.text.byte_pairs import clip_tokenizer, qwen_tokenizer

_NO_LIMIT = 1 << 31
_LLAMA_CLASSES = (
    "LlamaTokenizer",
    "LlamaTokenizerFast",
)  # they pad on the left unless a config says otherwise
_QWEN_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")


@with_config(SCHEMA)
@dataclass(frozen=True)
class _AddedToken:
    content: str


@with_config(SCHEMA)
@dataclass(frozen=True)
class _TokenizerConfig:
    """The values of `tokenizer_config.json`; older ones wrap a token in its options."""

    pad_token: str | _AddedToken
    model_max_length: Annotated[float, Field(ge=1)]  # transformers' number for none is beyond 64 bits
    padding_side: Literal["left", "right"] | None = None
    tokenizer_class: str | None = None
    added_tokens_decoder: dict[Annotated[int, Field(strict=False)], _AddedToken] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptText:
    """A text to encode: cut to `length` tokens, and called `subject` in the warning of that.

    If it is weighted, brackets in it weigh words; only Stable Diffusion's encoders read that.
    """

    words: str
    length: int
    subject: str
    is_weighted: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class PromptTokens:
    """Ids of each prompt, padded to one length, and warnings for truncated prompts.

    `mask` is false where there is padding, and `rows` are the ids without it.
    """

    ids: Int[Tensor, "prompts tokens"]
    warnings: list[tuple[str, ...]]
    mask: Bool[Tensor, "prompts tokens"]

    @property
    def rows(self) -> list[Int[Tensor, "_"]]:
        return [row[own] for row, own in zip(self.ids, self.mask, strict=True)]


class PromptTokenizer:
    """Turns prompts into ids of one length.

    With a `template`, prompts are put at its `{}`, and nothing else is added: it is the turn of a
    conversation that a language model continues. Templates are ours: a folder's own are programs.
    """

    def __init__(self, tokenizer: Tokenizer, config: _TokenizerConfig, template: str | None = None) -> None:
        self._tokenizer, self._template = tokenizer, template
        own = tokenizer.padding or {}
        usual = "left" if config.tokenizer_class in _LLAMA_CLASSES else "right"
        self._padding_side = config.padding_side or own.get("direction", usual)
        self._pad_token = _content(config.pad_token)
        self.max_length = int(min(config.model_max_length, _NO_LIMIT))

    @classmethod
    def read(
        cls, folder: ModelFolder, component: str, is_wanted: bool = True, template: str | None = None
    ) -> "PromptTokenizer":
        """Read `tokenizer.json`, or `vocab.json` and `merges.txt` of CLIP's or Qwen's, of a component.

        One that is not wanted is empty, and nothing but its config is read. Raise `InvalidModel` if neither
        is there and whole, or the padding token is unknown to it.
        """
        file = f"{component}/tokenizer_config.json"
        config = parse_config(_TokenizerConfig, folder.json(file), f"{folder.path}/{file}")
        if not is_wanted:
            return cls(Tokenizer(models.BPE()), config, template)
        tokenizer = _read_tokenizer(folder.component(component), config)
        pad_token = _content(config.pad_token)
        if tokenizer.token_to_id(pad_token) is None:
            raise InvalidModel(f"{folder.path}/{file}: pad_token={pad_token!r} is not a token")
        return cls(tokenizer, config, template)

    def id_of(self, token: str) -> int:
        """Return the id of a special token. Raise `InvalidModel` if the vocabulary lacks it."""
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise InvalidModel(f"the tokenizer has no {token!r}")
        return found

    def tokenize(
        self,
        prompts: Sequence[str],
        length: int,
        padded_length: int | None = None,
        subject: str = "the prompt",
    ) -> PromptTokens:
        """Return the ids of prompts, cut to `length` tokens and padded to it, or to `padded_length`.

        Warnings call a prompt `subject`.
        """
        pad_id = self._tokenizer.token_to_id(self._pad_token)
        self._tokenizer.enable_padding(
            direction=self._padding_side,
            pad_id=pad_id,
            pad_token=self._pad_token,
            length=padded_length or length,
        )
        self._tokenizer.enable_truncation(length)
        texts = [self._around(prompt) for prompt in prompts]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=self._template is None)
        warnings = [
            self._warn_of_truncation(subject, prompt, length) if encoding.overflowing else ()
            for prompt, encoding in zip(prompts, encodings, strict=True)
        ]
        ids = torch.tensor([encoding.ids for encoding in encodings])
        mask = torch.tensor([encoding.attention_mask for encoding in encodings], dtype=torch.bool)
        return PromptTokens(ids, warnings, mask)

    def weights(self, pieces: Sequence[WeightedWords], padded_length: int) -> Float[Tensor, "tokens"]:
        """Return the weight of each token of a text in weighted pieces: that of its first character's."""
        self._tokenizer.enable_padding(
            direction=self._padding_side, pad_token=self._pad_token,
            pad_id=self._tokenizer.token_to_id(self._pad_token), length=padded_length,
        )  # fmt: skip
        self._tokenizer.enable_truncation(padded_length)
        encoding = self._tokenizer.encode("".join(piece.words for piece in pieces))
        ends = list(accumulate(len(piece.words) for piece in pieces))
        weights = [
            1.0 if special else pieces[bisect_right(ends, start)].weight
            for (start, _), special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        ]
        return torch.tensor(weights)

    def _warn_of_truncation(self, subject: str, prompt: str, length: int) -> tuple[str, ...]:
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        text, is_plain = self._around(prompt), self._template is None
        num_tokens = len(self._tokenizer.encode(text, add_special_tokens=is_plain))
        what = subject if is_plain else f"{subject} with its template"
        return (f"{what} has {num_tokens} tokens and the model reads {length}; the rest was cut off",)

    def _around(self, prompt: str) -> str:
        return prompt if self._template is None else self._template.replace("{}", prompt)


def _content(token: str | _AddedToken) -> str:
    return token if isinstance(token, str) else token.content


def _read_tokenizer(folder: Path, config: _TokenizerConfig) -> Tokenizer:
    try:
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        if (folder / "vocab.json").is_file() and config.tokenizer_class in _QWEN_CLASSES:
            added = {number: token.content for number, token in config.added_tokens_decoder.items()}
            return qwen_tokenizer(folder, added)
        if (folder / "vocab.json").is_file():
            return clip_tokenizer(folder)
    except Exception as error:
        raise InvalidModel(f"{folder}: the tokenizer cannot be read: {error}") from error
    raise InvalidModel(f"{folder}: {_explain_missing(folder)}")


def _explain_missing(folder: Path) -> str:
    if (folder / "spiece.model").is_file():
        return (
            "of the tokenizer only spiece.model is there; write tokenizer.json beside it, as "
            "save_pretrained of transformers' AutoTokenizer does"
        )
    return "neither tokenizer.json nor vocab.json with merges.txt is there"
