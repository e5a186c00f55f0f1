"""Times in JSON."""

from datetime import UTC, datetime

import pytest

from diffuserve.domain.text.timestamps import from_rfc3339, to_rfc3339


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1970-01-01T00:00:00.000Z"), (1_767_323_045.2504, "2026-01-02T03:04:05.250Z"), (None, None)],
)
def test_seconds_are_written_in_utc_with_milliseconds(seconds: float | None, text: str | None) -> None:
    assert to_rfc3339(seconds) == text


@pytest.mark.parametrize("text", ["2026-01-02T03:04:05.250Z", "2026-01-02T04:04:05.250+01:00"])
def test_a_time_is_read_with_its_offset(text: str) -> None:
    assert from_rfc3339(text) == datetime(2026, 1, 2, 3, 4, 5, 250_000, UTC)


def test_a_missing_time_stays_missing_and_a_malformed_one_is_an_error() -> None:
    assert from_rfc3339(None) is None
    with pytest.raises(ValueError, match="yesterday"):
        from_rfc3339("yesterday")
