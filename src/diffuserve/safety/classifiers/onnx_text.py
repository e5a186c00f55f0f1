"""A text classifier in ONNX format, loaded from a folder and run in this process."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffuserve.domain.errors import InvalidModel, InvalidParams, ModerationUnavailable
from diffuserve.domain.extras import Extra
from diffuserve.domain.safety import FilterInfo
from diffuserve.models.folders.folder import ModelFolder, first_line
from diffuserve.models.weights.fingerprint import hash_file
from diffuserve.safety.classifiers.onnx_session import single_threaded_session
from diffuserve.safety.classifiers.text_model import read_config
from diffuserve.safety.moderation_api.categories import by_category, category_of

_FILES = ("config.json", "model.onnx", "tokenizer.json")
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class OnnxTextClassifier:
    """A classifier from `model.onnx`, `tokenizer.json` and `config.json`, as transformers' tools write them.

    A prompt with more tokens than the model accepts is scored in overlapping windows, and the largest score
    counts. It runs on the CPU, each call on a thread. `categories` are those that it gives scores for.
    """

    def __init__(self, folder: Path, labels: Mapping[str, str] | None = None) -> None:
        """Load the folder. `labels` maps labels of the model to categories.

        Without it, `labels` in the folder's `diffuserve.json` applies; a label in neither is a category of
        its own name. Raise `InvalidModel` for an invalid folder, and `InvalidParams` if a library is missing.
        """
        self._config = read_config(ModelFolder(folder), labels)
        self.categories = frozenset(map(category_of, self._config.labels))
        tokenizers = _import_libraries(folder)
        check_text_classifier(folder)
        self._tokenizer = self._load_tokenizer(tokenizers, folder / "tokenizer.json")
        self._session = _load_session(folder / "model.onnx")
        self._inputs = _inputs(self._session, folder)
        self.info = FilterInfo("onnx", f"{folder.name}+{_fingerprint(folder, self._config.labels)}")

    async def scores(self, prompt: str) -> Mapping[str, float]:
        """Return a score in 0…1 for each category. Raise `ModerationUnavailable` if the model fails."""
        return await asyncio.to_thread(self._score, prompt)

    async def close(self) -> None:
        """Do nothing: the session is released with this object."""

    def _load_tokenizer(self, tokenizers: Any, file: Path) -> Any:
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain `Exception`
            raise InvalidModel(f"{file}: invalid tokenizer ({error})") from error
        tokenizer.no_padding()
        stride = self._config.stride(tokenizer.num_special_tokens_to_add(is_pair=False))
        tokenizer.enable_truncation(self._config.max_tokens, stride=stride)
        return tokenizer

    def _score(self, prompt: str) -> dict[str, float]:
        try:
            first = self._tokenizer.encode(prompt)
            logits = [self._run(window) for window in (first, *first.overflowing)]
            return by_category(self._config.scores(logits))
        except Exception as error:  # the libraries' errors have no common base; no prompt passes unjudged
            message = f"the text classifier failed ({type(error).__name__})"
            raise ModerationUnavailable(message, retry_after=1.0) from error

    def _run(self, window: Any) -> Any:
        values = (window.ids, window.attention_mask, window.type_ids)
        given = dict(zip(_INPUTS, values, strict=True))
        feed = {name: np.asarray([given[name]], dtype) for name, dtype in self._inputs.items()}
        return np.asarray(self._session.run(None, feed)[0])[0]


def check_text_classifier(folder: Path) -> None:
    """Raise `InvalidModel` if a file of the folder is missing."""
    for name in _FILES:
        if not (folder / name).is_file():
            raise InvalidModel(f"{folder}: {name} is missing")


def _import_libraries(folder: Path) -> Any:
    try:
        import onnxruntime  # noqa: F401
        import tokenizers
    except ImportError as error:
        remedy = f"needs the package {error.name}: {Extra.MODERATION.remedy}"
        raise InvalidParams("prompt_filter", f"onnx:{folder}", remedy) from error
    return tokenizers


def _load_session(file: Path) -> Any:
    try:
        return single_threaded_session(file)
    except Exception as error:  # onnxruntime's errors have no common base
        raise InvalidModel(f"{file}: onnxruntime cannot load it ({first_line(error)})") from error


def _inputs(session: Any, folder: Path) -> dict[str, Any]:
    """Return the dtype of each of the model's inputs by name. Raise `InvalidModel` for an unknown input."""
    inputs = {node.name: _DTYPES.get(node.type) for node in session.get_inputs()}
    if "input_ids" not in inputs or not inputs.keys() <= set(_INPUTS) or None in inputs.values():
        actual = ", ".join(f"{node.name} ({node.type})" for node in session.get_inputs())
        raise InvalidModel(
            f"{folder}/model.onnx has the inputs {actual}; a text classifier has integer inputs named "
            f"{', '.join(_INPUTS)}"
        )
    return inputs


def _fingerprint(folder: Path, labels: Iterable[str]) -> str:
    """Return 12 hex digits of a sha256 over everything that decides the scores."""
    parts = [*labels, *(hash_file(folder / name) for name in _FILES)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
