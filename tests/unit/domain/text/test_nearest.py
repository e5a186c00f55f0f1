"""The known name that a mistyped one may stand for."""

import pytest

from diffuserve.domain.text.nearest import did_you_mean, nearest, same_numbers

MODELS = ("tiny-flux", "FLUX.1-schnell")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tiny-flx", "tiny-flux"),
        ("Tiny-Flux", "tiny-flux"),
        ("flux.1-schnel", "FLUX.1-schnell"),
        ("zz", None),
    ],
)
def test_the_nearest_name_is_found_whatever_the_cases(name: str, found: str | None) -> None:
    assert nearest(name, MODELS) == found


def test_a_message_ends_in_a_question_only_where_there_is_a_likely_answer() -> None:
    assert did_you_mean("tiny-flx", MODELS) == "; did you mean 'tiny-flux'?"
    assert did_you_mean("zz", MODELS) == ""


def test_letters_in_another_order_are_the_likeliest_slip() -> None:
    assert nearest("PROT", ["SPOT", "PORT", "PART"]) == "PORT"


def test_the_only_name_that_begins_so_goes_before_those_that_are_spelled_alike() -> None:
    assert nearest("Euler a", ["euler", "euler_ancestral", "ddim"]) == "euler_ancestral"


def test_another_version_is_not_what_was_meant() -> None:
    assert not same_numbers("sd3.5", "sd-1.5")
    assert same_numbers("flux-schnel", "flux-schnell")
    assert same_numbers("sd3", "sd35-large")
