"""Workers: who they are, whether they live, what they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, WorkerNotFound
from diffuserve.domain.worker import (
    ControlCommands,
    Heartbeat,
    Registration,
    Worker,
    WorkerReport,
    WorkerState,
)
from diffuserve.events.base import worker_topic
from diffuserve.jobs import schema
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.records import dump

workers, models, leases = schema.workers, schema.models, schema.leases

_BEAT = (
    sa.update(workers)
    .where(workers.c.id == sa.bindparam("worker"))
    .values(report=sa.bindparam("new_report"), heartbeat_at=sa.bindparam("moment"))
)
_RENEW = (
    sa.update(leases)
    .where(leases.c.job_id == sa.bindparam("job"), leases.c.lease_token == sa.bindparam("token"))
    .values({name: sa.bindparam(f"new_{name}") for name in ("expires_at", "phase", "step", "total")})
)
_LEARN = (
    sa.update(models)
    .where(models.c.name == sa.bindparam("model"))
    .values(fit=sa.bindparam("new_fit"), updated_at=sa.bindparam("moment"))
)


@dataclass(frozen=True)
class Registering:
    worker_id: str
    registration: Registration


@dataclass(frozen=True)
class Beat:
    worker_id: str
    heartbeat: Heartbeat


def register(transaction: Transaction, registering: Sequence[Registering]) -> Sequence[str | DiffuserveError]:
    insert = transaction.upsert(workers).on_conflict_do_nothing()
    transaction.execute(insert, [_worker_row(one, transaction.now) for one in registering])
    for one in registering:
        for offer in one.registration.models:
            _offer(transaction, offer.spec, offer.fit)
    return [one.worker_id for one in registering]


def heartbeat(transaction: Transaction, beats: Sequence[Beat]) -> Sequence[ControlCommands | DiffuserveError]:
    ids = sorted({one.worker_id for one in beats})
    known = {
        row.id: row.is_draining
        for row in transaction.rows(
            sa.select(workers.c.id, workers.c.is_draining).where(workers.c.id.in_(ids))
        )
    }
    rows = transaction.rows(sa.select(leases).where(leases.c.worker_id.in_(ids)))
    live = {(row.worker_id, row.job_id, row.lease_token): row for row in rows}
    present = [one for one in beats if one.worker_id in known]
    _renew(transaction, present, live)
    return [
        _orders(one, live, known[one.worker_id])
        if one.worker_id in known
        else WorkerNotFound(f"no worker {one.worker_id}; register again")
        for one in beats
    ]


def drain(transaction: Transaction, worker_ids: Sequence[str]) -> Sequence[DiffuserveError | None]:
    statement = sa.update(workers).where(workers.c.id.in_(list(worker_ids))).values(is_draining=True)
    known = {row.id for row in transaction.rows(statement.returning(workers.c.id))}
    for one in known:
        transaction.notices.append((worker_topic(one), {"type": "drain"}))
    return [None if one in known else WorkerNotFound(f"no worker {one}") for one in worker_ids]


def forget_workers(transaction: Transaction, silent_for: float) -> None:
    """Workers that were not heard for so long are no longer listed."""
    transaction.execute(sa.delete(workers).where(workers.c.heartbeat_at < transaction.now - silent_for))


def worker_of(row: sa.Row[Any], now: float, lease_seconds: float) -> Worker:
    """From a row of `workers` with its `num_leases`; one that is not heard for a lease is lost."""
    values = orjson.loads(row.report)
    values["state"] = WorkerState(values["state"])
    values["resident_models"] = tuple(values["resident_models"])
    report = WorkerReport(**values)
    is_lost = now - row.heartbeat_at > lease_seconds
    return Worker(
        id=row.id,
        name=row.name,
        state=WorkerState.LOST if is_lost else report.state,
        labels=orjson.loads(row.labels),
        models=tuple(orjson.loads(row.models)),
        report=report,
        registered_at=row.registered_at,
        heartbeat_at=row.heartbeat_at,
        is_draining=row.is_draining,
        price_per_hour=row.price_per_hour,
        is_spot=row.is_spot,
        num_leases=row.num_leases,
    )


def _worker_row(one: Registering, now: float) -> dict[str, Any]:
    registration = one.registration
    return {
        "id": one.worker_id,
        "name": registration.name,
        "labels": dump(registration.labels),
        "models": dump([offer.spec["name"] for offer in registration.models]),
        "report": dump(asdict(registration.report)),
        "registered_at": now,
        "heartbeat_at": now,
        "is_draining": False,
        "is_spot": registration.is_spot,
        "price_per_hour": registration.price_per_hour,
    }


def _offer(transaction: Transaction, spec: Mapping[str, Any], fit: Mapping[str, Any] | None) -> None:
    """Store a model's spec. Its fit is a default, which never replaces one that a worker measured."""
    insert = transaction.upsert(models)
    fresh: dict[str, Any] = {name: insert.excluded[name] for name in ("spec", "updated_at")}
    fresh["fit"] = sa.func.coalesce(models.c.fit, insert.excluded.fit)
    statement = insert.on_conflict_do_update(index_elements=["name"], set_=fresh)
    text = None if fit is None else dump(fit)
    row = {"name": spec["name"], "spec": dump(spec), "fit": text, "updated_at": transaction.now}
    transaction.execute(statement, row)


def _renew(
    transaction: Transaction, beats: Sequence[Beat], live: Mapping[tuple[str, str, int], sa.Row[Any]]
) -> None:
    now = transaction.now
    reports = [
        {"worker": one.worker_id, "new_report": dump(asdict(one.heartbeat.report)), "moment": now}
        for one in beats
    ]
    renewed = [
        {
            "job": held.job_id,
            "token": held.lease_token,
            "new_expires_at": now + transaction.config.lease_seconds,
            "new_phase": held.phase,
            "new_step": held.step,
            "new_total": held.total,
        }
        for one in beats
        for held in one.heartbeat.held
        if (one.worker_id, held.job_id, held.lease_token) in live
    ]
    fits = [
        {"model": model, "new_fit": dump(fit), "moment": now}
        for one in beats
        for model, fit in one.heartbeat.fits.items()
    ]
    for statement, rows in ((_BEAT, reports), (_RENEW, renewed), (_LEARN, fits)):
        if rows:
            transaction.execute(statement, rows)


def _orders(one: Beat, live: Mapping[tuple[str, str, int], sa.Row[Any]], drain: bool) -> ControlCommands:
    held = [(one.worker_id, lease.job_id, lease.lease_token) for lease in one.heartbeat.held]
    return ControlCommands(
        lost=tuple(key[1] for key in held if key not in live),
        cancel=tuple(key[1] for key, row in live.items() if key[0] == one.worker_id and row.is_canceling),
        drain=drain,
    )
