"""A text classifier in transformers' format, loaded from a folder and run in torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folder import ModelFolder, first_line
from diffuserve.models.quiet import quiet_transformers
from diffuserve.safety.text_model import read_config

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
    architectures = config.get("architectures") or ["no architecture"]
    if not str(architectures[0]).endswith("ForSequenceClassification"):
        raise InvalidModel(
            f"{folder.path}: holds {architectures[0]}, not a model for sequence classification"
        )
    if _CODE in config:
        raise InvalidModel(f"{folder.path}: needs its own Python code, which is never run")
    ModelFolder(folder.path.parent).weights(folder.path.name)


def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    quiet_transformers()
    offline = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **offline)
        model, report = AutoModelForSequenceClassification.from_pretrained(
            str(folder), use_safetensors=True, output_loading_info=True, **offline
        )
    except Exception as error:  # transformers raises many kinds of errors for an invalid folder
        reason = first_line(error) or type(error).__name__
        raise InvalidModel(f"{folder}: transformers cannot load it ({reason})") from error
    if report["missing_keys"]:  # transformers has initialized them at random
        raise InvalidModel(f"{folder}: the weights lack {', '.join(sorted(report['missing_keys'])[:3])}")
    if not tokenizer.is_fast:
        raise InvalidModel(
            f"{folder}: the tokenizer cannot split texts into windows; save it with tokenizer.json"
        )
    return tokenizer, model.eval()
