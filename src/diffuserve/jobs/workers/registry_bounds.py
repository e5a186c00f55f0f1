"""Bounds of what workers register, so that no key fills the tables that everybody reads.

Rows of workers and models outlive their workers: for a day a lost worker is shown and its model stays known,
and a model that jobs asked for stays for good, since such jobs are what starts a worker again.
"""

from collections.abc import Collection, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.workers.worker import Registration
from diffuserve.domain.workers.worker_ids import owner_prefix
from diffuserve.jobs.config import DAY
from diffuserve.jobs.database import count_tables, schema
from diffuserve.jobs.database.connections import Transaction

workers, models = schema.workers, schema.models

_MEMORY_SECONDS = DAY
_PAUSE_SECONDS = 10.0
_IS_ASKED_FOR = sa.or_(
    *(
        sa.exists(sa.select(table.c.model).where(table.c.model == models.c.name))
        for table in (count_tables.usage, count_tables.accepted_work)
    )
)


def make_room(
    transaction: Transaction, worker_id: str, registration: Registration
) -> ServerUnavailable | None:
    """Forget the key's lost workers that are in the way of another; return why there is no room for it.

    A worker tries again after a pause: others may end.
    """
    config = transaction.config
    others = _others_of_key(transaction, worker_id)
    lost_before = transaction.now - config.lease_seconds
    lost = [row for row in others if row.heartbeat_at < lost_before]
    live = others[len(lost) :]  # the longest silent ones come first
    if len(live) >= config.max_workers_of_key:
        return _no_room(f"{len(live):,} live workers", config.max_workers_of_key)
    if refusal := _room_for(transaction, live, {offer.spec.name for offer in registration.models}):
        return refusal
    surplus = max(len(others) + 1 - config.max_workers_of_key, 0)
    _delete(transaction, workers.c.id, [row.id for row in lost[:surplus]])
    return None


def room_for_models(
    transaction: Transaction, worker_id: str, names: Collection[str]
) -> ServerUnavailable | None:
    """Return why the worker may not offer these models, which are all of its own."""
    lost_before = transaction.now - transaction.config.lease_seconds
    others = _others_of_key(transaction, worker_id)
    return _room_for(transaction, [row for row in others if row.heartbeat_at >= lost_before], names)


def _room_for(
    transaction: Transaction, live: Sequence[sa.Row[Any]], names: Collection[str]
) -> ServerUnavailable | None:
    most = transaction.config.max_models_of_key
    offered = set(names).union(*map(_models_of, live))
    return _no_room(f"{len(offered):,} models, with these", most) if len(offered) > most else None


def forget_workers(transaction: Transaction, silent_for: float = _MEMORY_SECONDS) -> None:
    """Delete workers whose last heartbeat is older than `silent_for` seconds."""
    is_old = workers.c.heartbeat_at < transaction.now - silent_for
    transaction.execute(sa.delete(workers).where(is_old))


def forget_models(transaction: Transaction) -> None:
    """Delete models that no worker offers and that no job has asked for: the old ones, and those too many."""
    offered = {name for row in transaction.rows(sa.select(workers.c.models)) for name in _models_of(row)}
    idle = [row.name for row in transaction.rows(sa.select(models.c.name)) if row.name not in offered]
    if not idle:
        return
    newest = models.c.updated_at.desc()
    chosen = sa.select(models.c.name, models.c.updated_at).where(models.c.name.in_(idle), ~_IS_ASKED_FOR)
    unused = transaction.rows(chosen.order_by(newest, models.c.name))
    old = [
        row.name
        for number, row in enumerate(unused)
        if number >= transaction.config.max_models_of_key
        or row.updated_at < transaction.now - _MEMORY_SECONDS
    ]
    _delete(transaction, models.c.name, old)


def note_models(transaction: Transaction, worker_id: str) -> None:
    """Count the day for which models are remembered from now on, as a worker that offers them leaves."""
    for row in transaction.rows(sa.select(workers.c.models).where(workers.c.id == worker_id)):
        left = sa.update(models).where(models.c.name.in_(_models_of(row)))
        transaction.execute(left.values(updated_at=transaction.now))


def _others_of_key(transaction: Transaction, worker_id: str) -> Sequence[sa.Row[Any]]:
    """Return the other workers that registered with a worker's key, the longest silent ones first."""
    is_own = workers.c.id.startswith(owner_prefix(worker_id), autoescape=True)
    own = sa.select(workers.c.id, workers.c.heartbeat_at, workers.c.models)
    return transaction.rows(own.where(is_own, workers.c.id != worker_id).order_by(workers.c.heartbeat_at))


def _models_of(row: sa.Row[Any]) -> set[str]:
    return set(orjson.loads(row.models))


def _delete(transaction: Transaction, column: sa.Column[Any], values: Sequence[str]) -> None:
    if values:
        transaction.execute(sa.delete(column.table).where(column.in_(values)))


def _no_room(found: str, most: int) -> ServerUnavailable:
    return ServerUnavailable(
        f"this API key has {found}, and may have {most:,}; let some end, or use another key",
        retry_after=_PAUSE_SECONDS,
    )
