"""Bounds of what another process gave."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from diffuserve.domain.bounds import MAX_MESSAGE, Message, Printable, as_printable


@given(st.text(max_size=2_000))
def test_what_is_made_printable_is_accepted_as_such(text: str) -> None:
    TypeAdapter(Printable).validate_python(as_printable(text))
    TypeAdapter(Message).validate_python(as_printable(text, MAX_MESSAGE))


@given(st.text("ab", min_size=11))
def test_a_text_that_is_cut_says_so(text: str) -> None:
    assert as_printable(text, 10) == text[:9] + "…"
    assert as_printable(text, len(text)) == text


def test_a_text_within_the_bounds_stays_as_it_is_on_one_line() -> None:
    assert as_printable(" a truncated\n\x1b[31mfile ") == "a truncated [31mfile"
