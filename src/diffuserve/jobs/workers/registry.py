"""Workers: registration, heartbeats, and draining."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import orjson
import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, InvalidParams, WorkerNotFound
from diffuserve.domain.workers.worker import (
    ControlCommands,
    Heartbeat,
    Registration,
    Worker,
    WorkerRole,
    WorkerState,
)
from diffuserve.domain.workers.worker_ids import attempt_id
from diffuserve.events.base import worker_topic
from diffuserve.jobs.database import schema, usage
from diffuserve.jobs.database.command import Command, SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.records import dump
from diffuserve.jobs.workers import registry_bounds
from diffuserve.jobs.workers.kept_orders import taken_up, told_order
from diffuserve.jobs.workers.offers import conflict_of, save_fits, store_offer
from diffuserve.jobs.workers.reports import dated, report_of

workers, leases = schema.workers, schema.leases

_SAVE_REPORT = (
    sa.update(workers)
    .where(workers.c.id == sa.bindparam("worker"))
    .values(report=sa.bindparam("new_report"), heartbeat_at=sa.bindparam("now"))
)
_RENEW_LEASE = (
    sa.update(leases)
    .where(leases.c.job_id == sa.bindparam("job"), leases.c.lease_token == sa.bindparam("token"))
    .values({name: sa.bindparam(f"new_{name}") for name in ("expires_at", "phase", "step", "total")})
)

LiveLeases = Mapping[tuple[str, str, int], sa.Row[Any]]
"""Rows of `leases` by worker, job and lease token."""


@dataclass(frozen=True)
class RegisterWorker(SingleCommand[None]):
    """Store a worker, under an id that the caller chose, and the models that it offers.

    The outcome is `ModelConflict` if live workers offer one of them with another spec, and
    `ServerUnavailable` while the key has as many workers or models as it may have.
    """

    worker_id: str
    registration: Registration

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        if conflict := conflict_of(transaction, self.registration.models):
            return conflict
        if refusal := registry_bounds.make_room(transaction, self.worker_id, self.registration):
            return refusal
        insert = transaction.upsert(workers).on_conflict_do_nothing()
        coming = taken_up(transaction, self.registration.name)
        transaction.execute(insert, self._row(transaction.now, coming))
        for offer in self.registration.models:
            store_offer(transaction, offer)
        registry_bounds.forget_models(transaction)
        return None

    def _row(self, now: float, orders_to_come: str | None) -> dict[str, Any]:
        registration = self.registration
        return {
            "id": self.worker_id,
            "name": registration.name,
            "labels": dump(registration.labels),
            "models": dump([offer.spec.name for offer in registration.models]),
            "report": dump(dated(registration.report, None, now)),
            "registered_at": now,
            "heartbeat_at": now,
            "is_draining": False,
            "is_spot": registration.is_spot,
            "price_per_hour": registration.price_per_hour,
            "role": registration.role,
            "orders_to_come": orders_to_come,
        }


@dataclass(frozen=True)
class RecordHeartbeat(Command[ControlCommands]):
    """Store a worker's report and renew the leases that it names.

    The outcome is the commands for the worker, or `WorkerNotFound`, or `InvalidParams` for the cost fit of a
    model that the worker did not register.
    """

    worker_id: str
    heartbeat: Heartbeat

    @classmethod
    def apply_many(
        cls, transaction: Transaction, commands: Sequence[Self]
    ) -> list[ControlCommands | DiffuserveError]:
        worker_ids = sorted({command.worker_id for command in commands})
        known = _known_workers(transaction, worker_ids)
        usage.count_time(transaction, known.values())
        errors = [command._error(known.get(command.worker_id)) for command in commands]
        live = _live_leases(transaction, worker_ids)
        accepted = [command for command, error in zip(commands, errors, strict=True) if error is None]
        _renew(transaction, accepted, known, live)
        roles = {worker_id: WorkerRole(row.role) for worker_id, row in known.items()}
        fits = [(roles[command.worker_id], command.heartbeat.fits) for command in accepted]
        save_fits(transaction, fits)
        return [
            error or _control_commands(transaction, command, live, known[command.worker_id])
            for command, error in zip(commands, errors, strict=True)
        ]

    def _error(self, worker: sa.Row[Any] | None) -> DiffuserveError | None:
        """Return why the heartbeat is refused: nobody knows the worker, or it did not register a model."""
        if worker is None:
            return WorkerNotFound(f"no worker {self.worker_id}; register again")
        if self.heartbeat.fits:
            foreign = self.heartbeat.fits.keys() - set(orjson.loads(worker.models))
            if foreign:
                return InvalidParams("fits", min(foreign), "this worker registered no such model")
        return None


@dataclass(frozen=True)
class DrainWorker(Command[None]):
    """Grant a worker no more jobs. The outcome is `WorkerNotFound` for an unknown one."""

    worker_id: str

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[DiffuserveError | None]:
        worker_ids = [command.worker_id for command in commands]
        statement = sa.update(workers).where(workers.c.id.in_(worker_ids)).values(is_draining=True)
        known = {row.id for row in transaction.rows(statement.returning(workers.c.id))}
        for worker_id in known:
            transaction.publish(worker_topic(worker_id), {"type": "drain"})
        return [
            None if worker_id in known else WorkerNotFound(f"no worker {worker_id}")
            for worker_id in worker_ids
        ]


@dataclass(frozen=True)
class DeregisterWorker(SingleCommand[None]):
    """Delete a worker that has ended, if it is known."""

    worker_id: str

    def apply(self, transaction: Transaction) -> None:
        registry_bounds.note_models(transaction, self.worker_id)
        left = sa.delete(workers).where(workers.c.id == self.worker_id).returning(*usage.TIME_COLUMNS)
        usage.count_time(transaction, transaction.rows(left))


def worker_of(row: sa.Row[Any], now: float, lease_seconds: float, num_leases: int) -> Worker:
    """Return the worker in a row of `workers`.

    It is lost if it sent no heartbeat for `lease_seconds`: then all its leases have expired.
    """
    report = report_of(row.report)
    is_lost = now - row.heartbeat_at > lease_seconds
    return Worker(
        id=row.id,
        name=row.name,
        state=WorkerState.LOST if is_lost else report.state,
        labels=orjson.loads(row.labels),
        models=tuple(model for model in orjson.loads(row.models) if model not in report.withdrawn_models),
        report=report,
        registered_at=row.registered_at,
        heartbeat_at=row.heartbeat_at,
        is_draining=row.is_draining,
        price_per_hour=row.price_per_hour,
        is_spot=row.is_spot,
        role=WorkerRole(row.role),
        num_leases=num_leases,
    )


def _known_workers(transaction: Transaction, worker_ids: Collection[str]) -> dict[str, sa.Row[Any]]:
    """Return those of the workers that are known, by id."""
    own = ("id", "name", "is_draining", "models", "role", "report", "model_order", "orders_to_come")
    known = sa.select(*(workers.c[name] for name in own), *usage.TIME_COLUMNS).where(
        workers.c.id.in_(worker_ids)
    )
    return {row.id: row for row in transaction.rows(known)}


def _live_leases(transaction: Transaction, worker_ids: Collection[str]) -> LiveLeases:
    rows = transaction.rows(sa.select(leases).where(leases.c.worker_id.in_(worker_ids)))
    return {(row.worker_id, row.job_id, row.lease_token): row for row in rows}


def _renew(
    transaction: Transaction,
    commands: Sequence[RecordHeartbeat],
    known: Mapping[str, sa.Row[Any]],
    live: LiveLeases,
) -> None:
    """Write the workers' reports and their leases' new ends."""
    written = (
        (
            _SAVE_REPORT,
            [_report_row(command, known[command.worker_id], transaction.now) for command in commands],
        ),
        (_RENEW_LEASE, _lease_rows(transaction, commands, live)),
    )
    for statement, rows in written:
        if rows:
            transaction.execute(statement, rows)


def _report_row(command: RecordHeartbeat, worker: sa.Row[Any], now: float) -> dict[str, Any]:
    report = command.heartbeat.report
    if report.peers:
        report = dated(report, report_of(worker.report), now)
    return {"worker": command.worker_id, "new_report": dump(report), "now": now}


def _lease_rows(
    transaction: Transaction, commands: Sequence[RecordHeartbeat], live: LiveLeases
) -> list[dict[str, Any]]:
    return [
        {
            "job": held.job_id,
            "token": held.lease_token,
            "new_expires_at": transaction.now + transaction.config.lease_seconds,
            "new_phase": held.phase,
            "new_step": held.step,
            "new_total": held.total,
        }
        for command in commands
        for held in command.heartbeat.held
        if (command.worker_id, held.job_id, held.lease_token) in live
    ]


def _control_commands(
    transaction: Transaction, command: RecordHeartbeat, live: LiveLeases, worker: sa.Row[Any]
) -> ControlCommands:
    """Name the leases that the worker believes it holds and does not, and what it is told about others."""
    lost = tuple(
        lease.job_id
        for lease in command.heartbeat.held
        if (command.worker_id, lease.job_id, lease.lease_token) not in live
    )
    own = [row for row in live.values() if row.worker_id == command.worker_id]
    order = told_order(transaction, worker, command.heartbeat.report)
    return replace(commands_of(own, worker.is_draining, lost), order=order)


def commands_of(
    held: Iterable[sa.Row[Any]], is_draining: bool, lost: tuple[str, ...] = ()
) -> ControlCommands:
    """Return the commands to a worker that holds these leases; a job that is canceled is not preempted."""
    held = list(held)
    return ControlCommands(
        cancel=tuple(row.job_id for row in held if row.is_canceling),
        preempt=tuple(
            attempt_id(row.job_id, row.lease_token)
            for row in held
            if row.is_preempted and not row.is_canceling
        ),
        lost=lost,
        drain=is_draining,
    )
