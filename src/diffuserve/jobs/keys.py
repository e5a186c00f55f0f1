"""API keys: shown once, stored as a hash, compared in constant time."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, KeyNotFound, Unauthorized
from diffuserve.domain.tenant import ApiKey, PlanOverrides, Role
from diffuserve.jobs import schema
from diffuserve.jobs.database import Database, Transaction
from diffuserve.jobs.writer import Writer

api_keys = schema.api_keys
_PREFIX = "dfs"
_SIGNING = "result-urls"


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
        return await self._writer.run(create, new), new.shown

    async def list_keys(self) -> list[ApiKey]:
        """Return all keys, oldest first, revoked ones included."""
        rows = await self._database.rows(sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id))
        return [key_of(row) for row in rows]

    async def revoke(self, key_id: str) -> None:
        """Make a key invalid. Raise `KeyNotFound`."""
        await self._writer.run(revoke, key_id)

    async def authenticate(self, shown: str) -> ApiKey:
        """Return the key whose secret was presented. Raise `Unauthorized`."""
        key_id, secret = split_secret(shown)
        rows = await self._database.rows(sa.select(api_keys).where(api_keys.c.id == key_id))
        return check(rows[0] if rows else None, secret)

    async def has_valid_key(self) -> bool:
        """Return whether any key is valid."""
        valid = sa.select(api_keys.c.id).where(api_keys.c.revoked_at.is_(None)).limit(1)
        return bool(await self._database.rows(valid))

    async def signing_secret(self) -> bytes:
        """Return the secret that signs result URLs, made at the first call and shared by all replicas."""
        kept = await self._writer.run(keep_signing_secret, secrets.token_hex(32))
        return bytes.fromhex(kept)


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key to be made; the tenant's plan and limits are changed where they are given."""

    id: str
    secret: str
    role: Role
    tenant_id: str | None
    plan: str | None
    overrides: PlanOverrides

    @property
    def shown(self) -> str:
        """What its owner gets to see, once."""
        return f"{_PREFIX}_{self.id}_{self.secret}"


def make_key(role: Role, tenant_id: str | None, plan: str | None, overrides: PlanOverrides) -> NewKey:
    return NewKey(
        id=secrets.token_hex(6),
        secret=secrets.token_urlsafe(32),
        role=role,
        tenant_id=tenant_id,
        plan=plan,
        overrides=overrides,
    )


def create(transaction: Transaction, new: Sequence[NewKey]) -> Sequence[ApiKey | DiffuserveError]:
    rows = [
        {
            "id": one.id,
            "role": one.role,
            "tenant_id": one.tenant_id,
            "secret_hash": _hash(one.secret),
            "created_at": transaction.now,
        }
        for one in new
    ]
    transaction.execute(transaction.upsert(api_keys).on_conflict_do_nothing(), rows)
    for one in new:
        if one.tenant_id is not None:
            _set_plan(transaction, one.tenant_id, one)
    return [
        ApiKey(id=one.id, role=one.role, tenant_id=one.tenant_id, created_at=transaction.now) for one in new
    ]


def revoke(transaction: Transaction, key_ids: Sequence[str]) -> Sequence[DiffuserveError | None]:
    statement = sa.update(api_keys).where(api_keys.c.id.in_(list(key_ids)))
    moment = sa.func.coalesce(api_keys.c.revoked_at, transaction.now)
    known = {row.id for row in transaction.rows(statement.values(revoked_at=moment).returning(api_keys.c.id))}
    return [None if one in known else KeyNotFound(f"no key {one}") for one in key_ids]


def keep_signing_secret(transaction: Transaction, offered: Sequence[str]) -> Sequence[str]:
    """The secret of this database: the first that was offered."""
    table = schema.secrets
    insert = transaction.upsert(table).on_conflict_do_nothing()
    transaction.execute(insert, {"name": _SIGNING, "value": offered[0]})
    rows = transaction.rows(sa.select(table.c.value).where(table.c.name == _SIGNING))
    return [rows[0].value for _ in offered]


def split_secret(shown: str) -> tuple[str, str]:
    """The key's id and its secret. Raises `Unauthorized`."""
    parts = re.fullmatch(rf"{_PREFIX}_([0-9a-f]+)_([\w-]+)", shown, re.ASCII)
    if parts is None:
        raise Unauthorized(f"this is no key of ours; it would begin with {_PREFIX}_")
    return parts[1], parts[2]


def check(row: sa.Row[Any] | None, secret: str) -> ApiKey:
    """Raises `Unauthorized` for a key that is unknown, wrong or revoked, without saying which."""
    expected = row.secret_hash if row is not None else _hash("")
    is_right = hmac.compare_digest(expected.encode(), _hash(secret).encode())
    if row is None or not is_right or row.revoked_at is not None:
        raise Unauthorized("this key is not known, or was revoked")
    return key_of(row)


def key_of(row: sa.Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        role=Role(row.role),
        tenant_id=row.tenant_id,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


def _hash(secret: str) -> str:
    """Secrets are 256 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _set_plan(transaction: Transaction, tenant_id: str, new: NewKey) -> None:
    values = {name: value for name, value in asdict(new.overrides).items() if value is not None}
    if new.plan is not None:
        values["plan"] = new.plan
    insert = transaction.upsert(schema.tenants)
    row = {"id": tenant_id} | values
    if values:
        statement = insert.on_conflict_do_update(index_elements=["id"], set_=values)
    else:
        statement = insert.on_conflict_do_nothing()
    transaction.execute(statement, row)
