"""The outbox of webhooks: written with the change that it tells of, emptied by whichever replica looks.

Retry times are those of Standard Webhooks 1.0.0 (https://www.standardwebhooks.com).
"""

import random
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, DeliveryNotFound, DiffuserveError, EndpointNotFound
from diffuserve.domain.webhook import (
    Attempt,
    Delivery,
    DeliveryStatus,
    DueDelivery,
    Endpoint,
    Webhook,
    WebhookEvent,
)
from diffuserve.events.base import OUTBOX
from diffuserve.jobs import schema
from diffuserve.jobs.database import Transaction

endpoints, deliveries = schema.webhook_endpoints, schema.webhook_deliveries

MAX_AT_ONCE_PER_ENDPOINT = 8
"""So that an endpoint that hangs holds up nobody else's messages."""

_TRY_SECONDS = 60.0  # after which a try that nobody told the end of is made again
_JITTER = 0.1
_FRESH: dict[str, Any] = {"num_attempts": 0, "status": DeliveryStatus.PENDING}


@dataclass(frozen=True)
class WebhookNotice:
    """Something that happened, of which a tenant wants to hear; `webhook` as it is stored."""

    tenant_id: str
    webhook: str
    event: WebhookEvent
    subject_id: str


@dataclass(frozen=True)
class Wish:
    """How many deliveries a sender could take on, and to which endpoints it should not have more."""

    limit: int
    busy: frozenset[str] = frozenset()


@dataclass(frozen=True)
class OwnDelivery:
    """A delivery of an endpoint; `tenant_id` is whose it must be, `None` for anybody's."""

    endpoint_id: str
    delivery_id: str
    tenant_id: str | None


@dataclass(frozen=True)
class OwnEndpoint:
    endpoint_id: str
    tenant_id: str | None


def dump_webhook(webhook: Webhook) -> str:
    return orjson.dumps(webhook).decode()


def load_webhook(text: str) -> Webhook:
    values = orjson.loads(text)
    events = tuple(WebhookEvent(one) for one in values["events"])
    return Webhook(values["url"], events, values["base_url"])


def write(transaction: Transaction, told: Iterable[WebhookNotice]) -> None:
    """Messages for those who asked for them."""
    wanted = [(one, webhook) for one in told if one.event in (webhook := load_webhook(one.webhook)).events]
    if not wanted:
        return
    known = _endpoints(transaction, {(one.tenant_id, webhook.url) for one, webhook in wanted})
    rows = [_row(one, webhook, known[one.tenant_id, webhook.url], transaction.now) for one, webhook in wanted]
    transaction.execute(sa.insert(deliveries), rows)
    transaction.notices.append((OUTBOX, {"type": "due"}))


def take_due(transaction: Transaction, wishes: Sequence[Wish]) -> Sequence[list[DueDelivery]]:
    """ResultReporter whose time has come; nobody else gets them while they are tried."""
    return [_take(transaction, wish) for wish in wishes]


def record(transaction: Transaction, attempts: Sequence[Attempt]) -> Sequence[None]:
    """What came of tries. One that is told twice counts twice, which does no harm."""
    found = _by_id(transaction, [one.delivery_id for one in attempts])
    tried = [(found[one.delivery_id], one) for one in attempts if one.delivery_id in found]
    if tried:
        transaction.execute(_SAVE, [_after(delivery, attempt, transaction) for delivery, attempt in tried])
    _disable(transaction, {delivery.endpoint_id for delivery, attempt in tried if attempt.is_gone})
    return [None] * len(attempts)


def redeliver(
    transaction: Transaction, wanted: Sequence[OwnDelivery]
) -> Sequence[Delivery | DiffuserveError]:
    """Try again from the first attempt on. Raises `Conflict` where the endpoint is disabled."""
    return [_redeliver(transaction, one) for one in wanted]


def enable(transaction: Transaction, wanted: Sequence[OwnEndpoint]) -> Sequence[Endpoint | DiffuserveError]:
    """Tell an endpoint again; what it missed is told when it is redelivered."""
    return [_enable(transaction, one) for one in wanted]


def forget(transaction: Transaction, older_than_seconds: float) -> None:
    """ResultReporter that ended, and were written so long ago."""
    since = transaction.now - older_than_seconds
    old = sa.and_(deliveries.c.created_at <= since, deliveries.c.next_at.is_(None))
    transaction.execute(sa.delete(deliveries).where(old))


def endpoint_of(row: sa.Row[Any]) -> Endpoint:
    return Endpoint(**{name: getattr(row, name) for name in Endpoint.__dataclass_fields__})


def delivery_of(row: sa.Row[Any]) -> Delivery:
    values = {name: getattr(row, name) for name in Delivery.__dataclass_fields__}
    values["type"], values["status"] = WebhookEvent(row.type), DeliveryStatus(row.status)
    return Delivery(**values)


_SAVE = (
    sa.update(deliveries)
    .where(deliveries.c.id == sa.bindparam("delivery_id"))
    .values(
        {
            name: sa.bindparam(f"new_{name}")
            for name in ("status", "num_attempts", "next_at", "last_attempt_at", "last_status", "last_error")
        }
    )
)


def _endpoints(
    transaction: Transaction, named: Collection[tuple[str, str]]
) -> dict[tuple[str, str], Endpoint]:
    """Those of the tenants and URLs, made where they are new."""
    rows = [
        {
            "id": f"wh_{secrets.token_hex(10)}",
            "tenant_id": tenant_id,
            "url": url,
            "created_at": transaction.now,
        }
        for tenant_id, url in sorted(named)
    ]
    insert = transaction.upsert(endpoints)
    transaction.execute(insert.on_conflict_do_nothing(index_elements=["tenant_id", "url"]), rows)
    pairs = sa.tuple_(endpoints.c.tenant_id, endpoints.c.url).in_(sorted(named))
    found = [endpoint_of(row) for row in transaction.rows(sa.select(endpoints).where(pairs))]
    return {(one.tenant_id, one.url): one for one in found}


def _row(told: WebhookNotice, webhook: Webhook, endpoint: Endpoint, now: float) -> dict[str, Any]:
    is_off = endpoint.disabled_at is not None
    return {
        "id": f"msg_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(7)}",
        "endpoint_id": endpoint.id,
        "type": told.event,
        "subject_id": told.subject_id,
        "base_url": webhook.base_url,
        "status": DeliveryStatus.SKIPPED if is_off else DeliveryStatus.PENDING,
        "created_at": now,
        "next_at": None if is_off else now,
    }


def _take(transaction: Transaction, wish: Wish) -> list[DueDelivery]:
    due = sa.select(deliveries).where(deliveries.c.next_at <= transaction.now)
    if wish.busy:
        due = due.where(deliveries.c.endpoint_id.not_in(sorted(wish.busy)))
    rows = transaction.rows(due.order_by(deliveries.c.next_at, deliveries.c.id).limit(wish.limit))
    taken = _few_of_each([delivery_of(row) for row in rows])
    if not taken:
        return []
    mine = sa.update(deliveries).where(deliveries.c.id.in_([one.id for one in taken]))
    transaction.execute(mine.values(next_at=transaction.now + _TRY_SECONDS))
    named = sa.select(endpoints).where(endpoints.c.id.in_({one.endpoint_id for one in taken}))
    known = {row.id: endpoint_of(row) for row in transaction.rows(named)}
    return [DueDelivery(one, known[one.endpoint_id]) for one in taken]


def _few_of_each(due: Iterable[Delivery]) -> list[Delivery]:
    counts: Counter[str] = Counter()
    chosen = []
    for one in due:
        counts[one.endpoint_id] += 1
        if counts[one.endpoint_id] <= MAX_AT_ONCE_PER_ENDPOINT:
            chosen.append(one)
    return chosen


def _after(delivery: Delivery, attempt: Attempt, transaction: Transaction) -> dict[str, Any]:
    num_attempts = delivery.num_attempts + 1
    status, next_at = _next(num_attempts, attempt, transaction)
    if delivery.status is DeliveryStatus.SKIPPED and next_at is not None:  # disabled while it was tried
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
    num_attempts: int, attempt: Attempt, transaction: Transaction
) -> tuple[DeliveryStatus, float | None]:
    pauses = transaction.config.webhook_retry_seconds
    if attempt.is_delivered:
        return DeliveryStatus.DELIVERED, None
    if attempt.is_gone or num_attempts > len(pauses):
        return DeliveryStatus.FAILED, None
    pause = pauses[num_attempts - 1] * (1 + _JITTER * random.random())
    return DeliveryStatus.PENDING, transaction.now + pause


def _disable(transaction: Transaction, endpoint_ids: Collection[str]) -> None:
    if not endpoint_ids:
        return
    ids = sorted(endpoint_ids)
    transaction.execute(
        sa.update(endpoints).where(endpoints.c.id.in_(ids)).values(disabled_at=transaction.now)
    )
    waiting = sa.and_(deliveries.c.endpoint_id.in_(ids), deliveries.c.status == DeliveryStatus.PENDING)
    skipped = sa.update(deliveries).where(waiting).values(status=DeliveryStatus.SKIPPED, next_at=None)
    transaction.execute(skipped)


def _redeliver(transaction: Transaction, wanted: OwnDelivery) -> Delivery | DiffuserveError:
    endpoint = _own(transaction, wanted.endpoint_id, wanted.tenant_id)
    delivery = _by_id(transaction, [wanted.delivery_id]).get(wanted.delivery_id)
    if endpoint is None or delivery is None or delivery.endpoint_id != endpoint.id:
        return DeliveryNotFound(f"no delivery {wanted.delivery_id} of webhook {wanted.endpoint_id}")
    if endpoint.disabled_at is not None:
        return Conflict(f"webhook {endpoint.id} is disabled, since it answered 410; enable it first")
    again = sa.update(deliveries).where(deliveries.c.id == delivery.id)
    transaction.execute(again.values(next_at=transaction.now, **_FRESH))
    transaction.notices.append((OUTBOX, {"type": "due"}))
    return _by_id(transaction, [delivery.id])[delivery.id]


def _enable(transaction: Transaction, wanted: OwnEndpoint) -> Endpoint | DiffuserveError:
    if _own(transaction, wanted.endpoint_id, wanted.tenant_id) is None:
        return EndpointNotFound(f"no webhook {wanted.endpoint_id}")
    named = sa.update(endpoints).where(endpoints.c.id == wanted.endpoint_id)
    (row,) = transaction.rows(named.values(disabled_at=None).returning(*endpoints.c))
    return endpoint_of(row)


def _own(transaction: Transaction, endpoint_id: str, tenant_id: str | None) -> Endpoint | None:
    rows = transaction.rows(sa.select(endpoints).where(endpoints.c.id == endpoint_id))
    if not rows or tenant_id not in (None, rows[0].tenant_id):
        return None
    return endpoint_of(rows[0])


def _by_id(transaction: Transaction, delivery_ids: Collection[str]) -> dict[str, Delivery]:
    wanted = sa.select(deliveries).where(deliveries.c.id.in_(list(delivery_ids)))
    return {row.id: delivery_of(row) for row in transaction.rows(wanted)}
