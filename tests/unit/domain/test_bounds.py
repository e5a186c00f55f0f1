"""Bounds of what another process gave."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from diffuserve.domain.bounds import Printable, as_printable


@given(st.text(max_size=1_000))
def test_what_is_made_printable_is_accepted_as_such(text: str) -> None:
    TypeAdapter(Printable).validate_python(as_printable(text))


def test_a_text_within_the_bounds_stays_as_it_is_on_one_line() -> None:
    assert as_printable(" a truncated\n\x1b[31mfile ") == "a truncated [31mfile"
