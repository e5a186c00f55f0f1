"""Tokenizers beside transformers', on the bundled model's files and on CLIP's older two."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.text.tokenizer import PromptTokenizer

PROMPTS = [
    "",
    "a large red circle",
    "  Two   GREEN squares,\n it's 42! ",
    "a naïve café — 日本 🎨 <|endoftext|> x",
    "a red circle " * 30,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(bundled_models()["tiny-flux"] / name, tmp_path / name)
    return tmp_path


def read(folder: Path, component: str = "tokenizer") -> PromptTokenizer:
    return PromptTokenizer.read(ModelFolder(folder), component)


def expected_ids(reference: Any, length: int) -> list[list[int]]:
    padded = reference(PROMPTS, padding="max_length", max_length=length, truncation=True)
    return padded.input_ids  # type: ignore[no-any-return]


@pytest.mark.parametrize("component", ["tokenizer", "tokenizer_2"])
@pytest.mark.parametrize("length", [8, 32, 77])
def test_ids_are_equal_to_the_references(component: str, length: int, folder: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(
        folder / component, trust_remote_code=False, local_files_only=True
    )
    tokens = read(folder, component).tokenize(PROMPTS, length)
    assert tokens.ids.tolist() == expected_ids(reference, length)


def test_clip_is_read_from_its_vocabulary_and_merges(folder: Path) -> None:
    model = json.loads((folder / "tokenizer" / "tokenizer.json").read_text("utf-8"))["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "tokenizer" / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    (folder / "tokenizer" / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), "utf-8")
    whole = read(folder).tokenize(PROMPTS, 32).ids
    (folder / "tokenizer" / "tokenizer.json").unlink()
    assert read(folder).tokenize(PROMPTS, 32).ids.tolist() == whole.tolist()


def test_a_cut_prompt_is_warned_of(folder: Path) -> None:
    tokenizer = read(folder)
    *_, (warning,) = tokenizer.tokenize(PROMPTS, 20).warnings
    assert warning == "the prompt has 92 tokens and the model reads 20; the rest was cut off"
    assert tokenizer.tokenize(["a red circle"], 20).warnings == [()]
    cut = tokenizer.tokenize(PROMPTS, 20, padded_length=30, subject="the negative prompt")
    assert cut.ids.shape[1] == 30
    assert cut.warnings[-1][0].startswith("the negative prompt has")
    full = tokenizer.tokenize(["a red circle"], 5)
    assert full.warnings == [()], "exactly as long as the model reads"


def test_the_mask_leaves_padding_out(folder: Path) -> None:
    tokens = read(folder, "tokenizer_2").tokenize(["a red circle", "a"], 20)
    reference = transformers.AutoTokenizer.from_pretrained(
        folder / "tokenizer_2", trust_remote_code=False, local_files_only=True
    )
    wanted = reference(["a red circle", "a"], padding="max_length", max_length=20).attention_mask
    assert tokens.mask.tolist() == [list(map(bool, row)) for row in wanted]
    assert tokens.mask.sum(1).tolist() != [20, 20]


def test_a_sentencepiece_model_alone_is_refused_with_the_remedy(folder: Path) -> None:
    (folder / "tokenizer" / "tokenizer.json").rename(folder / "tokenizer" / "spiece.model")
    with pytest.raises(InvalidModel, match=r"only spiece\.model is there; write tokenizer\.json"):
        read(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", None, "neither tokenizer.json nor vocab.json"),
        ("tokenizer_config.json", '{"model_max_length": 8}', "pad_token="),
        ("tokenizer_config.json", '{"pad_token": "nope", "model_max_length": 8}', "pad_token='nope'"),
    ],
)
def test_a_broken_tokenizer_is_refused(file: str, content: str | None, message: str, folder: Path) -> None:
    path = folder / "tokenizer" / file
    path.unlink()
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(InvalidModel, match=message):
        read(folder)
