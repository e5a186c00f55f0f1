"""A text classifier in transformers' format, loaded from a folder and run in torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module, load_processor
from diffuserve.safety.classifiers.text_model import read_config

_CODE = "auto_map"


class TextCheckpoint:
    """Gives the scores of transformers' own `text-classification` pipeline, up to rounding.

    A text with more tokens than the model accepts is scored in overlapping windows, and the largest score
    counts. Calls must not overlap.
    """

    def __init__(self, folder: Path) -> None:
        """Load the folder. Raise `InvalidModel` if it is invalid, or holds pickled weights or Python code."""
        checkpoint = ModelFolder(folder.resolve())
        _check(checkpoint)
        self._config = read_config(checkpoint)
        self.name = checkpoint.path.name
        self.labels = tuple(dict.fromkeys(self._config.labels))
        self._tokenizer, self._model = _load(checkpoint.path)
        num_special = self._tokenizer.num_special_tokens_to_add(pair=False)
        self._stride = self._config.stride(num_special)

    def scores(self, text: str) -> Mapping[str, float]:
        """Return a score in 0…1 for each label. Raise `ValueError` if the model gives NaN."""
        windows = self._tokenizer(
            text,
            truncation=True,
            max_length=self._config.max_tokens,
            stride=self._stride,
            return_overflowing_tokens=True,
        )
        windows.pop("overflow_to_sample_mapping", None)
        with torch.inference_mode():
            logits = [
                self._model(**{name: torch.tensor([ids[i]]) for name, ids in windows.items()}).logits[0]
                for i in range(len(windows["input_ids"]))
            ]
        return self._config.scores([row.float().numpy() for row in logits])


def _check(folder: ModelFolder) -> None:
    config = folder.json("config.json")
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else "no architecture"
    if not str(first).endswith("ForSequenceClassification"):
        raise InvalidModel(f"{folder.path}: holds {first}, not a model for sequence classification")
    if _CODE in config:
        raise InvalidModel(f"{folder.path}: needs its own Python code, which is never run")


def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = load_processor(AutoTokenizer, folder)
    model = load_module(AutoModelForSequenceClassification, folder)
    if not tokenizer.is_fast:
        raise InvalidModel(
            f"{folder}: the tokenizer cannot split texts into windows; save it with tokenizer.json"
        )
    return tokenizer, model
