"""Lines of a batch's file are found wherever its chunks end, and what is wrong with them is named."""

from collections.abc import AsyncIterator

import pytest

from diffuserve.api.openai.batch_lines import FileLine, LineChecker, lines_in

MAX_BYTES = 6


async def chunked(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n \r\n\n", []),
        (b"one\ntwo", [(1, b"one"), (2, b"two")]),
        (b"one\r\n\ntwo\n", [(1, b"one"), (3, b"two")]),
        (b"123456\n1234567\n8\n", [(1, b"123456"), (2, None), (3, b"8")]),
        (b"1234567890123", [(1, None)]),
    ],
)
async def test_lines_are_read_one_by_one(
    content: bytes, lines: list[tuple[int, bytes | None]], size: int
) -> None:
    found = [line async for line in lines_in(chunked(content, size), MAX_BYTES)]
    assert found == [FileLine(*line) for line in lines]


def test_a_file_of_too_many_lines_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffuserve.api.openai.batch_lines.MAX_LINES", 2)
    checker = LineChecker("/v1/videos", 1_000)
    for number in range(1, 4):
        assert not checker.is_hopeless
        request = b'{"custom_id": "%d", "method": "POST", "url": "/v1/videos", "body": {}}' % number
        assert checker.check(FileLine(number, request))
    assert checker.is_hopeless
    assert [error.code for error in checker.found()] == ["too_many_lines"]


def test_half_of_a_surrogate_pair_is_no_id() -> None:
    checker = LineChecker("/v1/videos", 1_000)
    line = rb'{"custom_id": "\ud800", "method": "POST", "url": "/v1/videos", "body": {}}'
    assert checker.check(FileLine(1, line)) is None
    assert [error.code for error in checker.found()] == ["invalid_custom_id"]
