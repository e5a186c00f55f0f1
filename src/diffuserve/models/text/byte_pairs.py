"""Tokenizers that a folder describes by `vocab.json` and `merges.txt` alone: CLIP's and Qwen's."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from diffuserve.domain.errors import InvalidModel

# CLIP's own splitting of text (Radford et al. 2021, `simple_tokenizer.py` of openai/CLIP).
_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CLIP_START, _CLIP_END = "<|startoftext|>", "<|endoftext|>"
# Qwen's own (`tokenization_qwen.py` of Qwen/Qwen-7B): digits stand alone, words have the space before them.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def clip_tokenizer(folder: Path) -> Tokenizer:
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


def qwen_tokenizer(folder: Path, added: Mapping[int, str]) -> Tokenizer:
    """Build Qwen's tokenizer; `added` tokens by their ids are whole, wherever they stand.

    Reference implementation: transformers' `Qwen2Tokenizer`. Raise `InvalidModel` for ids that leave gaps.
    """
    byte_pairs = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer = Tokenizer(byte_pairs)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    for token_id, token in sorted(added.items()):
        tokenizer.add_special_tokens([AddedToken(token, normalized=False)])
        if tokenizer.token_to_id(token) != token_id:
            raise InvalidModel(f"{folder}: added token {token!r} cannot have the id {token_id}")
    return tokenizer
