"""The search for deliveries that are due, without the write lock: other writes do not wait for it."""

from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.webhook import Delivery
from diffuserve.jobs.database import schema
from diffuserve.jobs.policy.webhook_turns import Full, Load, SendLimits
from diffuserve.jobs.webhooks.records import delivery_of

deliveries = schema.webhook_deliveries

_MAX_TENANTS = 32  # per look, as each needs a read
_LOOKAHEAD = 5_000  # of a tenant, searched for a delivery whose endpoint is not full


def find_due(connection: sa.Connection, now: float, load: Load, limits: SendLimits) -> list[Delivery]:
    """Return deliveries that are due, of tenants with room, as many of each as it may start.

    Each tenant's are read on their own, so that a tenant with many waiting hides no other.
    """
    full = load.full
    heads = [
        (load.tenants[row.tenant_id], row.due_at, row.tenant_id)
        for row in connection.execute(_DUE_TENANTS, {"now": now})
        if row.tenant_id not in full.tenants
    ]
    found: list[Delivery] = []
    for num_in_flight, _due_at, tenant_id in sorted(heads)[:_MAX_TENANTS]:
        rows = connection.execute(_oldest(tenant_id, now, full, limits.per_tenant - num_in_flight))
        found += map(delivery_of, rows)
    return found


def _due_tenants() -> sa.Select[Any]:
    """Select every tenant that has deliveries to send by `now`, and since when its first is due.

    Jumps from tenant to tenant in the index, which takes as many steps as there are tenants, however
    many deliveries each of them has.
    """
    waiting = deliveries.c.next_at.is_not(None)
    first = sa.select(sa.func.min(deliveries.c.tenant_id)).where(waiting).scalar_subquery()
    tenants = sa.select(first.label("tenant_id")).cte("tenants", recursive=True)
    following = sa.select(sa.func.min(deliveries.c.tenant_id)).where(
        waiting, deliveries.c.tenant_id > tenants.c.tenant_id
    )
    tenants = tenants.union_all(
        sa.select(following.scalar_subquery()).where(tenants.c.tenant_id.is_not(None))
    )
    due_at = sa.select(sa.func.min(deliveries.c.next_at)).where(
        waiting, deliveries.c.tenant_id == tenants.c.tenant_id
    )
    heads = sa.select(tenants.c.tenant_id, due_at.scalar_subquery().label("due_at")).subquery()
    return sa.select(heads).where(heads.c.due_at <= sa.bindparam("now"))


_DUE_TENANTS = _due_tenants()


def _oldest(tenant_id: str, now: float, full: Full, limit: int) -> sa.Select[Any]:
    """Select the tenant's deliveries that became due first, past those of full endpoints and hosts."""
    by_time = (
        sa.select(deliveries)
        .where(deliveries.c.tenant_id == tenant_id, deliveries.c.next_at <= now)
        .order_by(deliveries.c.next_at, deliveries.c.id)
        .limit(_LOOKAHEAD)
        .subquery()
    )
    # Without an order of its own, the outer query stops as soon as it has enough.
    return (
        sa.select(by_time)
        .where(
            by_time.c.endpoint_id.not_in(sorted(full.endpoints)), by_time.c.host.not_in(sorted(full.hosts))
        )
        .limit(limit)
    )
