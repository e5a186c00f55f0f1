"""API keys: their secrets are shown once, stored as hashes, and compared in constant time."""

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, DiffuserveError, InvalidParams, KeyNotFound, Unauthorized
from diffuserve.domain.tenant import ApiKey, PlanOverrides, Role, check_tenant_name, family_of
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Database, Transaction
from diffuserve.jobs.database.writer import Writer

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

        `plan` and `overrides` change the tenant's own. Raise `InvalidParams` for a reserved tenant.
        """
        if tenant_id is not None:
            check_tenant_name(tenant_id)
        new = make_key(role, tenant_id, plan, overrides or PlanOverrides())
        return await self._writer.run(new), new.shown

    async def adopt(self, shown: str) -> None:
        """Accept a key that was made elsewhere, for the default tenant. Raise `Unauthorized` for no key.

        A key that is known already stays as it is.
        """
        key_id, secret = split_secret(shown)
        made = make_key(Role.TENANT, None, None, PlanOverrides())
        await self._writer.run(replace(made, id=key_id, secret=secret))

    async def list_keys(self) -> list[ApiKey]:
        """Return all keys, oldest first, revoked ones included."""
        rows = await self._database.rows(sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id))
        return [key_of(row) for row in rows]

    async def rotate(self, key_id: str, overlap_seconds: float) -> tuple[ApiKey, str]:
        """Replace a key; return the new one, for the same role and tenant, with its secret.

        The old key is valid for `overlap_seconds` more. Raise `KeyNotFound`, or `Conflict` for a key that
        was replaced or revoked before.
        """
        if not 0 <= overlap_seconds < math.inf:
            raise InvalidParams("overlap_seconds", overlap_seconds, "must be a finite time, 0 or more")
        new = RotateKey(
            id=f"{family_of(key_id)}{_new_id()}",
            secret=_new_secret(),
            replaced_id=key_id,
            overlap_seconds=overlap_seconds,
        )
        return await self._writer.run(new), _shown(new.id, new.secret)

    async def revoke(self, key_id: str) -> None:
        """Make a key invalid, at once. Raise `KeyNotFound`."""
        await self._writer.run(RevokeKey(key_id))

    async def authenticate(self, shown: str) -> ApiKey:
        """Return the key whose secret was presented. Raise `Unauthorized`."""
        key_id, secret = split_secret(shown)
        rows = await self._database.rows(sa.select(api_keys).where(api_keys.c.id == key_id))
        row = rows[0] if rows else None
        may_end = row is not None and row.revoked_at is not None
        return check(row, secret, await self._database.now() if may_end else 0.0)

    async def valid_key(self, key_id: str) -> ApiKey:
        """Return the valid key with this id. Raise `Unauthorized`."""
        chosen = sa.select(api_keys).where(api_keys.c.id == key_id)
        rows = await self._database.rows(chosen.where(_is_valid(await self._database.now())))
        if not rows:
            raise Unauthorized("the API key is not valid any more")
        return key_of(rows[0])

    async def has_key(self) -> bool:
        """Return whether there is a key or was one: a revoked key counts as well."""
        return bool(await self._database.rows(sa.select(api_keys.c.id).limit(1)))

    async def has_valid_key(self) -> bool:
        """Return whether any key is valid."""
        valid = sa.select(api_keys.c.id).where(_is_valid(await self._database.now())).limit(1)
        return bool(await self._database.rows(valid))

    async def valid_among(self, key_ids: Collection[str]) -> set[str]:
        """Return the ids of those keys that are valid."""
        chosen = sa.select(api_keys.c.id).where(api_keys.c.id.in_(sorted(key_ids)))
        rows = await self._database.rows(chosen.where(_is_valid(await self._database.now())))
        return {row.id for row in rows}

    async def has_tenant_key(self, tenant_id: str) -> bool:
        """Return whether a key with the role tenant was made for this tenant."""
        rows = sa.select(api_keys.c.id).where(
            api_keys.c.role == Role.TENANT, api_keys.c.tenant_id == tenant_id
        )
        return bool(await self._database.rows(rows.limit(1)))


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
        return _shown(self.id, self.secret)

    def apply(self, transaction: Transaction) -> ApiKey:
        key = ApiKey(id=self.id, role=self.role, tenant_id=self.tenant_id, created_at=transaction.now)
        _insert(transaction, key, self.secret)
        if self.tenant_id is not None:
            self._set_plan(transaction, self.tenant_id)
        return key

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
        id=_new_id(),
        secret=_new_secret(),
        role=role,
        tenant_id=tenant_id,
        plan=plan,
        overrides=overrides,
    )


@dataclass(frozen=True, kw_only=True)
class RotateKey(SingleCommand[ApiKey]):
    """Store the successor of a key, which ends `overlap_seconds` later. `KeyNotFound`, or `Conflict`."""

    id: str
    secret: str = field(repr=False)
    replaced_id: str
    overlap_seconds: float

    def apply(self, transaction: Transaction) -> ApiKey | DiffuserveError:
        both = sa.select(api_keys).where(api_keys.c.id.in_([self.id, self.replaced_id]))
        stored = {row.id: row for row in transaction.rows(both)}
        if self.id in stored:  # the result of an earlier attempt was lost
            return key_of(stored[self.id])
        if self.replaced_id not in stored:
            return KeyNotFound(f"no key {self.replaced_id}")
        old = key_of(stored[self.replaced_id])
        if old.revoked_at is not None:
            return Conflict(f"key {old.id} was replaced or revoked; rotate its successor, or create a key")
        new = ApiKey(id=self.id, role=old.role, tenant_id=old.tenant_id, created_at=transaction.now)
        _insert(transaction, new, self.secret)
        ended = sa.update(api_keys).where(api_keys.c.id == old.id)
        transaction.execute(ended.values(revoked_at=transaction.now + self.overlap_seconds))
        return new


@dataclass(frozen=True)
class RevokeKey(SingleCommand[None]):
    """Make a key invalid for good; a key that was revoked before keeps its time. Or `KeyNotFound`."""

    key_id: str

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        now = transaction.now
        revoked_at = sa.case((api_keys.c.revoked_at <= now, api_keys.c.revoked_at), else_=now)
        statement = sa.update(api_keys).where(api_keys.c.id == self.key_id).values(revoked_at=revoked_at)
        known = transaction.rows(statement.returning(api_keys.c.id))
        return None if known else KeyNotFound(f"no key {self.key_id}")


def split_secret(shown: str) -> tuple[str, str]:
    """Return the id and the secret in a key's text. Raise `Unauthorized` for other text."""
    parts = re.fullmatch(rf"{_PREFIX}_([0-9a-f]+)_([\w-]+)", shown, re.ASCII)
    if parts is None:
        raise Unauthorized(f"malformed API key: it must begin with {_PREFIX}_")
    return parts[1], parts[2]


def check(row: sa.Row[Any] | None, secret: str, now: float) -> ApiKey:
    """Return the key in a row of `api_keys`.

    Raise `Unauthorized` for a key that is unknown, wrong or revoked by `now`, without saying which.
    """
    # An unknown key is compared as well, so that the time of a response does not give away which ids exist.
    expected = row.secret_hash if row is not None else _hash("")
    is_right = hmac.compare_digest(expected.encode(), _hash(secret).encode())
    if row is None or not is_right or (row.revoked_at is not None and row.revoked_at <= now):
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


def _insert(transaction: Transaction, key: ApiKey, secret: str) -> None:
    row = {
        "id": key.id,
        "role": key.role,
        "tenant_id": key.tenant_id,
        "secret_hash": _hash(secret),
        "created_at": key.created_at,
    }
    transaction.execute(transaction.upsert(api_keys).on_conflict_do_nothing(), row)


def _is_valid(now: float) -> sa.ColumnElement[bool]:
    return sa.or_(api_keys.c.revoked_at.is_(None), api_keys.c.revoked_at > now)


def _new_id() -> str:
    return secrets.token_hex(6)


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


def _shown(key_id: str, secret: str) -> str:
    return f"{_PREFIX}_{key_id}_{secret}"


def _hash(secret: str) -> str:
    """Hash a secret. A plain hash is enough: 256 random bits cannot be found by search, unlike a password."""
    return hashlib.sha256(secret.encode()).hexdigest()
