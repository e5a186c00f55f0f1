"""Words that a model does not know are told, with what it knows instead."""

from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.known_words import KnownWords
from diffuserve.models.bundled import bundled_models
from diffuserve.models.registry import read_spec, read_vocabulary

WORDS = KnownWords(
    groups=((("house", "home"), ("castle",), ("ferris wheel",)), (("cat", "kitten"), ("dog",))),
    words=("a", "on", "blue", "background"),
    near={"animal": ("cat", "dog")},
)


def test_what_is_known_is_not_told() -> None:
    assert WORDS.warnings("A Kitten on the WHEEL, on a blue background!", "toy") == ()


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("lighthouse", ["house", "castle", "ferris wheel"]),  # it ends so, and others are of the kind
        ("animal", ["cat", "dog"]),
        ("castel", ["castle", "house", "ferris wheel"]),
        ("cats", ["cat", "dog"]),
        ("zither", ["house", "castle", "ferris wheel"]),
    ],
)
def test_other_words_are_told_with_what_is_near(word: str, instead: list[str]) -> None:
    assert WORDS.instead_of(word) == instead
    assert WORDS.warnings(f"a {word}", "toy") == (
        f"toy does not know '{word}'; it knows {', '.join(instead)}",
    )


def test_few_words_of_a_long_prompt_are_told() -> None:
    assert len(WORDS.warnings(" ".join(f"{letter}oo" for letter in "bcdfg"), "toy")) == 3


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_models_know_their_own_example(name: str) -> None:
    words = read_vocabulary(name)
    for prompt in read_spec(name).example_prompts:
        assert words is None or words.unknown(prompt) == [], prompt


def test_a_vocabulary_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    (tmp_path / "vocabulary.json").write_text('{"groups": [["cat"]]}')
    with pytest.raises(InvalidModel, match=r"vocabulary\.json: groups"):
        read_vocabulary(str(tmp_path))
