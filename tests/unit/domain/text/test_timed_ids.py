"""Ids sort by time."""

import pytest

from diffuserve.domain.text.timed_ids import timed_id


def test_ids_of_one_millisecond_are_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    start = 1_800_000_000_000  # milliseconds
    times = iter(range(start * 1_000_000, (start + 1) * 1_000_000, 1_000))
    monkeypatch.setattr("diffuserve.domain.text.timed_ids.time.time_ns", times.__next__)
    ids = [timed_id("job_", 20) for _ in range(1_000)]
    assert ids == sorted(set(ids))
    assert {int(made.removeprefix("job_")[:12], 16) for made in ids} == {start}
    assert {len(made) for made in ids} == {24}
