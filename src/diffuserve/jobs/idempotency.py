"""Keys that make a submission safe to repeat: the same key and body give what the first one gave."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, IdempotencyMismatch
from diffuserve.jobs import schema
from diffuserve.jobs.database import Transaction

keys = schema.idempotency_keys


@dataclass(frozen=True)
class Stamp:
    """A tenant's key, and what stands for the body that came with it."""

    tenant_id: str
    key: str
    fingerprint: str


class Known:
    """The keys that were used lately, among those that are asked about."""

    def __init__(self, transaction: Transaction, stamps: Collection[Stamp]) -> None:
        self._used = _find(transaction, stamps) if stamps else {}

    def use(self, stamp: Stamp, subject_id: str) -> None:
        self._used[stamp.tenant_id, stamp.key] = (stamp.fingerprint, subject_id)

    def earlier(self, stamp: Stamp | None) -> str | DiffuserveError | None:
        """What the key stands for: an id, nothing yet, or something else, which is an error."""
        if stamp is None or (stamp.tenant_id, stamp.key) not in self._used:
            return None
        fingerprint, subject_id = self._used[stamp.tenant_id, stamp.key]
        if fingerprint == stamp.fingerprint:
            return subject_id
        return IdempotencyMismatch(
            f"Idempotency-Key {stamp.key!r} was used with another body; use a new key for a new job"
        )


def row(stamp: Stamp, subject_id: str, now: float) -> dict[str, Any]:
    return {
        "tenant_id": stamp.tenant_id,
        "key": stamp.key,
        "fingerprint": stamp.fingerprint,
        "job_id": subject_id,
        "created_at": now,
    }


def keep(transaction: Transaction, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    insert = transaction.upsert(keys)
    fresh = {name: insert.excluded[name] for name in ("fingerprint", "job_id", "created_at")}
    # What is there already is older than a key is kept.
    transaction.execute(insert.on_conflict_do_update(index_elements=["tenant_id", "key"], set_=fresh), rows)


def _find(transaction: Transaction, stamps: Collection[Stamp]) -> dict[tuple[str, str], tuple[str, str]]:
    """Fingerprint and subject of each."""
    since = transaction.now - transaction.config.idempotency_seconds
    rows = transaction.rows(
        sa.select(keys).where(
            keys.c.tenant_id.in_({one.tenant_id for one in stamps}),
            keys.c.key.in_({one.key for one in stamps}),
            keys.c.created_at > since,
        )
    )
    return {(row.tenant_id, row.key): (row.fingerprint, row.job_id) for row in rows}
