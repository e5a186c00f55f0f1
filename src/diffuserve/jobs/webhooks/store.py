"""Webhooks as the store keeps them: endpoints, their deliveries, and the secrets that sign them."""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from diffuserve.domain.errors import EndpointNotFound
from diffuserve.domain.webhook import Attempt, Delivery, DueDelivery, Endpoint
from diffuserve.jobs import schema
from diffuserve.jobs.database import Database, Transaction
from diffuserve.jobs.webhooks import outbox
from diffuserve.jobs.writer import Writer

table = schema.webhook_secrets


class WebhookStore:
    """`tenant_id=None` means "whoever's". Every method raises `ServerUnavailable` as the job store's do."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    # What a sender does

    async def take_due(self, limit: int, busy: frozenset[str]) -> list[DueDelivery]:
        """ResultReporter to try now, of endpoints that are not `busy`; each goes to one sender only."""
        return await self._writer.run(outbox.take_due, outbox.Wish(limit, busy))

    async def record(self, attempt: Attempt) -> None:
        """What came of a try: delivered, to be tried again, given up, or the endpoint is disabled."""
        await self._writer.run(outbox.record, attempt)

    async def num_waiting(self) -> int:
        """ResultReporter that are still to be made."""
        waiting = sa.select(sa.func.count()).where(schema.webhook_deliveries.c.next_at.is_not(None))
        return int((await self._database.rows(waiting))[0][0])

    # What tenants see and do

    async def endpoints(self, tenant_id: str | None = None) -> list[Endpoint]:
        found = sa.select(outbox.endpoints).order_by(outbox.endpoints.c.created_at, outbox.endpoints.c.id)
        if tenant_id is not None:
            found = found.where(outbox.endpoints.c.tenant_id == tenant_id)
        return [outbox.endpoint_of(row) for row in await self._database.rows(found)]

    async def deliveries(
        self, endpoint_id: str, tenant_id: str | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Newest first, those older than `after`. Raises `EndpointNotFound`."""
        if endpoint_id not in {one.id for one in await self.endpoints(tenant_id)}:
            raise EndpointNotFound(f"no webhook {endpoint_id}")
        deliveries = outbox.deliveries
        page = sa.select(deliveries).where(deliveries.c.endpoint_id == endpoint_id)
        if after is not None:
            page = page.where(deliveries.c.id < after)
        rows = await self._database.rows(page.order_by(deliveries.c.id.desc()).limit(limit))
        return [outbox.delivery_of(row) for row in rows]

    async def redeliver(self, endpoint_id: str, delivery_id: str, tenant_id: str | None = None) -> Delivery:
        """Raises `DeliveryNotFound`, and `Conflict` where the endpoint is disabled."""
        wanted = outbox.OwnDelivery(endpoint_id, delivery_id, tenant_id)
        return await self._writer.run(outbox.redeliver, wanted)

    async def enable(self, endpoint_id: str, tenant_id: str | None = None) -> Endpoint:
        """Raises `EndpointNotFound`."""
        return await self._writer.run(outbox.enable, outbox.OwnEndpoint(endpoint_id, tenant_id))

    async def secret(self, tenant_id: str) -> str:
        """The newest; made at the first look."""
        return (await self.signing_secrets(tenant_id))[0]

    async def signing_secrets(self, tenant_id: str) -> list[str]:
        """All that are valid now, the newest first."""
        return await self._writer.run(keep_secret, NewSecret(tenant_id, _new_secret()))

    async def rotate_secret(self, tenant_id: str, overlap_seconds: float) -> str:
        """A new secret; messages are signed with the older ones as well for so long."""
        return await self._writer.run(rotate, NewSecret(tenant_id, _new_secret(), overlap_seconds))


@dataclass(frozen=True)
class NewSecret:
    """A secret that a tenant gets, and for how long the older ones go on."""

    tenant_id: str
    secret: str
    overlap_seconds: float = 0.0


def keep_secret(transaction: Transaction, offered: Sequence[NewSecret]) -> Sequence[list[str]]:
    """The tenant's own where it has some, else the one that is offered."""
    return [_valid(transaction, one.tenant_id) or _add(transaction, one) for one in offered]


def rotate(transaction: Transaction, new: Sequence[NewSecret]) -> Sequence[str]:
    return [_rotate(transaction, one) for one in new]


def _rotate(transaction: Transaction, new: NewSecret) -> str:
    if transaction.is_retry and new.secret in _valid(transaction, new.tenant_id):
        return new.secret
    older = sa.and_(table.c.tenant_id == new.tenant_id, table.c.expires_at.is_(None))
    end = transaction.now + new.overlap_seconds
    transaction.execute(sa.update(table).where(older).values(expires_at=end))
    transaction.execute(sa.delete(table).where(table.c.expires_at <= transaction.now))
    return _add(transaction, new)[0]


def _valid(transaction: Transaction, tenant_id: str) -> list[str]:
    is_valid = sa.or_(table.c.expires_at.is_(None), table.c.expires_at > transaction.now)
    newest_first = table.c.expires_at.is_(None).desc(), table.c.created_at.desc()
    found = sa.select(table.c.secret).where(table.c.tenant_id == tenant_id, is_valid)
    return [row.secret for row in transaction.rows(found.order_by(*newest_first))]


def _add(transaction: Transaction, new: NewSecret) -> list[str]:
    row = {"tenant_id": new.tenant_id, "secret": new.secret, "created_at": transaction.now}
    transaction.execute(sa.insert(table), row)
    return [new.secret]


def _new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
