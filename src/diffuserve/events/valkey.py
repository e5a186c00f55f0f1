"""The bus of several control planes: what one says, all hear, over one channel of Valkey (or Redis).

Only hints travel here, so nothing is sent twice, kept for later or waited for. While Valkey is away
each control plane serves its own subscribers; whoever waits for news from another finds it by looking.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
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
from diffuserve.events.unsent import Unsent

log = logging.getLogger(__name__)

_MAX_UNSENT_BYTES = 8 << 20
_BEAT_SECONDS = 2.0
_WATCH_SECONDS = 3 * _BEAT_SECONDS
_SILENCE_SECONDS = 2 * _BEAT_SECONDS
_ANSWER_SECONDS = 1.0
_RECONNECTS = RestartPolicy(
    Backoff(first_seconds=0.1, longest_seconds=1.0, jitter=0.5), healthy_seconds=2 * _ANSWER_SECONDS
)
_ID_BYTES = 16

Item = tuple[str, dict[str, Any] | None]
"""A topic and a message, or a topic that somebody watches here and `None`."""


class ValkeyEventBus:
    """Local subscribers are served at once; what they hear is sent on by a task of its own.

    A message is the sender's id and a list of items. Every beat tells the others which topics are
    watched here, so that previews, which are large, travel only while somebody watches; the sender
    hears its own beat as well, which shows that it is connected.
    """

    def __init__(self, url: str) -> None:
        """`url` is `redis://…` or `rediss://…`. Control planes of one database number hear each other."""
        self._url = url
        self._channel = f"diffuserve:{urlsplit(url).path.strip('/') or '0'}:events"
        self._id = secrets.token_hex(_ID_BYTES // 2).encode()
        self._local = MemoryEventBus()
        self._unsent = Unsent(_MAX_UNSENT_BYTES)
        self._announced: set[str] = set()
        self._watched_elsewhere: dict[str, float] = {}
        self._is_connected = False
        self._was_tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Wait for the first attempt to connect, however it ends."""
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
        return self._is_connected

    @property
    def num_dropped(self) -> int:
        return self._unsent.num_dropped

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        self._local.publish(topic, message)
        if message.get("type") != "preview" or self._is_watched_elsewhere(topic):
            self._send(topic, dict(message))

    def subscribe(self, topic: str) -> Subscription:
        if self._is_connected and topic not in self._announced:
            self._announced.add(topic)
            self._send(topic, None)
        return self._local.subscribe(topic)

    def is_watched(self, topic: str) -> bool:
        return self._local.is_watched(topic) or self._is_watched_elsewhere(topic)

    def latest_progress(self, job_id: str) -> Mapping[str, Any] | None:
        return self._local.latest_progress(job_id)

    def _is_watched_elsewhere(self, topic: str) -> bool:
        return self._watched_elsewhere.get(topic, 0.0) > time.monotonic()

    def _send(self, topic: str, message: dict[str, Any] | None) -> None:
        """A hint that cannot be sent now is not worth keeping."""
        if self._is_connected:
            self._unsent.put(_item(topic, message))
        else:
            self._unsent.num_dropped += 1

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
        async with _client(self._url) as client, client.pubsub() as ears:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await ears.subscribe(self._channel)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(ears))
                group.create_task(self._speak(client))

    async def _listen(self, ears: PubSub) -> None:
        while True:
            heard = await ears.get_message(timeout=_SILENCE_SECONDS)
            if heard is None:
                raise TimeoutError("not even its own beat is heard")
            if heard["type"] == "message":
                self._hear(heard["data"])

    def _hear(self, message: bytes) -> None:
        sender, content = message[:_ID_BYTES], message[_ID_BYTES:]
        if sender == self._id:
            self._connected()
            return
        for topic, said in _items(content):
            if said is None:
                self._watched_elsewhere[topic] = time.monotonic() + _WATCH_SECONDS
            else:
                self._local.publish(topic, said)

    async def _speak(self, client: Redis) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            beat_at = clock() + _BEAT_SECONDS
            await self._say(client, self._beat())
            while (left := beat_at - clock()) > 0:
                if items := await self._unsent.take(left):
                    await self._say(client, items)

    async def _say(self, client: Redis, items: list[bytes]) -> None:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await client.publish(self._channel, self._id + b"[" + b",".join(items) + b"]")

    def _beat(self) -> list[bytes]:
        now = time.monotonic()
        self._watched_elsewhere = {
            topic: until for topic, until in self._watched_elsewhere.items() if until > now
        }
        self._announced = set(self._local.subscriptions)
        return [_item(topic, None) for topic in self._announced]

    def _connected(self) -> None:
        if not self._is_connected and self._was_tried.is_set():
            log.info("the event bus at %s is back", urlsplit(self._url).hostname)
        self._is_connected = True
        self._was_tried.set()

    def _disconnected(self, error: BaseException) -> None:
        if self._is_connected or not self._was_tried.is_set():
            log.warning(
                "the event bus at %s is away (%s); what happens on other control planes is found by looking",
                urlsplit(self._url).hostname,
                str(error) or "no answer",
            )
        self._is_connected = False
        self._was_tried.set()
        self._unsent.clear()


def _client(url: str) -> Redis:
    """Without retries of its own, as what failed is outdated, and without timeouts of its own, as those
    may swallow a cancellation before Python 3.12."""
    return Redis.from_url(
        url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None, socket_connect_timeout=None
    )


def _item(topic: str, message: dict[str, Any] | None) -> bytes:
    return orjson.dumps((topic, message))


def _items(content: bytes) -> list[Item]:
    """None of what no control plane has written."""
    try:
        return [(str(topic), said) for topic, said in orjson.loads(content) if said is None or "type" in said]
    except (ValueError, TypeError):
        return []
