"""Webhooks as senders and tenants use them: endpoints, their deliveries, and signing secrets."""

import sqlalchemy as sa

from diffuserve.domain.errors import EndpointNotFound
from diffuserve.domain.webhook import Attempt, Delivery, DueDelivery, WebhookEndpoint
from diffuserve.jobs.database import Database
from diffuserve.jobs.webhooks.outbox import (
    EnableEndpoint,
    RecordAttempt,
    Redeliver,
    TakeDueDeliveries,
    deliveries,
    delivery_of,
    endpoint_of,
    endpoints,
)
from diffuserve.jobs.webhooks.signing import EnsureSecret, RotateSecret, new_secret
from diffuserve.jobs.writer import Writer


class WebhookStore:
    """Webhooks of tenants. Every method that takes a `tenant_id` accepts `None`, which matches every tenant.

    Every method raises `ServerUnavailable` while the database is unreachable.
    """

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def take_due(self, limit: int, busy: frozenset[str]) -> list[DueDelivery]:
        """Return deliveries to send now, of endpoints that are not `busy`; no other sender gets them."""
        return await self._writer.run(TakeDueDeliveries(limit, busy))

    async def record(self, attempt: Attempt) -> None:
        """Store the result of an attempt. A response of 410 disables the endpoint."""
        await self._writer.run(RecordAttempt(attempt))

    async def num_waiting(self) -> int:
        """Return the number of deliveries that are still to be sent."""
        waiting = sa.select(sa.func.count()).where(deliveries.c.next_at.is_not(None))
        return int((await self._database.rows(waiting))[0][0])

    async def endpoints(self, tenant_id: str | None = None) -> list[WebhookEndpoint]:
        """Return the tenant's endpoints, oldest first."""
        found = sa.select(endpoints).order_by(endpoints.c.created_at, endpoints.c.id)
        if tenant_id is not None:
            found = found.where(endpoints.c.tenant_id == tenant_id)
        return [endpoint_of(row) for row in await self._database.rows(found)]

    async def deliveries(
        self, endpoint_id: str, tenant_id: str | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Return at most `limit` deliveries, newest first, that are older than the delivery `after`.

        Raise `EndpointNotFound`.
        """
        if endpoint_id not in {endpoint.id for endpoint in await self.endpoints(tenant_id)}:
            raise EndpointNotFound(f"no webhook {endpoint_id}")
        page = sa.select(deliveries).where(deliveries.c.endpoint_id == endpoint_id)
        if after is not None:
            page = page.where(deliveries.c.id < after)
        rows = await self._database.rows(page.order_by(deliveries.c.id.desc()).limit(limit))
        return [delivery_of(row) for row in rows]

    async def redeliver(self, endpoint_id: str, delivery_id: str, tenant_id: str | None = None) -> Delivery:
        """Send a delivery again. Raise `DeliveryNotFound`, or `Conflict` if the endpoint is disabled."""
        return await self._writer.run(Redeliver(endpoint_id, delivery_id, tenant_id))

    async def enable(self, endpoint_id: str, tenant_id: str | None = None) -> WebhookEndpoint:
        """Send messages to a disabled endpoint again. Raise `EndpointNotFound`."""
        return await self._writer.run(EnableEndpoint(endpoint_id, tenant_id))

    async def secret(self, tenant_id: str) -> str:
        """Return the tenant's newest signing secret, made at the first call."""
        return (await self.signing_secrets(tenant_id))[0]

    async def signing_secrets(self, tenant_id: str) -> list[str]:
        """Return the tenant's valid signing secrets, newest first; the first is made at the first call."""
        return await self._writer.run(EnsureSecret(tenant_id, new_secret()))

    async def rotate_secret(self, tenant_id: str, overlap_seconds: float) -> str:
        """Make a new signing secret and return it; older ones stay valid for `overlap_seconds`."""
        return await self._writer.run(RotateSecret(tenant_id, new_secret(), overlap_seconds))
