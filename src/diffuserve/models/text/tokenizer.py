"""Tokenizers of text encoders, read from a model folder by the `tokenizers` library.

Nothing in the folder is run: transformers' `AutoTokenizer` would import a class that a folder names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Bool, Int
from pydantic import Field, with_config
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, parse_config
from diffuserve.models.folders.folder import ModelFolder

# CLIP's own splitting of text (Radford et al. 2021, `simple_tokenizer.py` of openai/CLIP).
_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CLIP_START, _CLIP_END = "<|startoftext|>", "<|endoftext|>"


@with_config(SCHEMA)
@dataclass(frozen=True)
class _AddedToken:
    content: str


@with_config(SCHEMA)
@dataclass(frozen=True)
class _TokenizerConfig:
    """The values of `tokenizer_config.json`; older ones wrap a token in its options.

    A tokenizer without a limit states a number that is too large for the integers of JSON's readers.
    """

    pad_token: str | _AddedToken
    model_max_length: Annotated[float, Field(ge=1)]


@dataclass(frozen=True)
class PromptText:
    """A text to encode: cut to `length` tokens, and called `subject` in the warning of that."""

    words: str
    length: int
    subject: str


@dataclass(frozen=True)
class PromptTokens:
    """Ids of each prompt, padded to one length, and warnings for truncated prompts.

    `mask` is false where there is padding.
    """

    ids: Int[Tensor, "prompts tokens"]
    warnings: list[tuple[str, ...]]
    mask: Bool[Tensor, "prompts tokens"]


class PromptTokenizer:
    """Turns prompts into ids of one length."""

    def __init__(self, tokenizer: Tokenizer, pad_token: str, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._pad_token = pad_token
        self.max_length = max_length

    @classmethod
    def read(cls, folder: ModelFolder, component: str, is_wanted: bool = True) -> "PromptTokenizer":
        """Read `tokenizer.json`, or CLIP's `vocab.json` and `merges.txt`, of a folder's component.

        One that is not wanted is empty, and nothing but its config is read. Raise `InvalidModel` if neither
        is there and whole, or the padding token is unknown to it.
        """
        file = f"{component}/tokenizer_config.json"
        config = parse_config(_TokenizerConfig, folder.json(file), f"{folder.path}/{file}")
        tokenizer = _read_tokenizer(folder.component(component)) if is_wanted else Tokenizer(models.BPE())
        pad_token = config.pad_token if isinstance(config.pad_token, str) else config.pad_token.content
        if is_wanted and tokenizer.token_to_id(pad_token) is None:
            raise InvalidModel(f"{folder.path}/{file}: pad_token={pad_token!r} is not a token")
        return cls(tokenizer, pad_token, int(config.model_max_length))

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
            pad_id=pad_id, pad_token=self._pad_token, length=padded_length or length
        )
        self._tokenizer.enable_truncation(length)
        encodings = self._tokenizer.encode_batch(list(prompts))
        warnings = [
            self._warn_of_truncation(subject, prompt, length) if encoding.overflowing else ()
            for prompt, encoding in zip(prompts, encodings, strict=True)
        ]
        ids = torch.tensor([encoding.ids for encoding in encodings])
        mask = torch.tensor([encoding.attention_mask for encoding in encodings], dtype=torch.bool)
        return PromptTokens(ids, warnings, mask)

    def _warn_of_truncation(self, subject: str, prompt: str, length: int) -> tuple[str, ...]:
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        num_tokens = len(self._tokenizer.encode(prompt))
        return (f"{subject} has {num_tokens} tokens and the model reads {length}; the rest was cut off",)


def _read_tokenizer(folder: Path) -> Tokenizer:
    try:
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        if (folder / "vocab.json").is_file():
            return _clip_tokenizer(folder)
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


def _clip_tokenizer(folder: Path) -> Tokenizer:
    """Build CLIP's tokenizer. Reference implementation: transformers' `CLIPTokenizer`."""
    byte_pairs = models.BPE.from_file(
        str(folder / "vocab.json"),
        str(folder / "merges.txt"),
        continuing_subword_prefix="",
        end_of_word_suffix="</w>",
        unk_token=_CLIP_END,
    )
    tokenizer = Tokenizer(byte_pairs)
    start, end = tokenizer.token_to_id(_CLIP_START), tokenizer.token_to_id(_CLIP_END)
    if start is None or end is None:
        raise InvalidModel(f"{folder}: vocab.json lacks {_CLIP_START} or {_CLIP_END}")
    tokenizer.add_special_tokens([_CLIP_START, _CLIP_END])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        (_CLIP_END, end), (_CLIP_START, start), trim_offsets=False, add_prefix_space=False
    )
    return tokenizer
