"""Lanes that have ready jobs, as a claim reads them: all at once, with their tenants' accounts."""

import functools

import sqlalchemy as sa

from diffuserve.domain.tenant import Tenant
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.policy.lanes import Lane, TenantAccount
from diffuserve.jobs.queue import ready_queue
from diffuserve.jobs.records import BANDS

leases, ready, lanes, tenants = schema.leases, schema.ready, schema.lanes, schema.tenants
handicaps = schema.handicaps

_LANE_COLUMNS = (
    "lane",
    "band",
    "tenant_id",
    "model",
    "head_seq",
    "head_at",
    "head_since",
    "is_decode",
    "is_exact",
    "head_adapters",
    "head_hint",
)
_ACCOUNT_COLUMNS = ("vtime", "plan", "weight", "max_running", "max_queued")
_OPEN_LANES = (
    sa.select(
        *(lanes.c[name] for name in _LANE_COLUMNS),
        sa.func.coalesce(handicaps.c.seconds, 0.0),
        *(tenants.c[name] for name in _ACCOUNT_COLUMNS),
    )
    .join_from(lanes, tenants, tenants.c.id == lanes.c.tenant_id)
    .outerjoin(
        handicaps, sa.and_(handicaps.c.tenant_id == lanes.c.tenant_id, handicaps.c.model == lanes.c.model)
    )
    .where(lanes.c.num_ready > 0)
)
_HEAD_TOKENS = sa.select(ready.c.lane, ready.c.step_tokens).join_from(
    lanes, ready, sa.and_(ready.c.lane == lanes.c.lane, ready.c.seq == lanes.c.head_seq)
)
RUNNING = sa.select(
    leases.c.tenant_id, sa.func.count().label("num"), sa.func.sum(leases.c.charged).label("seconds")
).group_by(leases.c.tenant_id)
"""The running jobs of each tenant, and the device-seconds that they were charged in advance."""


def open_lanes(transaction: Transaction) -> list[Lane]:
    """Return the lanes that have ready jobs, with one account for each tenant."""
    running = {row.tenant_id: (row.num, row.seconds) for row in transaction.rows(RUNNING)}
    plan_of = functools.cache(functools.partial(ready_queue.plan_of, transaction.config))
    accounts: dict[str, TenantAccount] = {}
    found = []
    # Every claim reads all lanes, a thousand where there are many tenants. So their columns are unpacked by
    # place: `sa.Row` takes several times as long by name.
    for row in transaction.execute(_OPEN_LANES):
        key, band, tenant_id, model, *head = row[: len(_LANE_COLUMNS) + 1]
        account = accounts.get(tenant_id)
        if account is None:
            vtime, *limits = row[len(_LANE_COLUMNS) + 1 :]
            tenant = Tenant(tenant_id, plan_of(*limits))
            account = accounts[tenant_id] = TenantAccount(tenant, vtime, *running.get(tenant_id, (0, 0.0)))
        found.append(Lane(key, BANDS[band], account, model, *head))
    return found


def head_tokens(transaction: Transaction) -> dict[str, int]:
    """Return the tokens of each lane's first job, by its key: full workers ask often, mostly in vain."""
    return {row.lane: row.step_tokens for row in transaction.execute(_HEAD_TOKENS)}
