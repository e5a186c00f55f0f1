"""Texts of requests that the database can store."""

from pydantic import AfterValidator


def check_text(text: str) -> str:
    """Return the text. Raise `ValueError` if PostgreSQL cannot store it; pydantic refuses surrogates."""
    if "\0" in text:
        raise ValueError("must not contain the character U+0000")
    return text


Storable = AfterValidator(check_text)
