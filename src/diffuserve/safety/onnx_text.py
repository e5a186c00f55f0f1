"""Any text classifier in ONNX, from a folder, within this process."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffuserve.domain.errors import InvalidModel, InvalidParams, ModerationUnavailable
from diffuserve.domain.safety import FilterInfo
from diffuserve.models.fingerprint import hash_file
from diffuserve.models.folder import ModelFolder, first_line
from diffuserve.safety.categories import by_category, category_of
from diffuserve.safety.onnx_session import quiet_session
from diffuserve.safety.text_model import read_config

_FILES = ("config.json", "model.onnx", "tokenizer.json")
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class OnnxTextClassifier:
    """A folder with `model.onnx`, `tokenizer.json` and `config.json`, as transformers' tools write them.

    A prompt of more tokens than the model reads is read in windows that overlap, and the largest score
    counts: nothing hides behind a long beginning. It runs on the CPU, on one thread for each call.
    `categories` are those that it gives scores for.
    """

    def __init__(self, folder: Path, labels: Mapping[str, str] | None = None) -> None:
        """`labels` says for some of the model's labels which category they are; without it `labels` in
        the folder's `diffuserve.json` does. What neither names is known by its own name.

        Raises `InvalidModel` for another kind of folder, `InvalidParams` where a library is missing.
        """
        self._config = read_config(ModelFolder(folder), labels)
        self.categories = frozenset(map(category_of, self._config.labels))
        tokenizers = _import_libraries(folder)
        for name in _FILES:
            if not (folder / name).is_file():
                raise InvalidModel(f"{folder}: {name} is missing")
        self._tokenizer = self._load_tokenizer(tokenizers, folder / "tokenizer.json")
        self._session = _load_session(folder / "model.onnx")
        self._inputs = _inputs(self._session, folder)
        self.info = FilterInfo("onnx", f"{folder.name}+{_fingerprint(folder, self._config.labels)}")

    async def scores(self, prompt: str) -> Mapping[str, float]:
        return await asyncio.to_thread(self._score, prompt)

    async def close(self) -> None:
        """Nothing to close; the session goes with the object."""

    def _load_tokenizer(self, tokenizers: Any, file: Path) -> Any:
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise InvalidModel(f"{file}: no tokenizer ({error})") from error
        tokenizer.no_padding()
        stride = self._config.stride(tokenizer.num_special_tokens_to_add(is_pair=False))
        tokenizer.enable_truncation(self._config.max_tokens, stride=stride)
        return tokenizer

    def _score(self, prompt: str) -> dict[str, float]:
        try:
            first = self._tokenizer.encode(prompt)
            logits = [self._run(window) for window in (first, *first.overflowing)]
            return by_category(self._config.scores(logits))
        except Exception as error:  # the libraries' errors have no common root; no prompt passes unjudged
            message = f"the text classifier failed ({type(error).__name__})"
            raise ModerationUnavailable(message, retry_after=1.0) from error

    def _run(self, window: Any) -> Any:
        values = (window.ids, window.attention_mask, window.type_ids)
        given = dict(zip(_INPUTS, values, strict=True))
        feed = {name: np.asarray([given[name]], dtype) for name, dtype in self._inputs.items()}
        return np.asarray(self._session.run(None, feed)[0])[0]


def _import_libraries(folder: Path) -> Any:
    try:
        import onnxruntime  # noqa: F401
        import tokenizers
    except ImportError as error:
        remedy = f"needs the package {error.name}: pip install 'diffuserve[moderation]'"
        raise InvalidParams("prompt_filter", f"onnx:{folder}", remedy) from error
    return tokenizers


def _load_session(file: Path) -> Any:
    try:
        return quiet_session(file)
    except Exception as error:  # onnxruntime has its own, without a common root
        raise InvalidModel(f"{file}: onnxruntime cannot load it ({first_line(error)})") from error


def _inputs(session: Any, folder: Path) -> dict[str, Any]:
    """By name, the dtype of each input that the model asks for."""
    inputs = {one.name: _DTYPES.get(one.type) for one in session.get_inputs()}
    if "input_ids" not in inputs or not inputs.keys() <= set(_INPUTS) or None in inputs.values():
        asked = ", ".join(f"{one.name} ({one.type})" for one in session.get_inputs())
        raise InvalidModel(
            f"{folder}/model.onnx asks for {asked}; a text classifier asks for whole numbers named "
            f"{', '.join(_INPUTS)}"
        )
    return inputs


def _fingerprint(folder: Path, labels: Iterable[str]) -> str:
    """Of everything that scores follow from."""
    parts = [*labels, *(hash_file(folder / name) for name in _FILES)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
