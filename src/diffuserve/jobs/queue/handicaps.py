"""Handicaps: a tenant that comes to a model begins there at the virtual time of those who are served.

Whatever it did not use before, on this model or on others, it is owed nothing for. Its virtual time itself
stays as it is, since workers of other models may be at quite another time. A tenant whose jobs all run works
on, and does not come: it stays as far behind as a better band of others may have put it.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.job import Band
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
    """Give tenants their handicaps for those of the `lanes` to be filled that are empty."""
    is_open = {row.lane for row in transaction.rows(_OPEN, {"ids": [row["lane"] for row in filled]})}
    opened = [row for row in filled if row["lane"] not in is_open]
    if not opened:
        return
    known = {(row.band, row.model): row.vtime for row in transaction.rows(_FLOORS)}
    ids = sorted({row["tenant_id"] for row in opened})
    works_on = {(row.tenant_id, row.model) for row in transaction.rows(_RUNNING, {"ids": ids})}
    vtimes = {row.id: row.vtime for row in transaction.rows(_VTIMES, {"ids": ids})}
    seconds: dict[tuple[str, str], float] = {}
    for row in opened:
        tenant_id, model = row["tenant_id"], row["model"]
        behind = known.get((row["band"], model), 0.0) - vtimes.get(tenant_id, 0.0)
        behind -= BAND_SECONDS if (tenant_id, model) in works_on else 0.0
        if behind > 0:
            seconds[tenant_id, model] = max(behind, seconds.get((tenant_id, model), 0.0))
    _save(transaction, _raise_handicap(transaction.dialect), seconds, ("tenant_id", "model", "seconds"))


def raise_floors(transaction: Transaction, started: Mapping[str, float]) -> None:
    """Advance the virtual time of models. It never goes back, though jobs of an older start may follow."""
    vtimes = {(band.value, model): vtime for model, vtime in started.items() for band in Band}
    _save(transaction, _raise_floor(transaction.dialect), vtimes, ("band", "model", "vtime"))


def _save(
    transaction: Transaction,
    statement: sa.Executable,
    values: Mapping[tuple[str, str], float],
    names: Iterable[str],
) -> None:
    columns = tuple(names)
    rows = [dict(zip(columns, (*key, value), strict=True)) for key, value in values.items()]
    if rows:
        transaction.execute(statement, rows)


@cache
def _raise_floor(dialect: str) -> sa.Executable:
    return _raise(floors, "vtime", dialect)


@cache
def _raise_handicap(dialect: str) -> sa.Executable:
    return _raise(handicaps, "seconds", dialect)


def _raise(table: sa.Table, name: str, dialect: str) -> sa.Executable:
    insert, column = upsert(table, dialect), table.c[name]
    new = insert.excluded[name]
    return insert.on_conflict_do_update(
        index_elements=list(table.primary_key), set_={name: sa.case((new > column, new), else_=column)}
    )
