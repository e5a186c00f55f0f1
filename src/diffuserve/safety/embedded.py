"""A small classifier of our own: linear over hashed parts of words, one score for each category.

It is a second opinion on the rules, trained on sentences that a program made (training/prompt_filter).
It knows English, and topics rather than meaning.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.safety import FilterInfo
from diffuserve.safety.folding import Tokens, fold

DEFAULT_WEIGHTS = Path(__file__).with_name("prompt_classifier.safetensors")
WINDOW_TOKENS = 12
"""A text is judged by its worst stretch of this many words, so that what is long hides nothing."""
_STRIDE = WINDOW_TOKENS // 2
_PART_LENGTHS = (3, 4, 5)
_FNV_PRIME = np.uint32(16_777_619)
_FNV_OFFSET = np.uint32(2_166_136_261)
_MAX_TOKEN_CHARACTERS = 32
_NUM_NAMED = 3

Buckets = NDArray[np.int64]
Weights = NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """Buckets of a text's features, and for each the number of the token that it belongs to."""

    buckets: Buckets
    tokens: Buckets


class EmbeddedClassifier:
    """Scores within the process, in well under a millisecond for a sentence."""

    def __init__(
        self, weights: NDArray[np.float32], bias: NDArray[np.float32], about: Mapping[str, str]
    ) -> None:
        """`weights` has a row for each bucket and a column for each of the categories that `about` names."""
        self._weights = weights
        self._bias = bias
        self._categories = about["categories"].split()
        self.info = FilterInfo("embedded", about["version"])

    @classmethod
    def load(cls, path: Path = DEFAULT_WEIGHTS) -> "EmbeddedClassifier":
        """Raises `InvalidModel`."""
        try:
            with safe_open(path, framework="numpy") as file:
                weights = file.get_tensor("weights").astype(np.float32) * file.get_tensor("scale")
                return cls(weights, file.get_tensor("bias"), file.metadata())
        except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
            raise InvalidModel(
                f"{path}: no prompt classifier ({error}); train one as its README says"
            ) from error

    async def scores(self, prompt: str) -> dict[str, float]:
        return self.score(prompt)

    def score(self, prompt: str) -> dict[str, float]:
        """Of the worst stretch, by category, in 0…1."""
        sums, counts = self._sums(fold(prompt).spelled)
        if not len(counts):
            return dict.fromkeys(self._categories, 0.0)
        logits = _over_windows(sums, counts) + self._bias
        worst = _sigmoid(logits.max(axis=0))
        return dict(zip(self._categories, worst.tolist(), strict=True))

    def explain(self, prompt: str, categories: Sequence[str]) -> dict[str, str]:
        """For each of the categories the words that speak most for it, most telling first."""
        tokens = fold(prompt).spelled
        sums, _ = self._sums(tokens)
        return {name: _most_telling(tokens, sums[:, self._categories.index(name)]) for name in categories}

    async def close(self) -> None:
        """Nothing to close."""

    def _sums(self, tokens: Tokens) -> tuple[NDArray[np.float64], Buckets]:
        """For each token the sum of its features' weights by category, and how many features it has."""
        found = features(tokens, len(self._weights))
        counts = np.bincount(found.tokens, minlength=len(tokens))
        starts = np.concatenate(([0], np.cumsum(counts)))
        rows = self._weights[found.buckets]
        totals = np.concatenate((np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0, dtype=np.float64)))
        return totals[starts[1:]] - totals[starts[:-1]], counts


def features(tokens: Sequence[str], num_buckets: int) -> Features:
    """Words, pairs of neighbours, and parts of words of 3 to 5 letters. The same in every process."""
    words = [f"<{token[:_MAX_TOKEN_CHARACTERS]}>" for token in tokens]
    pairs = [f"{first} {second}" for first, second in pairwise(words)]
    buckets = [np.array([zlib.crc32(text.encode()) for text in words + pairs], dtype=np.int64)]
    numbers = [np.arange(len(words)), np.arange(1, len(words))[: len(pairs)]]
    codes = np.frombuffer("".join(words).encode("utf-32-le", "replace"), dtype=np.uint32)
    owners = np.repeat(np.arange(len(words)), [len(word) for word in words])
    for length in _PART_LENGTHS:
        hashed, owner = _parts(codes, owners, length)
        buckets.append(hashed)
        numbers.append(owner)
    order = np.argsort(all_numbers := np.concatenate(numbers), kind="stable")
    return Features(np.concatenate(buckets)[order] % num_buckets, all_numbers[order])


def _parts(codes: NDArray[np.uint32], owners: Buckets, length: int) -> tuple[Buckets, Buckets]:
    """FNV-1a of each row of letters within one word; a few operations for all of them at once."""
    count = max(0, len(codes) - length + 1)
    hashed = np.full(count, _FNV_OFFSET, dtype=np.uint32)
    for i in range(length):
        hashed = (hashed ^ codes[i : i + count]) * _FNV_PRIME
    within = owners[:count] == owners[length - 1 : length - 1 + count]
    mixed = hashed ^ (hashed >> np.uint32(15))  # FNV's low bits alone depend on the letters' low bits alone
    return mixed[within].astype(np.int64), owners[:count][within]


def _most_telling(tokens: Tokens, said: NDArray[np.float64]) -> str:
    most = [i for i in np.argsort(-said, kind="stable")[: 2 * _NUM_NAMED] if said[i] > 0]
    return ", ".join(list(dict.fromkeys(repr(tokens[i]) for i in most))[:_NUM_NAMED])


def _over_windows(sums: NDArray[np.float64], counts: Buckets) -> NDArray[np.float64]:
    """A row for each stretch: the sum over its features, divided by the root of their number."""
    starts = np.arange(0, max(1, len(counts) - _STRIDE), _STRIDE)
    ends = np.minimum(starts + WINDOW_TOKENS, len(counts))
    totals = np.concatenate((np.zeros((1, sums.shape[1])), np.cumsum(sums, axis=0)))
    numbers = np.concatenate(([0], np.cumsum(counts)))
    scale = np.sqrt(numbers[ends] - numbers[starts])[:, None]
    return np.asarray((totals[ends] - totals[starts]) / scale)


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -50, 50))))
