"""Delivery of webhook messages from the outbox, signed after Standard Webhooks 1.0.0.

Delivery is at least once: an attempt whose outcome could not be stored is repeated with the same
`webhook-id`.
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

from diffuserve.api.serializers import batch_resource
from diffuserve.api.services import Services
from diffuserve.api.webhooks.guarded_http import AddressNotAllowed, GuardedHttpClient
from diffuserve.domain.errors import DiffuserveError, NotFound
from diffuserve.domain.resources.batch import BatchResource
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.resources.webhook import DeletedSubject, WebhookMessage
from diffuserve.domain.timestamps import to_rfc3339
from diffuserve.domain.webhook import Attempt, Delivery, DueDelivery, WebhookEvent
from diffuserve.events.base import OUTBOX, Subscription
from diffuserve.jobs.webhooks.outbox import MAX_AT_ONCE_PER_ENDPOINT

log = logging.getLogger(__name__)

_MAX_IN_FLIGHT = 64
_UNREACHABLE = (
    OSError,
    TimeoutError,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
)
_MAX_REASON_CHARACTERS = 300


class WebhookSender:
    """Delivers messages beside the API; any number of replicas share the work."""

    def __init__(self, services: Services, http: GuardedHttpClient) -> None:
        self._services = services
        self._http = http
        self._num_in_flight: Counter[str] = Counter()  # by endpoint
        self._tasks: set[asyncio.Task[None]] = set()
        self._attempt_ended = asyncio.Event()

    async def run(self) -> None:
        """Deliver until canceled; attempts in flight are then aborted, and repeated later."""
        try:
            with self._services.bus.subscribe(OUTBOX) as hints:
                while True:
                    self._attempt_ended.clear()
                    if not await self._start_due():
                        await self._wait_for_work(hints)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait_for_work(self, hints: Subscription) -> None:
        """Wait for a new message, for the end of an attempt, or for the next poll."""
        waits = [
            asyncio.ensure_future(hints.get(self._services.config.poll_seconds)),
            asyncio.ensure_future(self._attempt_ended.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _start_due(self) -> bool:
        """Start the attempts that are due, within the limits; return whether there were any."""
        room = _MAX_IN_FLIGHT - self._num_in_flight.total()
        busy = frozenset(
            endpoint_id
            for endpoint_id, count in self._num_in_flight.items()
            if count >= MAX_AT_ONCE_PER_ENDPOINT
        )
        try:
            due_deliveries = await self._services.store.webhooks.take_due(room, busy) if room > 0 else []
        except DiffuserveError as error:
            log.warning("the outbox cannot be read (%s); trying again", error)
            return False
        for due in due_deliveries:
            self._num_in_flight[due.endpoint.id] += 1
            self._start(self._deliver(due))
        return bool(due_deliveries)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, due: DueDelivery) -> None:
        try:
            attempt = await self._attempt(due)
            self._services.metrics.webhook_attempts.labels(_outcome(attempt)).inc()
            await self._services.store.webhooks.record(attempt)
        except Exception:  # it becomes due again; an error must not stop other deliveries
            log.exception("webhook %s could not be attempted", due.delivery.id)
        finally:
            self._num_in_flight[due.endpoint.id] -= 1
            if self._num_in_flight[due.endpoint.id] == 0:
                del self._num_in_flight[due.endpoint.id]
            self._attempt_ended.set()

    async def _attempt(self, due: DueDelivery) -> Attempt:
        delivery = due.delivery
        body = orjson.dumps(await self._message(delivery))
        headers = await self._headers(due, body)
        try:
            status = await self._http.post(
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
        signatures = [Signature(secret).sign(due.delivery.id, now, body.decode()) for secret in secrets]
        return {
            "content-type": "application/json",
            "user-agent": f"diffuserve/{self._services.config.version}",
            "webhook-id": due.delivery.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }

    async def _message(self, delivery: Delivery) -> WebhookMessage:
        """Build the message from the subject's current state, so that the URLs in it are fresh."""
        try:
            subject = await self._subject(delivery)
        except NotFound:  # retention or a client has deleted it; that it ended is still worth a message
            subject = DeletedSubject(id=delivery.subject_id, status=delivery.type.partition(".")[2])
        return WebhookMessage(type=delivery.type, timestamp=to_rfc3339(delivery.created_at), data=subject)

    async def _subject(self, delivery: Delivery) -> JobResource | BatchResource | DeletedSubject:
        store = self._services.store
        if delivery.type is WebhookEvent.BATCH_COMPLETED:
            return batch_resource(await store.batches.get(delivery.subject_id), delivery.base_url)
        job = await store.jobs.get(delivery.subject_id)
        return await self._services.serializer.listed_job(job, delivery.base_url)


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
        return f"responded with {status}; redirects are not followed"
    return f"responded with {status}"


def _reason(error: Exception) -> str:
    if isinstance(error, AddressNotAllowed):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no response in time"
    return f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARACTERS]
