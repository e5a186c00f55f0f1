"""Small text classifiers with random weights, as folders in transformers' format or in ONNX format.

The ONNX file is encoded here, so that no test needs the package `onnx`. Its model is a bag of words: the
mean of the tokens' vectors, times a matrix, plus a bias.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "red", "blue", "cat", "dog", "gun", "nude", "circle")
Problem = Literal["multi_label_classification", "single_label_classification"]
_DIM = 8
_FLOAT, _INT64 = 1, 7  # onnx.TensorProto.DataType


@dataclass(frozen=True)
class BagOfWords:
    """The ONNX model in numpy. `vectors` is (words, 8), `matrix` is (8, labels), `bias` is (labels,)."""

    vectors: NDArray[np.float32]
    matrix: NDArray[np.float32]
    bias: NDArray[np.float32]

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits (labels,) of a text with these token ids."""
        mean = self.vectors[list(ids)].mean(axis=0)
        return np.asarray(mean @ self.matrix + self.bias, np.float32)


def write_onnx_classifier(
    folder: Path,
    labels: Sequence[str],
    *,
    problem: Problem = "multi_label_classification",
    max_tokens: int = 512,
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
    seed: int = 0,
) -> BagOfWords:
    """Write `model.onnx`, `tokenizer.json` and `config.json` into `folder`. Equal arguments, equal files."""
    random = np.random.default_rng(seed)
    model = BagOfWords(
        *(random.normal(size=shape).astype(np.float32) for shape in _shapes(len(WORDS), len(labels)))
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(_bag_of_words_file(model, inputs))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "bert",
        "problem_type": problem,
        "max_position_embeddings": max_tokens,
        "id2label": {str(i): label for i, label in enumerate(labels)},
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return model


def write_text_checkpoint(
    folder: Path,
    labels: Sequence[str],
    *,
    problem: Problem | None = "multi_label_classification",
    max_tokens: int = 64,
    seed: int = 0,
) -> Path:
    """Write a random BERT with a tokenizer into `folder`, as `save_pretrained` does, and return it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=max_tokens,
        initializer_range=0.5,
        problem_type=problem,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertForSequenceClassification(config).save_pretrained(folder)
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), **names).save_pretrained(folder)
    return folder


def make_tokenizer() -> Any:
    """Return a tokenizer that maps each word to a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def _shapes(num_words: int, num_labels: int) -> tuple[tuple[int, ...], ...]:
    return (num_words, _DIM), (_DIM, num_labels), (num_labels,)


def _bag_of_words_file(model: BagOfWords, inputs: Sequence[str]) -> bytes:
    """Return an ONNX file. Field numbers are those of the messages in onnx.proto."""
    nodes = [
        _node("Gather", ["vectors", "input_ids"], "words"),
        _node("Cast", ["attention_mask"], "mask", _attribute("to", _FLOAT)),
        _node("Unsqueeze", ["mask", "last"], "mask_of_words"),
        _node("Mul", ["words", "mask_of_words"], "read"),
        _node("ReduceSum", ["read", "tokens"], "sum", _attribute("keepdims", 0)),
        _node("ReduceSum", ["mask", "tokens"], "count"),
        _node("Div", ["sum", "count"], "mean"),
        _node("MatMul", ["mean", "matrix"], "product"),
        _node("Add", ["product", "bias"], "logits"),
    ]
    constants = [
        _tensor("vectors", model.vectors),
        _tensor("matrix", model.matrix),
        _tensor("bias", model.bias),
        _tensor("last", np.array([2], np.int64)),
        _tensor("tokens", np.array([1], np.int64)),
    ]
    graph = b"".join(
        [
            *(_field(1, node) for node in nodes),
            _field(2, b"bag_of_words"),
            *(_field(5, constant) for constant in constants),
            *(_field(11, _value(name, _INT64)) for name in inputs),
            _field(12, _value("logits", _FLOAT)),
        ]
    )
    return _number(1, 8) + _field(7, graph) + _field(8, _number(2, 13))  # IR 8, operator set 13


def _node(kind: str, inputs: Iterable[str], output: str, attribute: bytes = b"") -> bytes:
    names = b"".join(_field(1, name.encode()) for name in inputs)
    return names + _field(2, output.encode()) + _field(4, kind.encode()) + attribute


def _attribute(name: str, value: int) -> bytes:
    is_int = 2
    return _field(5, _field(1, name.encode()) + _number(3, value) + _number(20, is_int))


def _tensor(name: str, values: NDArray[Any]) -> bytes:
    kind = _INT64 if values.dtype == np.int64 else _FLOAT
    shape = b"".join(_number(1, size) for size in values.shape)
    return shape + _number(2, kind) + _field(8, name.encode()) + _field(9, values.tobytes())


def _value(name: str, kind: int) -> bytes:
    """Return a `ValueInfoProto` of a matrix of any size."""
    shape = b"".join(_field(1, _field(2, size)) for size in (b"rows", b"columns"))
    tensor = _number(1, kind) + _field(2, shape)
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
