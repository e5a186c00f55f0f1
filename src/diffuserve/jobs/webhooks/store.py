"""Webhooks as senders and tenants use them: endpoints, their deliveries, and signing secrets."""

from collections.abc import Collection

import sqlalchemy as sa

from diffuserve.domain.errors import EndpointNotFound
from diffuserve.domain.jobs.webhook import Delivery, DeliveryAttempt, DueDelivery, WebhookEndpoint
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.policy.webhook_turns import Load, SendLimits, choose
from diffuserve.jobs.security.signing_secrets import WebhookSecrets
from diffuserve.jobs.webhooks.due import find_due
from diffuserve.jobs.webhooks.outbox import (
    EnableEndpoint,
    RecordAttempt,
    Redeliver,
    TakeDeliveries,
    deliveries,
    endpoints,
)
from diffuserve.jobs.webhooks.records import delivery_of, endpoint_of


class WebhookStore:
    """Webhooks of tenants. Every method that takes a `tenant_id` accepts `None`, which matches every tenant.

    Every method raises `ServerUnavailable` while the database is unreachable.
    """

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer
        self._secrets = WebhookSecrets(database, writer)

    async def find_due(self, in_flight: Collection[Delivery], limits: SendLimits) -> list[Delivery]:
        """Return the deliveries to send next beside those that a sender has `in_flight`."""
        load = Load(in_flight, limits)
        if load.room <= 0:
            return []
        now = await self._database.now()
        waiting = await self._database.read(lambda connection: find_due(connection, now, load, limits))
        return choose(waiting, in_flight, limits)

    async def take(self, delivery_ids: Collection[str], lease_seconds: float) -> list[DueDelivery]:
        """Return those of the deliveries that are still due; no other sender gets them meanwhile."""
        return await self._writer.run(TakeDeliveries(delivery_ids, lease_seconds))

    async def record(self, attempt: DeliveryAttempt) -> None:
        """Store the result of an attempt. A response of 410 disables the endpoint."""
        await self._writer.run(RecordAttempt(attempt))

    async def num_waiting(self) -> int:
        """Return the number of deliveries that are still to be sent."""
        waiting = sa.select(sa.func.count()).where(deliveries.c.next_at.is_not(None))
        return int((await self._database.rows(waiting))[0][0])

    async def endpoints(
        self, tenant_id: str | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[WebhookEndpoint]:
        """Return at most `limit` of the tenant's endpoints, newest first, older than the one `after`."""
        page = sa.select(endpoints).order_by(endpoints.c.id.desc()).limit(limit)
        if tenant_id is not None:
            page = page.where(endpoints.c.tenant_id == tenant_id)
        if after is not None:
            page = page.where(endpoints.c.id < after)
        return [endpoint_of(row) for row in await self._database.rows(page)]

    async def deliveries(
        self, endpoint_id: str, tenant_id: str | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Return at most `limit` deliveries, newest first, that are older than the delivery `after`.

        Raise `EndpointNotFound`.
        """
        await self._check_endpoint(endpoint_id, tenant_id)
        page = sa.select(deliveries).where(deliveries.c.endpoint_id == endpoint_id)
        if after is not None:
            page = page.where(deliveries.c.id < after)
        rows = await self._database.rows(page.order_by(deliveries.c.id.desc()).limit(limit))
        return [delivery_of(row) for row in rows]

    async def _check_endpoint(self, endpoint_id: str, tenant_id: str | None) -> None:
        found = await self._database.rows(sa.select(endpoints).where(endpoints.c.id == endpoint_id))
        if not found or tenant_id not in (None, found[0].tenant_id):
            raise EndpointNotFound(f"no webhook {endpoint_id}")

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
        return await self._secrets.valid(tenant_id)

    async def rotate_secret(self, tenant_id: str, overlap_seconds: float) -> str:
        """Make a new signing secret and return it; older ones stay valid for `overlap_seconds`."""
        return await self._secrets.rotate(tenant_id, overlap_seconds)
