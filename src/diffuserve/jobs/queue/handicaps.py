"""Handicaps: a tenant that begins to use a model starts at the virtual time of the tenants served there.

It gets no credit for capacity that it did not use before, on this model or on others. Its virtual time itself
is unchanged, since workers of other models may be at quite another time. A tenant whose jobs all run is not
new to the model: it stays as far behind as a better band of others may have put it.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import IDS, Transaction, upsert
from diffuserve.jobs.policy.fairness import BAND_SECONDS

lanes, leases, tenants = schema.lanes, schema.leases, schema.tenants
floors, handicaps = schema.floors, schema.handicaps

_OPEN = sa.select(lanes.c.lane).where(lanes.c.lane.in_(IDS), lanes.c.num_ready > 0)
_FLOORS = sa.select(floors)
_RUNNING = sa.select(leases.c.tenant_id, leases.c.model).where(leases.c.tenant_id.in_(IDS)).distinct()
_VTIMES = sa.select(tenants.c.id, tenants.c.vtime).where(tenants.c.id.in_(IDS))


def give(transaction: Transaction, filled: Collection[Mapping[str, Any]]) -> None:
    """Set tenants' handicaps for empty ones of the `lanes` that are about to be filled."""
    is_open = {row.lane for row in transaction.rows(_OPEN, {"ids": [row["lane"] for row in filled]})}
    opened = [row for row in filled if row["lane"] not in is_open]
    if not opened:
        return
    known = {row.model: row.vtime for row in transaction.rows(_FLOORS)}
    ids = sorted({row["tenant_id"] for row in opened})
    works_on = {(row.tenant_id, row.model) for row in transaction.rows(_RUNNING, {"ids": ids})}
    vtimes = {row.id: row.vtime for row in transaction.rows(_VTIMES, {"ids": ids})}
    seconds: dict[tuple[str, str], float] = {}
    for row in opened:
        tenant_id, model = row["tenant_id"], row["model"]
        behind = known.get(model, 0.0) - vtimes.get(tenant_id, 0.0)
        behind -= BAND_SECONDS if (tenant_id, model) in works_on else 0.0
        if behind > 0:
            seconds[tenant_id, model] = behind
    rows = [
        {"tenant_id": tenant_id, "model": model, "seconds": behind}
        for (tenant_id, model), behind in seconds.items()
    ]
    _raise(transaction, handicaps, "seconds", rows)


def raise_floors(transaction: Transaction, started: Mapping[str, float]) -> None:
    """Advance the virtual time of models. It never goes back, though jobs of an older start may follow."""
    _raise(transaction, floors, "vtime", [{"model": model, "vtime": started[model]} for model in started])


def _raise(transaction: Transaction, table: sa.Table, name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows, and in those that exist the larger value of a column."""
    if rows:
        transaction.execute(_upsert_larger(table, name, transaction.dialect), rows)


@cache
def _upsert_larger(table: sa.Table, name: str, dialect: str) -> sa.Executable:
    insert, column = upsert(table, dialect), table.c[name]
    new = insert.excluded[name]
    return insert.on_conflict_do_update(
        index_elements=list(table.primary_key), set_={name: sa.case((new > column, new), else_=column)}
    )
