"""Adapters that are given by their files."""

from pathlib import Path

import pytest

from diffuserve.cli.adapter_files import adapter_files, named_file, refuse_files, split_weight, with_files
from diffuserve.domain.errors import InvalidParams


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (
        *("ink.safetensors", "old/ink.safetensors", "My style (v2).safetensors", "...safetensors"),
        *("moon/pytorch_lora_weights.safetensors", "two/a.safetensors", "two/b.safetensors"),
        *("run/model.safetensors", "run/adapter_model.safetensors"),
    ):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).touch()


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("ink.safetensors", ("ink", "ink.safetensors")),
        ("./My style (v2).safetensors", ("My-style-v2-", "My style (v2).safetensors")),
        ("moon/", ("moon", "moon/pytorch_lora_weights.safetensors")),
        ("run", ("run", "run/adapter_model.safetensors")),
    ],
)
def test_a_file_or_a_folder_has_a_name(path: str, named: tuple[str, str]) -> None:
    assert named_file(path) == named


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("no.safetensors", "there is no such file"),
        ("two", r"has 2 .safetensors files \(a.safetensors, b.safetensors\); give the path of one"),
        ("hf://owner/name", "download it"),
        ("...safetensors", "--adapter-files NAME=FILE"),
    ],
)
def test_what_is_no_file_with_a_name_is_refused(path: str, told: str) -> None:
    with pytest.raises(InvalidParams, match=told):
        named_file(path)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("ink:0.8", ("ink", ":0.8")),
        ("a/b.safetensors:-1", ("a/b.safetensors", ":-1")),
        ("hf://owner/name", ("hf://owner/name", "")),
        ("0.8", ("0.8", "")),
    ],
)
def test_a_weight_stands_behind_the_last_colon(value: str, parts: tuple[str, str]) -> None:
    assert split_weight(value) == parts


def test_files_get_names_and_names_stay() -> None:
    uses, files = with_files(["gold", "./ink.safetensors:0.5", "moon/"], {"gold": "g.safetensors"})
    assert uses == ["gold", "ink:0.5", "moon"]
    assert files == {
        "gold": "g.safetensors",
        "ink": "ink.safetensors",
        "moon": "moon/pytorch_lora_weights.safetensors",
    }
    with pytest.raises(InvalidParams, match="is 'ink' already"):
        with_files(["ink.safetensors", "old/ink.safetensors"], {})


def test_an_option_takes_json_pairs_and_files() -> None:
    found = {"ink": "ink.safetensors", "m": "moon/pytorch_lora_weights.safetensors"}
    assert adapter_files("ink.safetensors,m=moon") == found
    assert adapter_files('{"x": "elsewhere.safetensors"}') == {"x": "elsewhere.safetensors"}


def test_a_server_gets_no_files() -> None:
    refuse_files(["ink", "moon:0.5"])
    with pytest.raises(InvalidParams, match="diffuserve adapters push"):
        refuse_files(["moon", "ink.safetensors:0.5"])
