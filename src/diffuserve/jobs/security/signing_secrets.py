"""Secrets that sign the URLs of results and the messages of webhooks, and marks of sessions, for all planes.

Each owner has one or more: the newest signs, and older ones stay valid for a while after a rotation. They
are stored as they are, not as hashes, since signatures are computed from them.
"""

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Database, Transaction
from diffuserve.jobs.database.writer import Writer

table = schema.signing_secrets


class SigningSecrets:
    """The secrets of one kind. Every method raises `ServerUnavailable` while the database is unreachable."""

    def __init__(self, database: Database, writer: Writer, make: Callable[[], str]) -> None:
        self._database = database
        self._writer = writer
        self._make = make

    async def valid(self, owner: str) -> list[str]:
        """Return the owner's valid secrets, newest first; the first is made at the first call."""
        found = await self._database.rows(_valid(owner, await self._database.now()))
        if found:
            return [row.secret for row in found]
        return await self._writer.run(EnsureSecret(owner, self._make()))

    async def rotate(self, owner: str, overlap_seconds: float) -> str:
        """Make a new secret and return it; older ones stay valid for `overlap_seconds` at most."""
        return await self._writer.run(RotateSecret(owner, self._make(), overlap_seconds))


class UrlSecrets:
    """The secrets that sign URLs of results."""

    _OWNER = "result-urls"

    def __init__(self, database: Database, writer: Writer) -> None:
        self._secrets = SigningSecrets(database, writer, lambda: secrets.token_hex(32))

    async def valid(self) -> list[bytes]:
        """Return the valid secrets, newest first; the first is made at the first call."""
        return [bytes.fromhex(secret) for secret in await self._secrets.valid(self._OWNER)]

    async def rotate(self, overlap_seconds: float) -> None:
        """Make a new secret; URLs signed by older ones stay valid for `overlap_seconds` at most."""
        await self._secrets.rotate(self._OWNER, overlap_seconds)


class SessionMarks:
    """Marks that the sessions of an API key carry; a new mark ends all sessions with another."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._secrets = SigningSecrets(database, writer, lambda: secrets.token_hex(8))

    async def current(self, key_id: str) -> str:
        """Return the mark of a key's sessions, `""` until they are ended for the first time."""
        rows = await self._database.rows(_valid(f"sessions/{key_id}", await self._database.now()))
        return str(rows[0].secret) if rows else ""

    async def end_sessions(self, key_id: str) -> None:
        """Give the key another mark."""
        await self._secrets.rotate(f"sessions/{key_id}", 0.0)


class WebhookSecrets:
    """The secrets that sign webhooks, by tenant."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._secrets = SigningSecrets(database, writer, _webhook_secret)

    async def valid(self, tenant_id: str) -> list[str]:
        """Return the tenant's valid secrets, newest first; the first is made at the first call."""
        return await self._secrets.valid(_owner(tenant_id))

    async def rotate(self, tenant_id: str, overlap_seconds: float) -> str:
        """Make a new secret and return it; older ones sign for `overlap_seconds` more, at most."""
        return await self._secrets.rotate(_owner(tenant_id), overlap_seconds)


@dataclass(frozen=True)
class EnsureSecret(SingleCommand[list[str]]):
    """Store a secret unless the owner has a valid one; the outcome is all that are valid, newest first."""

    owner: str
    offered: str = field(repr=False)

    def apply(self, transaction: Transaction) -> list[str]:
        valid = [row.secret for row in transaction.rows(_valid(self.owner, transaction.now))]
        if valid:
            return valid
        _add(transaction, self.owner, self.offered)
        return [self.offered]


@dataclass(frozen=True)
class RotateSecret(SingleCommand[str]):
    """Store a new secret; all older ones expire `overlap_seconds` later, or earlier if they did anyway."""

    owner: str
    secret: str = field(repr=False)
    overlap_seconds: float

    def apply(self, transaction: Transaction) -> str:
        valid = transaction.rows(_valid(self.owner, transaction.now))
        if transaction.is_retry and self.secret in {row.secret for row in valid}:
            return self.secret
        expires_at = transaction.now + self.overlap_seconds
        is_later = sa.or_(table.c.expires_at.is_(None), table.c.expires_at > expires_at)
        own = sa.update(table).where(table.c.owner == self.owner, is_later)
        transaction.execute(own.values(expires_at=expires_at))
        transaction.execute(sa.delete(table).where(table.c.expires_at <= transaction.now))
        _add(transaction, self.owner, self.secret)
        return self.secret


def _webhook_secret() -> str:
    """Return 256 random bits in the form of Standard Webhooks: `whsec_` and base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _owner(tenant_id: str) -> str:
    return f"webhooks/{tenant_id}"


def _valid(owner: str, now: float) -> sa.Select[Any]:
    """Select the owner's valid secrets, newest first."""
    is_valid = sa.or_(table.c.expires_at.is_(None), table.c.expires_at > now)
    newest_first = table.c.expires_at.is_(None).desc(), table.c.created_at.desc()
    return sa.select(table.c.secret).where(table.c.owner == owner, is_valid).order_by(*newest_first)


def _add(transaction: Transaction, owner: str, secret: str) -> None:
    row = {"owner": owner, "secret": secret, "created_at": transaction.now}
    transaction.execute(sa.insert(table), row)
