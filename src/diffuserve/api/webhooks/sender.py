"""Sends what the outbox holds, signed after Standard Webhooks 1.0.0.

At least once: a try whose end could not be stored is made again, with the same `webhook-id`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import httpcore
import orjson
from standardwebhooks import Webhook as Signature

from diffuserve.api.responses import rfc3339
from diffuserve.api.serializers import batch_document
from diffuserve.api.services import Services
from diffuserve.api.webhooks.guarded_http import AddressRefused, Outside
from diffuserve.domain.errors import DiffuserveError, NotFound
from diffuserve.domain.webhook import Attempt, Delivery, DueDelivery, WebhookEvent
from diffuserve.events.base import OUTBOX, Subscription
from diffuserve.jobs.webhooks.outbox import MAX_AT_ONCE_PER_ENDPOINT

log = logging.getLogger(__name__)

_AT_ONCE = 64
_UNREACHABLE = (
    OSError,
    TimeoutError,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
)
_MAX_REASON_CHARACTERS = 300


class WebhookSender:
    """Runs beside the API; any number of replicas share the work."""

    def __init__(self, services: Services, outside: Outside) -> None:
        self._services = services
        self._outside = outside
        self._in_flight: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; tries under way are then cut, and made again later."""
        try:
            with self._services.bus.subscribe(OUTBOX) as hints:
                while True:
                    self._freed.clear()
                    if not await self._begin_due():
                        await self._news(hints)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _news(self, hints: Subscription) -> None:
        """Wait until something was written, a try has ended, or it is time to look anyway."""
        waits = [
            asyncio.ensure_future(hints.get(self._services.config.look_seconds)),
            asyncio.ensure_future(self._freed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _begin_due(self) -> bool:
        """Whether there was anything to begin."""
        room = _AT_ONCE - self._in_flight.total()
        busy = frozenset(one for one, count in self._in_flight.items() if count >= MAX_AT_ONCE_PER_ENDPOINT)
        try:
            due = await self._services.store.webhooks.take_due(room, busy) if room > 0 else []
        except DiffuserveError as error:
            log.warning("the outbox cannot be read (%s); looking again", error)
            return False
        for one in due:
            self._in_flight[one.endpoint.id] += 1
            self._start(self._deliver(one))
        return bool(due)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, due: DueDelivery) -> None:
        try:
            attempt = await self._try(due)
            self._services.metrics.webhook_attempts.labels(_outcome(attempt)).inc()
            await self._services.store.webhooks.record(attempt)
        except Exception:  # it comes due again; the others go on
            log.exception("webhook %s could not be tried", due.delivery.id)
        finally:
            self._in_flight[due.endpoint.id] -= 1
            if self._in_flight[due.endpoint.id] == 0:
                del self._in_flight[due.endpoint.id]
            self._freed.set()

    async def _try(self, due: DueDelivery) -> Attempt:
        delivery = due.delivery
        body = orjson.dumps(await self._message(delivery))
        headers = await self._headers(due, body)
        try:
            status = await self._outside.post(
                due.endpoint.url, headers, body, self._services.config.webhook_timeout_seconds
            )
        except _UNREACHABLE as error:
            reason = _reason(error)
            log.info("webhook %s to %s failed: %s", delivery.id, due.endpoint.id, reason)
            return Attempt(delivery.id, None, reason)
        return Attempt(delivery.id, status, _status_reason(status))

    async def _headers(self, due: DueDelivery, body: bytes) -> dict[str, str]:
        now = datetime.now(UTC)
        secrets = await self._services.store.webhooks.signing_secrets(due.endpoint.tenant_id)
        signatures = [Signature(one).sign(due.delivery.id, now, body.decode()) for one in secrets]
        return {
            "content-type": "application/json",
            "user-agent": f"diffuserve/{self._services.config.version}",
            "webhook-id": due.delivery.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }

    async def _message(self, delivery: Delivery) -> dict[str, Any]:
        """As things are now: URLs in it open for as long as those of any answer do."""
        try:
            data = await self._subject(delivery)
        except NotFound:  # its time is over, or it was deleted; that it ended is still worth telling
            data = {"id": delivery.subject_id, "status": delivery.type.partition(".")[2]}
        return {"type": delivery.type, "timestamp": rfc3339(delivery.created_at), "data": data}

    async def _subject(self, delivery: Delivery) -> dict[str, Any]:
        store, documents = self._services.store, self._services.documents
        if delivery.type is WebhookEvent.BATCH_COMPLETED:
            return batch_document(await store.batches.get(delivery.subject_id), delivery.base_url)
        job = await store.jobs.get(delivery.subject_id)
        return await documents.listed_job(job, delivery.base_url)


def _outcome(attempt: Attempt) -> str:
    if attempt.status is None:
        return "unreachable"
    if attempt.is_gone:
        return "gone"
    return "delivered" if attempt.is_delivered else "refused"


def _status_reason(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"answered {status}; redirects are not followed"
    return f"answered {status}"


def _reason(error: Exception) -> str:
    if isinstance(error, AddressRefused):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARACTERS]
