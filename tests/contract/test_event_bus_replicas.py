"""The event buses of two control planes on the same Valkey, and without it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from diffuserve.events import valkey as module
from diffuserve.events.base import EventBus, Subscription, job_topic
from diffuserve.events.send_buffer import SendBuffer
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_bus
from support.valkey import ValkeyServer
from support.waiting import HANG_SECONDS, eventually

TOPIC = job_topic("job-1")
CHANGED = {"type": "changed"}
PREVIEW = {"type": "preview", "index": 0, "b64": "AAAA"}


@pytest.fixture
def silence_seconds() -> float:
    """Return the silence after which a server counts as away; a busy machine does not reach it."""
    return HANG_SECONDS


@pytest.fixture
async def buses(
    own_valkey: ValkeyServer, silence_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[EventBus, EventBus]]:
    monkeypatch.setattr(module, "_SILENCE_SECONDS", silence_seconds)
    settings = Settings(valkey_url=own_valkey.url)
    async with open_bus(settings) as one, open_bus(settings) as two:
        yield one, two


async def received(subscription: Subscription, count: int) -> list[Mapping[str, Any] | None]:
    """Return the next `count` messages, and one more if it comes soon."""
    messages = [await subscription.get(HANG_SECONDS) for _ in range(count)]
    extra = await subscription.get(0.1)
    return messages if extra is None else [*messages, extra]


async def test_messages_reach_the_other_control_plane_once_and_in_order(
    buses: tuple[EventBus, EventBus],
) -> None:
    one, two = buses
    with one.subscribe(TOPIC) as at_one, two.subscribe(TOPIC) as at_two, two.subscribe("other") as other:
        for step in range(50):
            one.publish(TOPIC, {"type": "progress", "step": step})
        assert (
            await received(at_two, 50)
            == await received(at_one, 50)
            == [{"type": "progress", "step": step} for step in range(50)]
        )
        two.publish(TOPIC, CHANGED)
        assert await received(at_one, 1) == await received(at_two, 1) == [CHANGED]
        assert await other.get(0.0) is None


async def test_progress_is_known_everywhere_without_subscriptions(buses: tuple[EventBus, EventBus]) -> None:
    one, two = buses
    one.publish(TOPIC, {"type": "progress", "step": 3})
    await eventually(lambda: two.latest_progress("job-1") == {"type": "progress", "step": 3})
    one.publish(TOPIC, CHANGED)
    await eventually(lambda: two.latest_progress("job-1") is None)


async def test_previews_are_sent_only_while_there_are_subscriptions(
    buses: tuple[EventBus, EventBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    put = SendBuffer.put

    def note(self: SendBuffer, item: bytes) -> None:
        sent.append(item)
        put(self, item)

    monkeypatch.setattr(SendBuffer, "put", note)
    one, two = buses
    one.publish(TOPIC, PREVIEW)
    assert not any(b"preview" in item for item in sent)
    with two.subscribe(TOPIC) as watching:
        await eventually(lambda: one.is_watched(TOPIC))
        one.publish(TOPIC, PREVIEW)
        assert await watching.get(HANG_SECONDS) == PREVIEW


async def test_a_control_plane_that_starts_later_learns_the_watched_topics(
    own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HEARTBEAT_SECONDS", 0.1)
    settings = Settings(valkey_url=own_valkey.url)
    async with open_bus(settings) as one:
        with one.subscribe(TOPIC):
            async with open_bus(settings) as late:
                await eventually(lambda: late.is_watched(TOPIC))


async def test_topics_without_subscriptions_expire(
    own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HEARTBEAT_SECONDS", 0.1)  # repeated, lest a busy machine forgets it unseen
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.5)
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(open_bus(Settings(valkey_url=own_valkey.url))) for _ in range(2)
        ]
        with two.subscribe(TOPIC):
            await eventually(lambda: one.is_watched(TOPIC))
        await eventually(lambda: not one.is_watched(TOPIC))


async def test_other_databases_of_a_server_are_separate_buses(own_valkey: ValkeyServer) -> None:
    async with (
        open_bus(Settings(valkey_url=own_valkey.url)) as one,
        open_bus(Settings(valkey_url=f"{own_valkey.url}/1")) as two,
    ):
        with two.subscribe(TOPIC) as subscription:
            one.publish(TOPIC, CHANGED)
            assert await subscription.get(0.2) is None


async def test_a_restarted_server_is_used_again(
    buses: tuple[EventBus, EventBus], own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=module.__name__)
    one, two = buses
    with one.subscribe(TOPIC) as at_one, two.subscribe(TOPIC) as at_two:
        own_valkey.kill()
        await eventually(lambda: not one.is_connected and not two.is_connected)
        before = one.num_dropped
        one.publish(TOPIC, CHANGED)
        assert await at_one.get(0.0) == CHANGED, "local subscribers still get it"
        assert one.num_dropped == before + 1
        own_valkey.start()
        await eventually(lambda: one.is_connected and two.is_connected)
        one.publish(TOPIC, {"type": "progress", "step": 1})
        assert await received(at_two, 1) == [{"type": "progress", "step": 1}], "the earlier message is lost"
    logged = [record.getMessage() for record in caplog.records]
    assert sum("is unavailable" in line for line in logged) == 2, "once for each bus"
    assert sum("is available again" in line for line in logged) == 2


@pytest.mark.parametrize("silence_seconds", [4.0])
async def test_publishing_never_waits_for_a_frozen_server(
    buses: tuple[EventBus, EventBus], own_valkey: ValkeyServer
) -> None:
    one, two = buses
    own_valkey.freeze()
    with one.subscribe(TOPIC) as mine:
        async with asyncio.timeout(HANG_SECONDS):  # it is frozen for as long as this loop runs
            while one.is_connected:
                one.publish(TOPIC, CHANGED)
                assert await mine.get(0.0) == CHANGED
                await asyncio.sleep(0.005)
        assert one.num_dropped > 0
        own_valkey.wake()
        await eventually(lambda: one.is_connected and two.is_connected)


async def test_invalid_messages_on_the_channel_are_ignored(
    buses: tuple[EventBus, EventBus], own_valkey: ValkeyServer
) -> None:
    from redis.asyncio import Redis

    one, two = buses
    sender = b"x" * 16
    async with Redis(port=own_valkey.port, protocol=2) as stranger:
        for garbage in (b"", b"x", b"not json", b"[1]", b'["ab"]', b'[["a",3]]', b"{}", b'[["a",{}]]'):
            assert await stranger.publish("diffuserve:0:events", sender + garbage) == 2
    with two.subscribe(TOPIC) as subscription:
        one.publish(TOPIC, CHANGED)
        assert await subscription.get(HANG_SECONDS) == CHANGED
    assert one.is_connected


async def test_a_bus_closes_at_once_while_the_server_is_frozen(own_valkey: ValkeyServer) -> None:
    async with asyncio.timeout(HANG_SECONDS), open_bus(Settings(valkey_url=own_valkey.url)) as bus:
        own_valkey.freeze()  # for the rest of the test
        bus.publish(TOPIC, CHANGED)
        await asyncio.sleep(0.05)
