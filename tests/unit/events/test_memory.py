"""Bounds of the event bus in memory."""

import pytest

from diffuserve.events import memory
from diffuserve.events.base import job_topic
from diffuserve.events.memory import MemoryEventBus


async def test_progress_is_stored_for_the_jobs_that_reported_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAX_JOBS", 2)
    bus = MemoryEventBus()
    for job_id in ("a", "b", "a", "c"):
        bus.publish(job_topic(job_id), {"type": "progress", "step": 1})
    assert [bus.latest_progress(job_id) is not None for job_id in "abc"] == [True, False, True]


async def test_only_progress_and_changes_affect_the_stored_progress() -> None:
    bus = MemoryEventBus()
    bus.publish(job_topic("a"), {"type": "progress", "step": 1})
    bus.publish(job_topic("a"), {"type": "preview", "index": 0})
    assert bus.latest_progress("a") == {"type": "progress", "step": 1}
    bus.publish(job_topic("a"), {"type": "changed"})
    assert bus.latest_progress("a") is None


async def test_a_topic_without_subscriptions_holds_no_memory() -> None:
    bus = MemoryEventBus()
    with bus.subscribe("a"), bus.subscribe("a"):
        assert len(bus.subscriptions["a"]) == 2
    assert bus.subscriptions == {}
