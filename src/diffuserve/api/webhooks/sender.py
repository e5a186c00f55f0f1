"""Delivery of webhook messages from the outbox, signed after Standard Webhooks 1.0.0.

Delivery is at least once: an attempt whose outcome could not be stored is repeated with the same
`webhook-id`.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpcore
import orjson
from standardwebhooks import Webhook as Signature

from diffuserve.api.config import ApiConfig
from diffuserve.api.outbound.guarded_http import MAX_CONNECTIONS, AddressNotAllowed, GuardedHttpClient
from diffuserve.api.resources.message_forms import MessageForms
from diffuserve.api.resources.serializers import JobSerializer, batch_resource
from diffuserve.domain.errors import DiffuserveError, NotFound
from diffuserve.domain.jobs.file_batch import batch_id_of
from diffuserve.domain.jobs.video_ids import video_id_of
from diffuserve.domain.jobs.webhook import (
    VIDEO_EVENTS,
    Delivery,
    DeliveryAttempt,
    DueDelivery,
    WebhookEvent,
)
from diffuserve.domain.resources.batch import BatchResource
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.resources.webhook import DeletedSubject, OpenAISubject, WebhookMessage
from diffuserve.domain.text.timestamps import to_rfc3339
from diffuserve.events.base import OUTBOX, EventBus, Subscription
from diffuserve.jobs.policy.webhook_turns import SendLimits
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.log_fields import once_a_minute
from diffuserve.telemetry.metrics import ControlMetrics
from diffuserve.telemetry.redaction import summary

log = logging.getLogger(__name__)

# Beyond the receiver's own timeout, for reading what is sent and for storing the outcome while the database
# is slow. A sender that was killed delays its messages by both.
_LEASE_MARGIN_SECONDS = 40.0
_GATHER_SECONDS = 0.02  # in which events are collected, to be handled together
_UNREACHABLE = (
    OSError,
    TimeoutError,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
)
_MAX_REASON_CHARACTERS = 300


@dataclass(frozen=True)
class SenderParts:
    """Parts that messages are read from, made with and counted by."""

    store: JobStore
    bus: EventBus
    config: ApiConfig
    metrics: ControlMetrics
    serializer: JobSerializer
    forms: MessageForms


class WebhookSender:
    """Delivers messages beside the API; any number of replicas share the work."""

    def __init__(self, parts: SenderParts, http: GuardedHttpClient) -> None:
        self._parts = parts
        self._http = http
        self._limits = SendLimits(total=MAX_CONNECTIONS)
        self._in_flight: dict[str, Delivery] = {}  # by id
        self._tasks: set[asyncio.Task[None]] = set()
        self._attempt_ended = asyncio.Event()

    async def run(self) -> None:
        """Deliver until canceled; attempts in flight are then aborted, and repeated later."""
        try:
            with self._parts.bus.subscribe(OUTBOX) as hints:
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
            asyncio.ensure_future(hints.get(self._parts.config.poll_seconds)),
            asyncio.ensure_future(self._attempt_ended.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(_GATHER_SECONDS)
        finally:
            for wait in waits:
                wait.cancel()

    async def _start_due(self) -> bool:
        """Start the attempts that are due, within the limits; return whether there were any."""
        webhooks = self._parts.store.webhooks
        try:
            chosen = await webhooks.find_due(self._in_flight.values(), self._limits)
            ids = [delivery.id for delivery in chosen]
            due_deliveries = await webhooks.take(ids, self._lease_seconds) if ids else []
        except DiffuserveError as error:
            log.warning("the outbox cannot be read (%s); trying again", error, extra=once_a_minute())
            return False
        except Exception:  # without a sender, messages would wait until the next start
            log.exception("the outbox cannot be read; trying again")
            return False
        for due in due_deliveries:
            self._in_flight[due.delivery.id] = due.delivery
            self._start(self._deliver(due))
        # Another sender may have taken them first; there may be more behind them.
        return bool(chosen)

    @property
    def _lease_seconds(self) -> float:
        """Seconds for which no other sender gets a delivery: longer than any attempt may take."""
        return self._parts.config.webhook_timeout_seconds + _LEASE_MARGIN_SECONDS

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, due: DueDelivery) -> None:
        try:
            attempt = await self._attempt(due)
            self._parts.metrics.webhook_attempts.labels(_outcome(attempt)).inc()
            await self._parts.store.webhooks.record(attempt)
        except Exception:  # it becomes due again; an error must not stop other deliveries
            log.exception("webhook %s could not be attempted", due.delivery.id)
        finally:
            del self._in_flight[due.delivery.id]
            self._attempt_ended.set()

    async def _attempt(self, due: DueDelivery) -> DeliveryAttempt:
        delivery = due.delivery
        body = orjson.dumps(await self._message(delivery))
        headers = await self._headers(due, body)
        try:
            status = await self._http.post(
                due.endpoint.url, headers, body, self._parts.config.webhook_timeout_seconds
            )
        except _UNREACHABLE as error:
            # Its message may quote what the receiver sent, and that may quote the URL and the job.
            log.info("webhook %s to %s failed: %s", delivery.id, due.endpoint.id, summary(error))
            return DeliveryAttempt(delivery.id, None, _reason(error))
        return DeliveryAttempt(delivery.id, status, _status_reason(status))

    async def _headers(self, due: DueDelivery, body: bytes) -> dict[str, str]:
        now = datetime.now(UTC)
        secrets = await self._parts.store.webhooks.signing_secrets(due.endpoint.tenant_id)
        signatures = [Signature(secret).sign(due.delivery.id, now, body.decode()) for secret in secrets]
        return {
            "content-type": "application/json",
            "user-agent": f"diffuserve/{self._parts.config.version}",
            "webhook-id": due.delivery.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }

    async def _message(self, delivery: Delivery) -> WebhookMessage | Mapping[str, Any]:
        """Build the message from the subject's current state, so that the URLs in it are fresh."""
        try:
            if form := self._parts.forms.by_name.get(delivery.form):
                job = await self._parts.store.jobs.get(delivery.subject_id)
                return await form(job, delivery.base_url)
            subject = await self._subject(delivery)
        except NotFound:  # retention or a client has deleted it; that it ended is still worth a message
            subject = DeletedSubject(id=delivery.subject_id, status=delivery.type.partition(".")[2])
        return WebhookMessage(
            id=delivery.id,
            type=delivery.type,
            created_at=int(delivery.created_at),
            timestamp=to_rfc3339(delivery.created_at),
            data=subject,
        )

    async def _subject(
        self, delivery: Delivery
    ) -> JobResource | BatchResource | DeletedSubject | OpenAISubject:
        store = self._parts.store
        if batch_id_of(delivery.subject_id) is not None:
            return OpenAISubject(id=delivery.subject_id)
        if delivery.type in VIDEO_EVENTS:
            return OpenAISubject(id=video_id_of(delivery.subject_id))
        if delivery.type is WebhookEvent.BATCH_COMPLETED:
            return batch_resource(await store.batches.get(delivery.subject_id), delivery.base_url)
        job = await store.jobs.get(delivery.subject_id)
        return await self._parts.serializer.listed_job(job, delivery.base_url)


def _outcome(attempt: DeliveryAttempt) -> str:
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
