"""Words that a model does not know are told, with what it knows instead."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.known_words import KnownWords, Vocabulary
from diffuserve.models.bundled import bundled_models
from diffuserve.models.registry import read_spec
from diffuserve.models.vocabulary import read_vocabulary

WORDS = KnownWords(
    groups=((("house", "home"), ("castle",), ("ferris wheel",)), (("cat", "kitten"), ("dog",))),
    words=("a", "on", "blue", "background"),
    near={"animal": ("cat", "dog")},
)


OTHERS = {
    "shapes": KnownWords(groups=((("star",),),)),
    "plants": KnownWords(groups=((("oak", "tree"), ("rose",)),)),
}


def test_what_is_known_is_not_told() -> None:
    assert Vocabulary(WORDS, OTHERS).warnings("A Kitten on the WHEEL, on a blue background!", "toy") == ()


@pytest.mark.parametrize(
    ("word", "known"),
    [
        *(("foxes", "fox"), ("dogs", "dog"), ("cherries", "cherry"), ("wolves", "wolf"), ("knives", "knife")),
        *(
            ("fox's", "fox"),
            ("smiling", "smile"),
            ("running", "run"),
            ("painted", "paint"),
            ("waved", "wave"),
        ),
    ],
)
def test_inflections_of_a_known_word_are_known(word: str, known: str) -> None:
    assert KnownWords(groups=(((known,),),)).knows(word)


@given(st.from_regex(r"[a-z]{2,12}", fullmatch=True))
def test_a_word_is_known_with_its_own_plural_alone(word: str) -> None:
    words = KnownWords(groups=(((word,),),))
    assert words.knows(word)
    assert words.knows(f"{word}s")
    assert not words.knows(f"{word}xyz")


@pytest.mark.parametrize("word", ["ring", "red", "dress", "sing"])
def test_what_only_ends_like_an_inflection_is_not_known(word: str) -> None:
    assert not KnownWords(groups=((("r",), ("dr",), ("s",)),)).knows(word)


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("lighthouse", ["house"]),  # it ends so
        ("animal", ["cat", "dog"]),
        ("castel", ["castle"]),
        ("catz", ["cat"]),
        ("zither", []),
        ("dogma", []),
    ],
)
def test_only_what_is_really_near_is_offered(word: str, instead: list[str]) -> None:
    assert WORDS.instead_of(word) == instead
    [warning] = Vocabulary(WORDS).warnings(f"a {word}", "toy")
    assert f"'{word}'" in warning
    assert all(name in warning for name in instead)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("an oak and a catz", "toy does not know 'oak', 'catz' (it knows cat); plants knows 'oak'"),
        ("a star, a rose, a tree", "toy does not know 'star', 'rose', 'tree'; plants knows 'rose', 'tree'"),
        (
            "boo coo doo foo goo hoo joo",
            "toy does not know 'boo', 'coo', 'doo', 'foo', 'goo' and 2 more words",
        ),
    ],
)
def test_one_warning_tells_the_unknown_words_and_who_knows_them(prompt: str, told: str) -> None:
    assert Vocabulary(WORDS, OTHERS).warnings(prompt, "toy") == (told,)


def test_a_bundled_model_that_knows_a_word_is_named() -> None:
    vocabulary = read_vocabulary("tiny-flux")
    assert vocabulary is not None
    assert vocabulary.warnings("a cat", "tiny-flux") == (
        "tiny-flux does not know 'cat'; tiny-emoji knows 'cat'",
    )


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_models_know_their_own_example(name: str) -> None:
    vocabulary = read_vocabulary(name)
    for prompt in read_spec(name).example_prompts:
        assert vocabulary is None or vocabulary.own.unknown(prompt) == [], prompt


def test_a_vocabulary_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    (tmp_path / "vocabulary.json").write_text('{"groups": [["cat"]]}')
    with pytest.raises(InvalidModel, match=r"vocabulary\.json: groups"):
        read_vocabulary(str(tmp_path))
