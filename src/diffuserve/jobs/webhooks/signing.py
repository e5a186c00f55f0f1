"""The secrets that webhooks are signed with, one or more for each tenant."""

import base64
import secrets
from dataclasses import dataclass, field

import sqlalchemy as sa

from diffuserve.jobs import schema
from diffuserve.jobs.command import SingleCommand
from diffuserve.jobs.database import Transaction

table = schema.webhook_secrets


@dataclass(frozen=True)
class EnsureSecret(SingleCommand[list[str]]):
    """Store a secret unless the tenant has a valid one; the outcome is all that are valid, newest first."""

    tenant_id: str
    offered: str = field(repr=False)

    def apply(self, transaction: Transaction) -> list[str]:
        valid = _valid(transaction, self.tenant_id)
        if valid:
            return valid
        _add(transaction, self.tenant_id, self.offered)
        return [self.offered]


@dataclass(frozen=True)
class RotateSecret(SingleCommand[str]):
    """Store a new secret; older ones expire `overlap_seconds` later, so that receivers can change over."""

    tenant_id: str
    secret: str = field(repr=False)
    overlap_seconds: float

    def apply(self, transaction: Transaction) -> str:
        if transaction.is_retry and self.secret in _valid(transaction, self.tenant_id):
            return self.secret
        unlimited = sa.and_(table.c.tenant_id == self.tenant_id, table.c.expires_at.is_(None))
        expires_at = transaction.now + self.overlap_seconds
        transaction.execute(sa.update(table).where(unlimited).values(expires_at=expires_at))
        transaction.execute(sa.delete(table).where(table.c.expires_at <= transaction.now))
        _add(transaction, self.tenant_id, self.secret)
        return self.secret


def new_secret() -> str:
    """Return 256 random bits in the form of Standard Webhooks: `whsec_` and base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _valid(transaction: Transaction, tenant_id: str) -> list[str]:
    """Return the tenant's valid secrets, newest first."""
    is_valid = sa.or_(table.c.expires_at.is_(None), table.c.expires_at > transaction.now)
    newest_first = table.c.expires_at.is_(None).desc(), table.c.created_at.desc()
    found = sa.select(table.c.secret).where(table.c.tenant_id == tenant_id, is_valid)
    return [row.secret for row in transaction.rows(found.order_by(*newest_first))]


def _add(transaction: Transaction, tenant_id: str, secret: str) -> None:
    row = {"tenant_id": tenant_id, "secret": secret, "created_at": transaction.now}
    transaction.execute(sa.insert(table), row)
