"""The contract of event buses."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from diffuserve.events.base import EventBus, job_topic
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_bus
from support.valkey import ValkeyServer


@pytest.fixture(params=["memory", "valkey", "unavailable valkey"])
async def live_bus(request: pytest.FixtureRequest) -> AsyncGenerator[EventBus]:
    url: str | None = None
    if request.param != "memory":
        server: ValkeyServer = request.getfixturevalue("valkey")
        url = server.url if request.param == "valkey" else "valkey://127.0.0.1:1"
    async with open_bus(Settings(valkey_url=url)) as bus:
        assert bus.is_connected == (request.param != "unavailable valkey")
        yield bus


async def test_every_subscription_to_a_topic_gets_a_message_and_no_other(live_bus: EventBus) -> None:
    with (
        live_bus.subscribe("a") as first,
        live_bus.subscribe("a") as second,
        live_bus.subscribe("b") as other,
    ):
        live_bus.publish("a", {"type": "changed"})
        assert await first.get(1.0) == await second.get(1.0) == {"type": "changed"}
        assert await other.get(0.02) is None


async def test_messages_keep_their_order(live_bus: EventBus) -> None:
    with live_bus.subscribe("a") as subscription:
        for number in range(20):
            live_bus.publish("a", {"type": "progress", "step": number})
        steps = [(await subscription.get(1.0) or {})["step"] for _ in range(20)]
    assert steps == list(range(20))


async def test_earlier_messages_are_not_delivered(live_bus: EventBus) -> None:
    live_bus.publish("a", {"type": "changed"})
    with live_bus.subscribe("a") as subscription:
        assert await subscription.get(0.02) is None


async def test_a_waiting_subscriber_is_woken(live_bus: EventBus) -> None:
    with live_bus.subscribe("a") as subscription:
        waiting = asyncio.create_task(subscription.get(5.0))
        await asyncio.sleep(0.01)
        live_bus.publish("a", {"type": "changed"})
        assert await waiting == {"type": "changed"}


async def test_a_full_subscription_loses_its_oldest_messages_and_blocks_no_publisher(
    live_bus: EventBus,
) -> None:
    with live_bus.subscribe("a") as subscription:
        for number in range(10_000):
            live_bus.publish("a", {"type": "progress", "step": number})
        received = []
        while (message := await subscription.get(0.02)) is not None:
            received.append(message["step"])
    assert received[-1] == 9_999
    assert received == list(range(received[0], 10_000)), "only the oldest are lost"


async def test_a_topic_is_watched_while_it_has_subscriptions(live_bus: EventBus) -> None:
    assert not live_bus.is_watched("a")
    with live_bus.subscribe("a"):
        with live_bus.subscribe("a"):
            assert live_bus.is_watched("a")
        assert live_bus.is_watched("a"), "the outer subscription remains"
    assert not live_bus.is_watched("a")


async def test_the_latest_progress_is_kept_until_the_status_changes(live_bus: EventBus) -> None:
    topic = job_topic("job-1")
    for step in (1, 2):
        live_bus.publish(topic, {"type": "progress", "step": step})
    live_bus.publish(topic, {"type": "preview", "index": 0})
    assert live_bus.latest_progress("job-1") == {"type": "progress", "step": 2}
    assert live_bus.latest_progress("job-2") is None
    live_bus.publish(topic, {"type": "changed"})
    assert live_bus.latest_progress("job-1") is None
