"""The event bus of several control planes, over a single pub/sub channel of Valkey (or Redis).

Messages are notifications that may be lost, so none is repeated, stored or acknowledged. While Valkey is
unavailable each control plane serves its own subscribers, which find the changes of others by polling.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import orjson
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from diffuserve.backoff import Backoff, RestartPolicy, supervise
from diffuserve.events.base import Subscription
from diffuserve.events.memory import MemoryEventBus
from diffuserve.events.send_buffer import SendBuffer

log = logging.getLogger(__name__)

_MAX_BUFFER_BYTES = 8 << 20
_HEARTBEAT_SECONDS = 2.0
_WATCH_SECONDS = 3 * _HEARTBEAT_SECONDS
_SILENCE_SECONDS = 2 * _HEARTBEAT_SECONDS
_TIMEOUT_SECONDS = 1.0
_RECONNECTS = RestartPolicy(
    Backoff(first_seconds=0.1, longest_seconds=1.0, jitter=0.5), healthy_seconds=2 * _TIMEOUT_SECONDS
)
_ID_BYTES = 16

Item = tuple[str, dict[str, Any] | None]
"""A topic with a message, or with `None` if the sender has subscriptions to it."""


class ValkeyEventBus:
    """Serves local subscribers at once; a background task sends the messages to other control planes.

    A Valkey message is the sender's id and a list of items. Each heartbeat lists the topics with local
    subscriptions, so that previews, which are large, are sent only while another control plane has a
    subscription. The sender also receives its own heartbeat, which shows that it is connected.
    """

    def __init__(self, url: str) -> None:
        """`url` is `redis://…` or `rediss://…`. Control planes with the same database number share a bus."""
        self._url = url
        self._channel = f"diffuserve:{urlsplit(url).path.strip('/') or '0'}:events"
        self._id = secrets.token_hex(_ID_BYTES // 2).encode()
        self._local = MemoryEventBus()
        self._send_buffer = SendBuffer(_MAX_BUFFER_BYTES)
        self._announced: set[str] = set()
        self._watched_elsewhere: dict[str, float] = {}
        self._is_connected = False
        self._was_tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Return once the first attempt to connect has succeeded or failed."""
        self._task = asyncio.create_task(self._stay_connected(), name="event-bus")
        await self._was_tried.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    @property
    def is_connected(self) -> bool:
        """True while the bus receives its own heartbeats."""
        return self._is_connected

    @property
    def num_dropped(self) -> int:
        """Number of messages that were not sent to other control planes."""
        return self._send_buffer.num_dropped

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        """Deliver `message` to local subscriptions, and queue it for other control planes."""
        self._local.publish(topic, message)
        if message.get("type") != "preview" or self._is_watched_elsewhere(topic):
            self._send(topic, dict(message))

    def subscribe(self, topic: str) -> Subscription:
        """Return a subscription, and announce the topic to other control planes."""
        self._announce(topic)
        return self._local.subscribe(topic)

    def listen(
        self, topic: str, listener: Callable[[Mapping[str, Any]], None]
    ) -> AbstractContextManager[object]:
        """Call `listener` with each message on the topic while the context is open; announce the topic."""
        self._announce(topic)
        return self._local.listen(topic, listener)

    def is_watched(self, topic: str) -> bool:
        """Return whether the topic has subscriptions at any control plane."""
        return self._local.is_watched(topic) or self._is_watched_elsewhere(topic)

    def latest_progress(self, job_id: str) -> Mapping[str, Any] | None:
        """Return the newest `progress` message of a running job; `None` once its status has changed."""
        return self._local.latest_progress(job_id)

    def _announce(self, topic: str) -> None:
        if self._is_connected and topic not in self._announced:
            self._announced.add(topic)
            self._send(topic, None)

    def _is_watched_elsewhere(self, topic: str) -> bool:
        return self._watched_elsewhere.get(topic, 0.0) > time.monotonic()

    def _send(self, topic: str, message: dict[str, Any] | None) -> None:
        """Queue an item, or drop it while disconnected: it would be outdated after reconnecting."""
        if self._is_connected:
            self._send_buffer.put(_item(topic, message))
        else:
            self._send_buffer.num_dropped += 1

    async def _stay_connected(self) -> None:
        await supervise(self._session, _RECONNECTS)

    async def _session(self) -> None:
        """Stay connected until the connection breaks."""
        try:
            await self._connect()
        except* (RedisError, OSError) as errors:
            self._disconnected(errors.exceptions[0])

    async def _connect(self) -> None:
        """Send and receive. Raise a group of `RedisError` or `OSError` once the connection breaks."""
        async with _client(self._url) as client, client.pubsub() as pubsub:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await pubsub.subscribe(self._channel)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._receive_all(pubsub))
                group.create_task(self._send_all(client))

    async def _receive_all(self, pubsub: PubSub) -> None:
        while True:
            received = await pubsub.get_message(timeout=_SILENCE_SECONDS)
            if received is None:
                raise TimeoutError("no heartbeat arrived, not even its own")
            if received["type"] == "message":
                self._handle(received["data"])

    def _handle(self, message: bytes) -> None:
        sender, content = message[:_ID_BYTES], message[_ID_BYTES:]
        if sender == self._id:
            self._connected()
            return
        for topic, published in _parse_items(content):
            if published is None:
                self._watched_elsewhere[topic] = time.monotonic() + _WATCH_SECONDS
            else:
                self._local.publish(topic, published)

    async def _send_all(self, client: Redis) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            heartbeat_at = clock() + _HEARTBEAT_SECONDS
            await self._send_items(client, self._heartbeat())
            while (remaining := heartbeat_at - clock()) > 0:
                if items := await self._send_buffer.take(remaining):
                    await self._send_items(client, items)

    async def _send_items(self, client: Redis, items: list[bytes]) -> None:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await client.publish(self._channel, self._id + b"[" + b",".join(items) + b"]")

    def _heartbeat(self) -> list[bytes]:
        """Return an item for each topic with local subscriptions; forget those of others that expired."""
        now = time.monotonic()
        self._watched_elsewhere = {
            topic: until for topic, until in self._watched_elsewhere.items() if until > now
        }
        self._announced = set(self._local.subscriptions)
        return [_item(topic, None) for topic in self._announced]

    def _connected(self) -> None:
        if not self._is_connected and self._was_tried.is_set():
            log.info("the event bus at %s is available again", urlsplit(self._url).hostname)
        self._is_connected = True
        self._was_tried.set()

    def _disconnected(self, error: BaseException) -> None:
        if self._is_connected or not self._was_tried.is_set():
            log.warning(
                "the event bus at %s is unavailable (%s); changes elsewhere are found by polling",
                urlsplit(self._url).hostname,
                str(error) or "timeout",
            )
        self._is_connected = False
        self._was_tried.set()
        self._send_buffer.clear()


def _client(url: str) -> Redis:
    """Return a client without retries, as an item that failed is outdated, and without timeouts.

    The client's own timeouts may swallow a cancellation before Python 3.12.
    """
    return Redis.from_url(
        url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None, socket_connect_timeout=None
    )


def _item(topic: str, message: dict[str, Any] | None) -> bytes:
    return orjson.dumps((topic, message))


def _parse_items(content: bytes) -> list[Item]:
    """Return the items of a message; `[]` if no control plane has written it."""
    try:
        items = orjson.loads(content)
        return [(str(topic), message) for topic, message in items if message is None or "type" in message]
    except (ValueError, TypeError):
        return []
