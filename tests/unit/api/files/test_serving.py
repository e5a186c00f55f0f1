"""Ranges of files, as RFC 9110 has them."""

import pytest

from diffuserve.api.files.serving import requested_range
from diffuserve.domain.errors import RangeNotSatisfiable

SIZE = 1_000


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("bytes=0-0", range(0, 1)),
        ("bytes=0-499", range(0, 500)),
        ("bytes=500-", range(500, 1_000)),
        ("bytes=0-", range(0, 1_000)),
        ("bytes=999-999", range(999, 1_000)),
        ("bytes=500-99999999999", range(500, 1_000)),
        ("bytes=-1", range(999, 1_000)),
        ("bytes=-1000", range(0, 1_000)),
        ("bytes=-5000", range(0, 1_000)),
        ("Bytes= 10-19 ", range(10, 20)),
    ],
)
def test_a_single_range_is_found(header: str, wanted: range) -> None:
    assert requested_range(header, SIZE) == wanted


@pytest.mark.parametrize(
    "header",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=5-1",
        "bytes=1--2",
        "bytes=+1-2",
        "bytes=0-1,5-6",
        "bytes=²-",
        "bytes=" + "9" * 30 + "-",
        "items=0-1",
        "0-1",
    ],
)
def test_what_is_no_single_range_of_bytes_is_ignored(header: str) -> None:
    assert requested_range(header, SIZE) is None


@pytest.mark.parametrize("header", ["bytes=1000-", "bytes=1000-1001", "bytes=5000-", "bytes=-0"])
def test_a_range_behind_the_end_is_refused(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable, match="which has 1,000 bytes") as raised:
        requested_range(header, SIZE)
    assert raised.value.size == SIZE


def test_an_empty_file_has_no_range() -> None:
    with pytest.raises(RangeNotSatisfiable):
        requested_range("bytes=0-", 0)
