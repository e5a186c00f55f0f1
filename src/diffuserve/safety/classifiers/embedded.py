"""The bundled prompt classifier: a linear model over hashed words and character n-grams.

It complements the rules, and is trained on generated English sentences (training/prompt_filter). It
recognizes topics rather than meaning. Feature hashing: Weinberger et al., arXiv:0902.2206.
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
from diffuserve.safety.policies.folding import Tokens, fold

DEFAULT_WEIGHTS = Path(__file__).with_name("prompt_classifier.safetensors")
WINDOW_TOKENS = 12
"""A text is scored by its worst window of this many tokens, so that its length hides nothing."""
_STRIDE = WINDOW_TOKENS // 2
_FULL_EVIDENCE = 50
"""Features of about five words. What fewer say counts less, since the sentences of training are longer."""
_NGRAM_LENGTHS = (3, 4, 5)
_FNV_PRIME = np.uint32(16_777_619)
_FNV_OFFSET = np.uint32(2_166_136_261)
_MAX_TOKEN_CHARACTERS = 32
_NUM_EXPLAINED = 3

Buckets = NDArray[np.int64]
Weights = NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """The hash buckets of a text's features, and for each the index of its token."""

    buckets: Buckets
    tokens: Buckets


class EmbeddedClassifier:
    """Scores within this process, in well under a millisecond for a sentence."""

    def __init__(
        self, weights: NDArray[np.float32], bias: NDArray[np.float32], metadata: Mapping[str, str]
    ) -> None:
        """`weights` is (buckets, categories), `bias` is (categories,).

        `metadata` holds the names of the categories, separated by spaces, and the `version`.
        """
        self._weights = weights
        self._bias = bias
        self._categories = metadata["categories"].split()
        self.info = FilterInfo("embedded", metadata["version"])

    @classmethod
    def load(cls, path: Path = DEFAULT_WEIGHTS) -> "EmbeddedClassifier":
        """Load a safetensors file. Raise `InvalidModel` if it holds no prompt classifier."""
        try:
            with safe_open(path, framework="numpy") as file:
                weights = file.get_tensor("weights").astype(np.float32) * file.get_tensor("scale")
                return cls(weights, file.get_tensor("bias"), file.metadata())
        except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
            raise InvalidModel(
                f"{path}: no prompt classifier ({error}); see training/prompt_filter/README.md to train one"
            ) from error

    async def scores(self, prompt: str) -> dict[str, float]:
        """Return a score in 0…1 for each category."""
        return self.score(prompt)

    def score(self, prompt: str) -> dict[str, float]:
        """Return for each category the score in 0…1 of the window that scores highest in it."""
        sums, counts = self._sums(fold(prompt).spelled)
        if not len(counts):
            return dict.fromkeys(self._categories, 0.0)
        logits = _over_windows(sums, counts) + self._bias
        worst = _sigmoid(logits.max(axis=0))
        return dict(zip(self._categories, worst.tolist(), strict=True))

    def explain(self, prompt: str, categories: Sequence[str]) -> dict[str, str]:
        """Return for each of the categories the tokens with the largest weights, largest first."""
        tokens = fold(prompt).spelled
        sums, _ = self._sums(tokens)
        return {name: _top_tokens(tokens, sums[:, self._categories.index(name)]) for name in categories}

    async def close(self) -> None:
        """Do nothing: no resource is held."""

    def _sums(self, tokens: Tokens) -> tuple[NDArray[np.float64], Buckets]:
        """Return for each token the sums of its features' weights by category, and the number of features.

        The sums are (tokens, categories), the counts (tokens,).
        """
        found = features(tokens, len(self._weights))
        counts = np.bincount(found.tokens, minlength=len(tokens))
        starts = np.concatenate(([0], np.cumsum(counts)))
        rows = self._weights[found.buckets]
        totals = np.concatenate((np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0, dtype=np.float64)))
        return totals[starts[1:]] - totals[starts[:-1]], counts


def features(tokens: Sequence[str], num_buckets: int) -> Features:
    """Return the features: tokens, pairs of adjacent tokens, and n-grams of 3 to 5 characters.

    The hashes are the same in every process.
    """
    words = [f"<{token[:_MAX_TOKEN_CHARACTERS]}>" for token in tokens]
    pairs = [f"{first} {second}" for first, second in pairwise(words)]
    buckets = [np.array([zlib.crc32(text.encode()) for text in words + pairs], dtype=np.int64)]
    numbers = [np.arange(len(words)), np.arange(1, len(words))[: len(pairs)]]
    codes = np.frombuffer("".join(words).encode("utf-32-le", "replace"), dtype=np.uint32)
    owners = np.repeat(np.arange(len(words)), [len(word) for word in words])
    for length in _NGRAM_LENGTHS:
        hashed, owner = _ngrams(codes, owners, length)
        buckets.append(hashed)
        numbers.append(owner)
    order = np.argsort(all_numbers := np.concatenate(numbers), kind="stable")
    return Features(np.concatenate(buckets)[order] % num_buckets, all_numbers[order])


def _ngrams(codes: NDArray[np.uint32], owners: Buckets, length: int) -> tuple[Buckets, Buckets]:
    """Return the FNV-1a hash of each n-gram within a token, and the token's index.

    `codes` are the code points of all tokens, `owners` the index of the token of each. The loop runs over
    the n-gram's characters, and hashes all n-grams at once.
    """
    count = max(0, len(codes) - length + 1)
    hashed = np.full(count, _FNV_OFFSET, dtype=np.uint32)
    for i in range(length):
        hashed = (hashed ^ codes[i : i + count]) * _FNV_PRIME
    within = owners[:count] == owners[length - 1 : length - 1 + count]
    mixed = hashed ^ (
        hashed >> np.uint32(15)
    )  # FNV's low bits depend on nothing but the characters' low bits
    return mixed[within].astype(np.int64), owners[:count][within]


def _top_tokens(tokens: Tokens, weights: NDArray[np.float64]) -> str:
    top = [i for i in np.argsort(-weights, kind="stable")[: 2 * _NUM_EXPLAINED] if weights[i] > 0]
    return ", ".join(list(dict.fromkeys(repr(tokens[i]) for i in top))[:_NUM_EXPLAINED])


def _over_windows(sums: NDArray[np.float64], counts: Buckets) -> NDArray[np.float64]:
    """Return a row for each window: the sum over its features, divided by the root of their number.

    The division keeps scores of windows with few and many features comparable. A text of a word or two is
    one window, in which parts of a harmless word that some unsafe word shares would decide: "heart" has the
    beginning of "head".
    """
    starts = np.arange(0, max(1, len(counts) - _STRIDE), _STRIDE)
    ends = np.minimum(starts + WINDOW_TOKENS, len(counts))
    totals = np.concatenate((np.zeros((1, sums.shape[1])), np.cumsum(sums, axis=0)))
    numbers = np.concatenate(([0], np.cumsum(counts)))
    number = numbers[ends] - numbers[starts]
    scale = np.minimum(1, number / _FULL_EVIDENCE) / np.sqrt(number)
    return np.asarray((totals[ends] - totals[starts]) * scale[:, None])


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -50, 50))))
