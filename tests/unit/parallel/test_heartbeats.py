"""Heartbeats of ranks, by a clock of the test's own and through a real store."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from diffuserve.parallel import heartbeats
from diffuserve.parallel.heartbeats import HeartbeatWatch, RankHeartbeats, leave_broken_group
from support.waiting import HANG_SECONDS


def test_a_rank_that_sends_heartbeats_is_not_silent() -> None:
    watch = HeartbeatWatch(2, now=0.0)
    for second in range(2, 40, 2):
        watch.update([second, second], float(second))
        assert watch.silent(float(second)) == []


def test_a_rank_that_stops_is_silent_after_ten_seconds() -> None:
    watch = HeartbeatWatch(3, now=0.0)
    watch.update([1, 1, 1], 2.0)
    watch.update([2, 1, 2], 11.0)
    assert watch.silent(12.0) == []
    watch.update([3, 1, 3], 12.5)
    assert watch.silent(12.5) == [1]


def test_a_rank_that_never_sent_a_heartbeat_is_silent_too() -> None:
    watch = HeartbeatWatch(2, now=0.0)
    watch.update([1, 0], 11.0)
    assert watch.silent(11.0) == [1]


def test_a_rank_that_resumes_in_time_is_not_silent() -> None:
    watch = HeartbeatWatch(1, now=0.0)
    watch.update([1], 9.0)
    assert watch.silent(18.0) == []


class Silences:
    """Collects what `on_silence` is called with, and lets the test wait for the first call."""

    def __init__(self) -> None:
        self.ranks: list[list[int]] = []
        self._called = threading.Event()

    def __call__(self, ranks: list[int]) -> None:
        self.ranks.append(ranks)
        self._called.set()

    def wait(self) -> None:
        assert self._called.wait(HANG_SECONDS)


Start = Callable[..., RankHeartbeats]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """Starts heartbeats that are fast enough for a test."""

    def start(rank: int, store: Any, on_silence: Silences, silence_seconds: float) -> RankHeartbeats:
        started = RankHeartbeats(rank, 2, store, on_silence, 0.01, silence_seconds)
        started.start()
        request.addfinalizer(started.stop)
        return started

    return start


def test_ranks_of_one_store_hear_each_other(start: Start) -> None:
    store, silences = HashStore(), Silences()
    start(0, store, silences, HANG_SECONDS)
    start(1, store, silences, HANG_SECONDS)
    counts = PrefixStore("heartbeats", store)
    for key in ("0", "1"):
        counts.wait([key])
    assert silences.ranks == []


def test_a_rank_that_ends_is_reported_by_the_others(start: Start) -> None:
    store, silences = HashStore(), Silences()
    start(1, store, silences, silence_seconds=0.2)
    silences.wait()
    assert silences.ranks[0] == [0]


class GoneStore:
    """Fails as a TCP store does whose server has ended."""

    def set(self, key: str, value: str) -> None:
        raise RuntimeError("connection reset")


def test_a_store_that_is_gone_counts_as_silence_of_unknown_ranks(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "PrefixStore", lambda _prefix, store: store)
    silences = Silences()
    start(0, GoneStore(), silences, HANG_SECONDS)
    silences.wait()
    assert silences.ranks[0] == []


@pytest.mark.parametrize(
    ("silent", "message"), [([1, 3], "ranks 1, 3 are silent"), ([], "the other ranks are silent")]
)
def test_a_broken_group_is_left_with_a_message_and_an_exit_code(
    silent: list[int], message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as left:
        leave_broken_group(silent)
    assert left.value.code == heartbeats.BROKEN_GROUP
    assert message in caplog.text
