"""Templates and tokenizers of chats beside transformers', which evaluates templates of the same shape."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.text.chat import QWEN3_CHAT, QWEN3_CHAT_WITHOUT_THOUGHT, mistral_chat, qwen_chat
from diffuserve.models.text.tokenizer import PromptTokenizer
from diffuserve.testing.qwen_parts import qwen_tokenizer

PROMPTS = ["", "a Red  cat, it's 42!\n", "naïve é — 日本 🎨 <|im_end|> {} x", "cat " * 60]
SYSTEM = "Describe {the} image:"
QWEN = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
    "{% if not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}"
    "{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}{% else %}"
    "{{ '[INST]' + message.content + '[/INST]' }}{% endif %}{% endfor %}"
)


@pytest.fixture
def reference() -> Any:
    return qwen_tokenizer("Describe the image cat: user assistant system think")


def written(reference: Any, folder: Path) -> ModelFolder:
    reference.save_pretrained(folder / "tokenizer")
    return ModelFolder(folder)


def messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    told = [] if system is None else [{"role": "system", "content": system}]
    return [*told, {"role": "user", "content": prompt}]


@pytest.mark.parametrize(
    ("template", "system", "is_thinking"),
    [
        (QWEN3_CHAT, None, True),
        (QWEN3_CHAT_WITHOUT_THOUGHT, None, False),
        (qwen_chat(SYSTEM), SYSTEM, True),
    ],
)
def test_qwen_reads_what_its_own_template_writes(
    template: str, system: str | None, is_thinking: bool, reference: Any, tmp_path: Path
) -> None:
    ours = PromptTokenizer.read(written(reference, tmp_path), "tokenizer", template=template)
    texts = [
        reference.apply_chat_template(
            messages(prompt, system), chat_template=QWEN, tokenize=False, enable_thinking=is_thinking
        )
        for prompt in PROMPTS
    ]
    expected = reference(texts, padding="max_length", max_length=64, truncation=True)
    tokens = ours.tokenize(PROMPTS, 64)
    assert tokens.ids.tolist() == expected.input_ids
    assert tokens.mask.long().tolist() == expected.attention_mask
    assert [len(row) for row in tokens.rows] == [sum(row) for row in expected.attention_mask]
    count = len(reference(texts[-1]).input_ids)
    [warning] = tokens.warnings[-1]
    assert warning.startswith(f"the prompt with its template has {count} tokens and the model reads 64")


def test_mistral_reads_what_its_own_template_writes(reference: Any, tmp_path: Path) -> None:
    """Its tokenizer begins texts by itself, and pads them on the left; the template has the beginning."""
    marks = ["<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
    reference.add_special_tokens({"bos_token": "<s>", "additional_special_tokens": marks})
    folder = written(reference, tmp_path)
    file = tmp_path / "tokenizer" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"padding_side": "left"}), "utf-8")
    reference = transformers.Qwen2Tokenizer.from_pretrained(
        file.parent, local_files_only=True, trust_remote_code=False
    )
    ours = PromptTokenizer.read(folder, "tokenizer", template=mistral_chat(SYSTEM))
    told = [messages(prompt, SYSTEM) for prompt in PROMPTS]
    options = {"padding": "max_length", "truncation": True, "max_length": 90}
    expected = reference.apply_chat_template(
        told, chat_template=MISTRAL, tokenize=True, return_dict=True, return_tensors="pt", **options
    )
    tokens = ours.tokenize(PROMPTS, 90)
    assert torch.equal(tokens.ids, expected["input_ids"])
    assert torch.equal(tokens.mask, expected["attention_mask"].bool())
    assert not tokens.mask[0, 0]


def split(reference: Any, folder: Path) -> ModelFolder:
    """Write a tokenizer as older folders have it, in `vocab.json` and `merges.txt`."""
    written(reference, folder)
    model = json.loads((folder / "tokenizer" / "tokenizer.json").read_text("utf-8"))["model"]
    (folder / "tokenizer" / "tokenizer.json").unlink()
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"])])
    (folder / "tokenizer" / "merges.txt").write_text(merges, "utf-8")
    added = {token: number for token, number in reference.get_added_vocab().items()}
    vocabulary = {token: number for token, number in model["vocab"].items() if token not in added}
    (folder / "tokenizer" / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    file = folder / "tokenizer" / "tokenizer_config.json"
    config = json.loads(file.read_text("utf-8"))
    config |= {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {str(number): {"content": token} for token, number in added.items()},
    }
    file.write_text(json.dumps(config), "utf-8")
    return ModelFolder(folder)


def test_qwen_is_read_from_its_vocabulary_and_merges(tmp_path: Path) -> None:
    reference = qwen_tokenizer()
    ours = PromptTokenizer.read(split(reference, tmp_path), "tokenizer", template=QWEN3_CHAT)
    texts = [QWEN3_CHAT.replace("{}", prompt) for prompt in PROMPTS]
    assert [row.tolist() for row in ours.tokenize(PROMPTS, 900).rows] == reference(texts).input_ids


def test_an_added_token_with_an_id_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = split(qwen_tokenizer(), tmp_path)
    file = tmp_path / "tokenizer" / "tokenizer_config.json"
    file.write_text(file.read_text("utf-8").replace('"256": {', '"999": {'), "utf-8")
    with pytest.raises(InvalidModel, match="cannot have the id"):
        PromptTokenizer.read(folder, "tokenizer")


def test_transformers_reads_the_split_tokenizer_alike(tmp_path: Path) -> None:
    folder, reference = split(qwen_tokenizer(), tmp_path), qwen_tokenizer()
    theirs = transformers.Qwen2Tokenizer.from_pretrained(
        folder.path / "tokenizer", local_files_only=True, trust_remote_code=False
    )
    assert theirs(PROMPTS).input_ids == reference(PROMPTS).input_ids
