"""Types of values that another process gave, with their bounds. The codec keeps to them."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

MAX_NUMBER = 1e15
"""The most of anything that a worker measures: bytes of memory are the most."""
MAX_NAME = 200
MAX_MESSAGE = 1_000
Texts = TypeVar("Texts", bound=Collection[str])


def as_printable(text: str, most: int = MAX_NAME) -> str:
    """Return as much of a text, on a line, as `Printable` allows: what is told must not refuse the teller.

    A text of more than `most` characters ends with an ellipsis.
    """
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    return line if len(line) <= most else line[: most - 1] + "…"


def _printable(text: str, most: int = MAX_NAME) -> str:
    if len(text) > most or not text.isprintable():
        raise ValueError(f"has at most {most} printable characters")
    return text


def _all_printable(texts: Texts) -> Texts:
    for text in texts:
        _printable(text)
    return texts


def _pairs_printable(texts: Mapping[str, str]) -> Mapping[str, str]:
    _all_printable([text for pair in texts.items() for text in pair])
    return texts


Positive = Annotated[int, Field(ge=1, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
"""A number that somebody can have measured."""
WholeAmount = Annotated[int, Field(ge=0, le=int(MAX_NUMBER))]
Size = Annotated[int, Field(ge=1, le=int(MAX_NUMBER))]
"""Bytes of a file, which is not empty."""
Printable = Annotated[str, AfterValidator(_printable)]
"""Text that a terminal and a page show as it is."""
Message = Annotated[str, AfterValidator(partial(_printable, most=MAX_MESSAGE))]
"""The same in sentences: what is wrong, and the remedy."""
AllPrintable = AfterValidator(_all_printable)
"""Annotation of a collection of such texts, or of a mapping by them."""
PrintablePairs = Annotated[Mapping[str, str], AfterValidator(_pairs_printable)]
