"""The config of a text classifier in transformers' format, and scores from its logits. Without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder

MAX_TOKENS = 512
_MIN_TOKENS = 8  # including special tokens, and tokens that adjacent windows share
_MULTI, _SINGLE = "multi_label_classification", "single_label_classification"
_UNNAMED = {"0": "LABEL_0", "1": "LABEL_1"}  # transformers does not store its default labels
_STRIDE = 64  # tokens that adjacent windows share, so that each phrase is whole in some window


@dataclass(frozen=True)
class TextModelConfig:
    """The labels, the kind of scores and the window size of a text classifier.

    `labels` are in the order of the logits, and repeat where several were mapped to the same name.
    `max_tokens` includes the special tokens at begin and end.
    """

    labels: tuple[str, ...]
    is_multi_label: bool
    max_tokens: int

    def stride(self, num_special_tokens: int) -> int:
        """Return the number of tokens that adjacent windows share."""
        return min(_STRIDE, (self.max_tokens - num_special_tokens) // 4)

    def scores(self, logits: Sequence[NDArray[np.floating[Any]]]) -> dict[str, float]:
        """Return for each label its largest score, in 0…1, over all windows and all logits of that name.

        `logits` has an array (labels,) for each window. Raise `ValueError` for NaN and for other shapes.
        """
        windows = np.stack(logits).astype(np.float64)
        if windows.shape != (len(logits), len(self.labels)) or not np.isfinite(windows).all():
            raise ValueError("the classifier gave a wrong number of logits, or some that are not finite")
        probabilities = _sigmoid(windows) if self.is_multi_label else _softmax(windows)
        scores = dict.fromkeys(self.labels, 0.0)
        for label, score in zip(self.labels, probabilities.max(axis=0).tolist(), strict=True):
            scores[label] = max(score, scores[label])
        return scores


def read_config(folder: ModelFolder, names: Mapping[str, str] | None = None) -> TextModelConfig:
    """Read `config.json`. Raise `InvalidModel` if it is invalid.

    `names` maps labels to other names; without it, `labels` in the folder's `diffuserve.json` does.
    """
    config = folder.json("config.json")
    labels = _labels(folder, config.get("id2label", _UNNAMED))
    named = _named(folder, labels, folder.settings.get("labels", {}) if names is None else names)
    max_tokens = _max_tokens(config)
    if max_tokens < _MIN_TOKENS:
        raise InvalidModel(f"{folder.path}: config.json leaves room for {max_tokens} tokens")
    return TextModelConfig(named, _is_multi_label(folder, config, len(labels)), max_tokens)


def _named(folder: ModelFolder, labels: tuple[str, ...], names: object) -> tuple[str, ...]:
    if not isinstance(names, Mapping) or not all(isinstance(name, str) and name for name in names.values()):
        raise InvalidModel(f"{folder.path}: labels must map labels to names")
    for label in names:
        if label not in labels:
            raise InvalidModel(f"{folder.path}: has no label {label!r}; its labels are {', '.join(labels)}")
    return tuple(names.get(label, label) for label in labels)


def _labels(folder: ModelFolder, id2label: object) -> tuple[str, ...]:
    if not isinstance(id2label, dict) or set(id2label) != {str(i) for i in range(len(id2label))}:
        raise InvalidModel(f"{folder.path}: id2label in config.json must name the label of each logit")
    labels = tuple(str(id2label[str(i)]) for i in range(len(id2label)))
    if not labels or len(set(labels)) < len(labels):
        raise InvalidModel(f"{folder.path}: the labels in config.json must be different")
    return labels


def _is_multi_label(folder: ModelFolder, config: Mapping[str, Any], num_labels: int) -> bool:
    """Return whether each label has a probability of its own, by the rule of transformers' pipeline."""
    problem = config.get("problem_type")
    if problem not in (_MULTI, _SINGLE, None):
        raise InvalidModel(
            f"{folder.path}: problem_type is {problem!r}; only {_MULTI} and {_SINGLE} give scores in 0…1"
        )
    return problem == _MULTI or num_labels == 1


def _max_tokens(config: Mapping[str, Any]) -> int:
    """Return the window size in tokens, at most 512.

    RoBERTa and CamemBERT number positions from the padding token's id plus 1, so they have fewer than
    `max_position_embeddings`.
    """
    num_positions = config.get("max_position_embeddings")
    if not isinstance(num_positions, int) or num_positions < 1:
        return MAX_TOKENS
    model_type, padding = str(config.get("model_type", "")), config.get("pad_token_id")
    if isinstance(padding, int) and ("roberta" in model_type or model_type == "camembert"):
        num_positions -= padding + 1
    return min(MAX_TOKENS, num_positions)


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1 + np.tanh(0.5 * logits))  # unlike 1 / (1 + exp(-x)), it never overflows


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float64)
