"""API keys: their secrets are shown once, stored as hashes, and compared in constant time."""

import hashlib
import hmac
import re
import secrets
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, KeyNotFound, Unauthorized
from diffuserve.domain.tenant import ApiKey, PlanOverrides, Role
from diffuserve.jobs import schema
from diffuserve.jobs.command import SingleCommand
from diffuserve.jobs.database import Database, Transaction
from diffuserve.jobs.writer import Writer

api_keys = schema.api_keys
_PREFIX = "dfs"


class KeyStore:
    """API keys. Every method raises `ServerUnavailable` while the database is unreachable."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def create(
        self,
        role: Role,
        *,
        tenant_id: str | None = None,
        plan: str | None = None,
        overrides: PlanOverrides | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; return it with its secret, which is not stored.

        `plan` and `overrides` change the tenant's own.
        """
        new = make_key(role, tenant_id, plan, overrides or PlanOverrides())
        return await self._writer.run(new), new.shown

    async def list_keys(self) -> list[ApiKey]:
        """Return all keys, oldest first, revoked ones included."""
        rows = await self._database.rows(sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id))
        return [key_of(row) for row in rows]

    async def revoke(self, key_id: str) -> None:
        """Make a key invalid. Raise `KeyNotFound`."""
        await self._writer.run(RevokeKey(key_id))

    async def authenticate(self, shown: str) -> ApiKey:
        """Return the key whose secret was presented. Raise `Unauthorized`."""
        key_id, secret = split_secret(shown)
        rows = await self._database.rows(sa.select(api_keys).where(api_keys.c.id == key_id))
        return check(rows[0] if rows else None, secret)

    async def has_valid_key(self) -> bool:
        """Return whether any key is valid."""
        valid = sa.select(api_keys.c.id).where(api_keys.c.revoked_at.is_(None)).limit(1)
        return bool(await self._database.rows(valid))


@dataclass(frozen=True, kw_only=True)
class CreateKey(SingleCommand[ApiKey]):
    """Store a key, and change its tenant's plan and limits where they are given."""

    id: str
    secret: str = field(repr=False)
    role: Role
    tenant_id: str | None
    plan: str | None
    overrides: PlanOverrides

    @property
    def shown(self) -> str:
        """Text that the key's owner sends, and sees once: prefix, id and secret."""
        return f"{_PREFIX}_{self.id}_{self.secret}"

    def apply(self, transaction: Transaction) -> ApiKey:
        row = {
            "id": self.id,
            "role": self.role,
            "tenant_id": self.tenant_id,
            "secret_hash": _hash(self.secret),
            "created_at": transaction.now,
        }
        transaction.execute(transaction.upsert(api_keys).on_conflict_do_nothing(), row)
        if self.tenant_id is not None:
            self._set_plan(transaction, self.tenant_id)
        return ApiKey(id=self.id, role=self.role, tenant_id=self.tenant_id, created_at=transaction.now)

    def _set_plan(self, transaction: Transaction, tenant_id: str) -> None:
        values = {name: value for name, value in asdict(self.overrides).items() if value is not None}
        if self.plan is not None:
            values["plan"] = self.plan
        insert = transaction.upsert(schema.tenants)
        if values:
            statement = insert.on_conflict_do_update(index_elements=["id"], set_=values)
        else:
            statement = insert.on_conflict_do_nothing()
        transaction.execute(statement, {"id": tenant_id} | values)


def make_key(role: Role, tenant_id: str | None, plan: str | None, overrides: PlanOverrides) -> CreateKey:
    """Return the command that stores a new key, with a random id and secret."""
    return CreateKey(
        id=secrets.token_hex(6),
        secret=secrets.token_urlsafe(32),
        role=role,
        tenant_id=tenant_id,
        plan=plan,
        overrides=overrides,
    )


@dataclass(frozen=True)
class RevokeKey(SingleCommand[None]):
    """Make a key invalid for good; a key that was revoked before keeps its time. Or `KeyNotFound`."""

    key_id: str

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        revoked_at = sa.func.coalesce(api_keys.c.revoked_at, transaction.now)
        statement = sa.update(api_keys).where(api_keys.c.id == self.key_id).values(revoked_at=revoked_at)
        known = transaction.rows(statement.returning(api_keys.c.id))
        return None if known else KeyNotFound(f"no key {self.key_id}")


def split_secret(shown: str) -> tuple[str, str]:
    """Return the id and the secret in a key's text. Raise `Unauthorized` for other text."""
    parts = re.fullmatch(rf"{_PREFIX}_([0-9a-f]+)_([\w-]+)", shown, re.ASCII)
    if parts is None:
        raise Unauthorized(f"malformed API key: it must begin with {_PREFIX}_")
    return parts[1], parts[2]


def check(row: sa.Row[Any] | None, secret: str) -> ApiKey:
    """Return the key in a row of `api_keys`.

    Raise `Unauthorized` for a key that is unknown, wrong or revoked, without saying which.
    """
    # An unknown key is compared as well, so that the time of a response does not give away which ids exist.
    expected = row.secret_hash if row is not None else _hash("")
    is_right = hmac.compare_digest(expected.encode(), _hash(secret).encode())
    if row is None or not is_right or row.revoked_at is not None:
        raise Unauthorized("invalid API key: it is unknown or was revoked")
    return key_of(row)


def key_of(row: sa.Row[Any]) -> ApiKey:
    """Return the key in a row of `api_keys`."""
    return ApiKey(
        id=row.id,
        role=Role(row.role),
        tenant_id=row.tenant_id,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


def _hash(secret: str) -> str:
    """Hash a secret. A plain hash is enough: 256 random bits cannot be found by search, unlike a password."""
    return hashlib.sha256(secret.encode()).hexdigest()
