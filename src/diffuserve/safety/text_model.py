"""What the config of a text classifier in transformers' format says, and what its logits mean. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folder import ModelFolder

MAX_TOKENS = 512
_MULTI, _SINGLE = "multi_label_classification", "single_label_classification"
_UNNAMED = {"0": "LABEL_0", "1": "LABEL_1"}  # transformers does not write down what is its default
_STRIDE = 64  # tokens that neighbouring windows share, so that no phrase falls between them


@dataclass(frozen=True)
class TextModelConfig:
    """`labels` are in the order of the logits, and may repeat where several were given one name.

    `max_tokens` counts the tokens that mark begin and end as well.
    """

    labels: tuple[str, ...]
    is_multi_label: bool
    max_tokens: int

    def stride(self, num_special_tokens: int) -> int:
        """How many tokens neighbouring windows share."""
        return min(_STRIDE, (self.max_tokens - num_special_tokens) // 4)

    def scores(self, logits: Sequence[NDArray[np.floating[Any]]]) -> dict[str, float]:
        """By label, in 0…1: the largest of all windows of a text and of all labels of that name.

        Raises `ValueError` for NaN, and for another number of logits than there are labels.
        """
        windows = np.stack(logits).astype(np.float64)
        if windows.shape != (len(logits), len(self.labels)) or not np.isfinite(windows).all():
            raise ValueError("the classifier gave no finite number for each of its labels")
        found = _sigmoid(windows) if self.is_multi_label else _softmax(windows)
        scores = dict.fromkeys(self.labels, 0.0)
        for label, score in zip(self.labels, found.max(axis=0).tolist(), strict=True):
            scores[label] = max(score, scores[label])
        return scores


def read_config(folder: ModelFolder, names: Mapping[str, str] | None = None) -> TextModelConfig:
    """From `config.json`. `names` gives some labels other names; without it `labels` in the folder's
    `diffuserve.json` does. Raises `InvalidModel`."""
    config = folder.json("config.json")
    labels = _labels(folder, config.get("id2label", _UNNAMED))
    named = _named(folder, labels, folder.settings.get("labels", {}) if names is None else names)
    return TextModelConfig(named, _is_multi_label(folder, config, len(labels)), _max_tokens(config))


def _named(folder: ModelFolder, labels: tuple[str, ...], names: object) -> tuple[str, ...]:
    if not isinstance(names, Mapping) or not all(isinstance(name, str) and name for name in names.values()):
        raise InvalidModel(f"{folder.path}: labels must give a label's name for each label they name")
    for label in names:
        if label not in labels:
            raise InvalidModel(f"{folder.path}: has no label {label!r}; its labels are {', '.join(labels)}")
    return tuple(names.get(label, label) for label in labels)


def _labels(folder: ModelFolder, id2label: object) -> tuple[str, ...]:
    if not isinstance(id2label, dict) or set(id2label) != {str(i) for i in range(len(id2label))}:
        raise InvalidModel(f"{folder.path}: id2label in config.json must name the label of each logit")
    labels = tuple(str(id2label[str(i)]) for i in range(len(id2label)))
    if not labels or len(set(labels)) < len(labels):
        raise InvalidModel(f"{folder.path}: the labels in config.json must be different ones")
    return labels


def _is_multi_label(folder: ModelFolder, config: Mapping[str, Any], num_labels: int) -> bool:
    """As transformers' own pipeline decides it."""
    problem = config.get("problem_type")
    if problem not in (_MULTI, _SINGLE, None):
        raise InvalidModel(
            f"{folder.path}: problem_type is {problem!r}; only {_MULTI} and {_SINGLE} are scores in 0…1"
        )
    return problem == _MULTI or num_labels == 1


def _max_tokens(config: Mapping[str, Any]) -> int:
    """At most 512. RoBERTa and its kin count positions from behind the one that stands for padding."""
    num_positions = config.get("max_position_embeddings")
    if not isinstance(num_positions, int) or num_positions < 1:
        return MAX_TOKENS
    model_type, padding = str(config.get("model_type", "")), config.get("pad_token_id")
    if isinstance(padding, int) and ("roberta" in model_type or model_type == "camembert"):
        num_positions -= padding + 1
    return min(MAX_TOKENS, num_positions)


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1 + np.tanh(0.5 * logits))  # overflows nowhere


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float64)
