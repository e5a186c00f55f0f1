"""The outbox of webhooks: deliveries, written in the transaction of the change that they report.

Whichever control plane looks first sends them. Retry times follow Standard Webhooks 1.0.0
(https://www.standardwebhooks.com).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import sqlalchemy as sa

from diffuserve.backoff import jitter
from diffuserve.domain.codec import from_json
from diffuserve.domain.errors import Conflict, DeliveryNotFound, DiffuserveError, EndpointNotFound
from diffuserve.domain.jobs.webhook import (
    Delivery,
    DeliveryAttempt,
    DeliveryStatus,
    DueDelivery,
    Webhook,
    WebhookEndpoint,
    WebhookEvent,
)
from diffuserve.domain.text.timed_ids import timed_id
from diffuserve.events.base import OUTBOX
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import Command, SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.webhooks.delivered import note_delivered
from diffuserve.jobs.webhooks.records import delivery_of, endpoint_of

endpoints, deliveries = schema.webhook_endpoints, schema.webhook_deliveries

_DAY = 86_400.0
_MEMORY_SECONDS = 7 * _DAY  # retention of ended deliveries, and of endpoints without any
_DISABLED_MEMORY_SECONDS = 30 * _DAY
_GIVE_UP_SECONDS = 14 * _DAY  # retries take three days; what waits longer has found no place to be sent
_JITTER = 0.1
_SAVED = ("status", "num_attempts", "next_at", "last_attempt_at", "last_status", "last_error")
_SAVE = (
    sa.update(deliveries)
    .where(deliveries.c.id == sa.bindparam("delivery_id"))
    .values({name: sa.bindparam(f"new_{name}") for name in _SAVED})
)


@dataclass(frozen=True)
class WebhookNotice:
    """An event that a tenant may want to receive; `webhook` is the JSON text that is stored."""

    tenant_id: str
    webhook: str
    event: WebhookEvent
    subject_id: str


def write(transaction: Transaction, notices: Iterable[WebhookNotice]) -> None:
    """Store a delivery for each notice whose webhook asks for its event."""
    parsed = [(notice, from_json(Webhook, notice.webhook)) for notice in notices]
    wanted = [(notice, webhook) for notice, webhook in parsed if notice.event in webhook.events]
    if not wanted:
        return
    known = _ensure_endpoints(transaction, {(notice.tenant_id, webhook.url) for notice, webhook in wanted})
    rows = [
        _delivery_row(notice, webhook, known[notice.tenant_id, webhook.url], transaction.now)
        for notice, webhook in wanted
    ]
    transaction.execute(sa.insert(deliveries), rows)
    transaction.publish(OUTBOX, {"type": "due"})


def forget(transaction: Transaction) -> None:
    """Delete deliveries that ended or were written long ago, and endpoints that have none left."""
    ended = sa.and_(
        deliveries.c.created_at <= transaction.now - _MEMORY_SECONDS, deliveries.c.next_at.is_(None)
    )
    given_up = deliveries.c.created_at <= transaction.now - _GIVE_UP_SECONDS
    transaction.execute(sa.delete(deliveries).where(sa.or_(ended, given_up)))
    has_deliveries = sa.exists().where(deliveries.c.endpoint_id == endpoints.c.id)
    is_old = endpoints.c.created_at <= transaction.now - _MEMORY_SECONDS
    # One that said 410 is remembered for longer: forgotten, it would get messages again.
    is_enabled = sa.or_(
        endpoints.c.disabled_at.is_(None),
        endpoints.c.disabled_at <= transaction.now - _DISABLED_MEMORY_SECONDS,
    )
    transaction.execute(sa.delete(endpoints).where(is_old, is_enabled, ~has_deliveries))


@dataclass(frozen=True)
class TakeDeliveries(SingleCommand[list[DueDelivery]]):
    """Return those of the deliveries that are still due; no other sender gets them for `lease_seconds`."""

    delivery_ids: Collection[str]
    lease_seconds: float

    def apply(self, transaction: Transaction) -> list[DueDelivery]:
        is_due = sa.and_(deliveries.c.id.in_(self.delivery_ids), deliveries.c.next_at <= transaction.now)
        leased = sa.update(deliveries).where(is_due).values(next_at=transaction.now + self.lease_seconds)
        rows = transaction.rows(leased.returning(*deliveries.c))
        taken = {row.id: delivery_of(row) for row in rows}
        endpoint_ids = {delivery.endpoint_id for delivery in taken.values()}
        found = transaction.rows(sa.select(endpoints).where(endpoints.c.id.in_(endpoint_ids)))
        known = {row.id: endpoint_of(row) for row in found}
        in_order = [taken[delivery_id] for delivery_id in self.delivery_ids if delivery_id in taken]
        return [DueDelivery(delivery, known[delivery.endpoint_id]) for delivery in in_order]


@dataclass(frozen=True)
class RecordAttempt(Command[None]):
    """Store the result of an attempt, and when the next one is due, if any.

    A result that is recorded twice counts as two attempts, which only makes the next pause longer.
    """

    attempt: DeliveryAttempt

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[None]:
        attempts = [command.attempt for command in commands]
        found = _by_id(transaction, [attempt.delivery_id for attempt in attempts])
        known = [attempt for attempt in attempts if attempt.delivery_id in found]
        rows = [_after(found[attempt.delivery_id], attempt, transaction) for attempt in known]
        if rows:
            transaction.execute(_SAVE, rows)
        note_delivered(
            transaction, {found[each.delivery_id].subject_id for each in known if each.is_delivered}
        )
        gone = {found[attempt.delivery_id].endpoint_id for attempt in known if attempt.is_gone}
        _disable(transaction, gone)
        return [None] * len(commands)


@dataclass(frozen=True)
class Redeliver(SingleCommand[Delivery]):
    """Send a delivery again, with all its attempts. The outcome is `Conflict` if its endpoint is disabled.

    `tenant_id` is the endpoint's tenant, or `None` for any.
    """

    endpoint_id: str
    delivery_id: str
    tenant_id: str | None = None

    def apply(self, transaction: Transaction) -> Delivery | DiffuserveError:
        endpoint = _find_endpoint(transaction, self.endpoint_id, self.tenant_id)
        delivery = _by_id(transaction, [self.delivery_id]).get(self.delivery_id)
        if endpoint is None or delivery is None or delivery.endpoint_id != endpoint.id:
            return DeliveryNotFound(f"no delivery {self.delivery_id} of webhook {self.endpoint_id}")
        if endpoint.disabled_at is not None:
            return Conflict(f"webhook {endpoint.id} is disabled, since it responded 410; enable it first")
        fresh = {"num_attempts": 0, "status": DeliveryStatus.PENDING, "next_at": transaction.now}
        transaction.execute(sa.update(deliveries).where(deliveries.c.id == delivery.id).values(fresh))
        transaction.publish(OUTBOX, {"type": "due"})
        return _by_id(transaction, [delivery.id])[delivery.id]


@dataclass(frozen=True)
class EnableEndpoint(SingleCommand[WebhookEndpoint]):
    """Send messages to an endpoint again; those that it missed are sent when they are redelivered."""

    endpoint_id: str
    tenant_id: str | None = None

    def apply(self, transaction: Transaction) -> WebhookEndpoint | DiffuserveError:
        if _find_endpoint(transaction, self.endpoint_id, self.tenant_id) is None:
            return EndpointNotFound(f"no webhook {self.endpoint_id}")
        enabled = sa.update(endpoints).where(endpoints.c.id == self.endpoint_id).values(disabled_at=None)
        (row,) = transaction.rows(enabled.returning(*endpoints.c))
        return endpoint_of(row)


def _ensure_endpoints(
    transaction: Transaction, urls: Collection[tuple[str, str]]
) -> dict[tuple[str, str], WebhookEndpoint]:
    """Return the endpoints of these tenants and URLs, storing those that are new."""
    rows = [
        {
            "id": timed_id("wh_"),
            "tenant_id": tenant_id,
            "url": url,
            "created_at": transaction.now,
        }
        for tenant_id, url in sorted(urls)
    ]
    insert = transaction.upsert(endpoints)
    transaction.execute(insert.on_conflict_do_nothing(index_elements=["tenant_id", "url"]), rows)
    is_wanted = sa.tuple_(endpoints.c.tenant_id, endpoints.c.url).in_(sorted(urls))
    found = [endpoint_of(row) for row in transaction.rows(sa.select(endpoints).where(is_wanted))]
    return {(endpoint.tenant_id, endpoint.url): endpoint for endpoint in found}


def _delivery_row(
    notice: WebhookNotice, webhook: Webhook, endpoint: WebhookEndpoint, now: float
) -> dict[str, Any]:
    is_disabled = endpoint.disabled_at is not None
    return {
        "id": timed_id("msg_"),
        "endpoint_id": endpoint.id,
        "tenant_id": endpoint.tenant_id,
        "host": endpoint.host,
        "type": notice.event,
        "subject_id": notice.subject_id,
        "base_url": webhook.base_url,
        "form": webhook.form,
        "status": DeliveryStatus.SKIPPED if is_disabled else DeliveryStatus.PENDING,
        "created_at": now,
        "next_at": None if is_disabled else now,
    }


def _after(delivery: Delivery, attempt: DeliveryAttempt, transaction: Transaction) -> dict[str, Any]:
    """Return the parameters of `_SAVE` after an attempt."""
    num_attempts = delivery.num_attempts + 1
    status, next_at = _next(num_attempts, attempt, transaction)
    # Another delivery of the endpoint has disabled it during this attempt.
    if delivery.status is DeliveryStatus.SKIPPED and next_at is not None:
        status, next_at = DeliveryStatus.SKIPPED, None
    return {
        "delivery_id": delivery.id,
        "new_status": status,
        "new_num_attempts": num_attempts,
        "new_next_at": next_at,
        "new_last_attempt_at": transaction.now,
        "new_last_status": attempt.status,
        "new_last_error": attempt.error,
    }


def _next(
    num_attempts: int, attempt: DeliveryAttempt, transaction: Transaction
) -> tuple[DeliveryStatus, float | None]:
    """Return the delivery's status after `num_attempts`, and when the next attempt is due, if any."""
    pauses = transaction.config.webhook_retry_seconds
    if attempt.is_delivered:
        return DeliveryStatus.DELIVERED, None
    if attempt.is_gone or num_attempts > len(pauses):
        return DeliveryStatus.FAILED, None
    pause = pauses[num_attempts - 1] * jitter(1, 1 + _JITTER)
    return DeliveryStatus.PENDING, transaction.now + pause


def _disable(transaction: Transaction, endpoint_ids: Collection[str]) -> None:
    """Send nothing more to these endpoints, and skip their pending deliveries."""
    if not endpoint_ids:
        return
    ids = sorted(endpoint_ids)
    disabled = sa.update(endpoints).where(endpoints.c.id.in_(ids))
    transaction.execute(disabled.values(disabled_at=transaction.now))
    is_pending = sa.and_(deliveries.c.endpoint_id.in_(ids), deliveries.c.status == DeliveryStatus.PENDING)
    skipped = sa.update(deliveries).where(is_pending).values(status=DeliveryStatus.SKIPPED, next_at=None)
    transaction.execute(skipped)


def _find_endpoint(
    transaction: Transaction, endpoint_id: str, tenant_id: str | None
) -> WebhookEndpoint | None:
    rows = transaction.rows(sa.select(endpoints).where(endpoints.c.id == endpoint_id))
    if not rows or tenant_id not in (None, rows[0].tenant_id):
        return None
    return endpoint_of(rows[0])


def _by_id(transaction: Transaction, delivery_ids: Collection[str]) -> dict[str, Delivery]:
    wanted = sa.select(deliveries).where(deliveries.c.id.in_(list(delivery_ids)))
    return {row.id: delivery_of(row) for row in transaction.rows(wanted)}
