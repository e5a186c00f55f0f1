"""Idempotency keys: the same key and body give the same job or batch again."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, IdempotencyMismatch
from diffuserve.domain.jobs.batch import NewBatch
from diffuserve.domain.jobs.job import NewJob
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction

keys = schema.idempotency_keys


@dataclass(frozen=True)
class Stamp:
    """A tenant's idempotency key, and the fingerprint of the body that came with it."""

    tenant_id: str
    key: str
    fingerprint: str


def stamp_of(new: NewJob | NewBatch) -> Stamp | None:
    """Return the stamp of a submission; `None` without an idempotency key."""
    if not new.idempotency_key:
        return None
    return Stamp(new.tenant_id, new.idempotency_key, new.fingerprint)


class UsedKeys:
    """The remembered keys among those of a transaction, each with its job or batch."""

    def __init__(self, transaction: Transaction, stamps: Collection[Stamp]) -> None:
        self._used = _read(transaction, stamps) if stamps else {}

    def add(self, stamp: Stamp, subject_id: str) -> None:
        """Remember a key for the job or batch that this transaction stores under it."""
        self._used[stamp.tenant_id, stamp.key] = (stamp.fingerprint, subject_id)

    def find(self, stamp: Stamp | None) -> str | DiffuserveError | None:
        """Return the id that the key stands for, or `None` for a new key.

        Return `IdempotencyMismatch` if the key came with another body before.
        """
        if stamp is None or (stamp.tenant_id, stamp.key) not in self._used:
            return None
        fingerprint, subject_id = self._used[stamp.tenant_id, stamp.key]
        if fingerprint == stamp.fingerprint:
            return subject_id
        return IdempotencyMismatch(
            f"Idempotency-Key {stamp.key!r} was used with another body; use a new key for a new job"
        )


def row(stamp: Stamp, subject_id: str, now: float) -> dict[str, Any]:
    """Return the row that remembers a key; `subject_id` is the id of its job or batch."""
    return {
        "tenant_id": stamp.tenant_id,
        "key": stamp.key,
        "fingerprint": stamp.fingerprint,
        "job_id": subject_id,
        "created_at": now,
    }


def keep(transaction: Transaction, rows: list[dict[str, Any]]) -> None:
    """Store keys."""
    if not rows:
        return
    insert = transaction.upsert(keys)
    replaced = {name: insert.excluded[name] for name in ("fingerprint", "job_id", "created_at")}
    # A conflict can only be with a row that is older than keys are remembered: it counts as deleted.
    statement = insert.on_conflict_do_update(index_elements=["tenant_id", "key"], set_=replaced)
    transaction.execute(statement, rows)


def forget(transaction: Transaction) -> None:
    """Delete the keys that are older than the settings allow."""
    oldest = transaction.now - transaction.config.idempotency_seconds
    transaction.execute(sa.delete(keys).where(keys.c.created_at <= oldest))


def _read(transaction: Transaction, stamps: Collection[Stamp]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return fingerprint and subject by tenant and key."""
    oldest = transaction.now - transaction.config.idempotency_seconds
    rows = transaction.rows(
        sa.select(keys).where(
            keys.c.tenant_id.in_({stamp.tenant_id for stamp in stamps}),
            keys.c.key.in_({stamp.key for stamp in stamps}),
            keys.c.created_at > oldest,
        )
    )
    return {(row.tenant_id, row.key): (row.fingerprint, row.job_id) for row in rows}
