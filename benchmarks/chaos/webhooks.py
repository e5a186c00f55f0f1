"""The receiver of webhooks, and the comparison of its messages with the jobs."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import sqlalchemy as sa
from standardwebhooks import Webhook as Signature
from standardwebhooks import WebhookVerificationError

from benchmarks.chaos.audit import Records
from benchmarks.chaos.tenants import TenantKey
from diffuserve.domain.jobs.job import FINAL_STATUSES
from diffuserve.domain.jobs.webhook import DeliveryStatus
from diffuserve.jobs.database import schema
from support.http_request import ReceivedRequest
from support.webhook_receiver import WebhookReceiver

jobs, deliveries = schema.jobs, schema.webhook_deliveries

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Message:
    """A message that `tenant` received."""

    webhook_id: str
    job_id: str
    status: str
    tenant: str


@dataclass(frozen=True, kw_only=True)
class WebhookCounts:
    """Counts of final jobs by their webhooks; `missing` and `untrue` must be 0.

    `told`: received at least once. `owed`: still in the outbox. `missing`: neither received nor in the
    outbox. `repeated`: messages received again with the same id. `untrue`: messages with a false
    signature, of an unknown job, with another status than the job's, or with a second id for a job.
    `crossed`: messages of a job of another tenant than their receiver; it must be 0.
    """

    told: int
    owed: int
    missing: int
    repeated: int
    untrue: int
    crossed: int


class WebhookLog:
    """Messages in the order of their arrival, verified on arrival with the secret of their tenant."""

    def __init__(self, receiver: WebhookReceiver, secrets: Mapping[str, str]) -> None:
        self.messages: list[Message] = []
        self.num_forged = 0
        self._receiver = receiver
        self._signatures = {tenant: Signature(secret) for tenant, secret in secrets.items()}
        self._num_read = 0

    async def listen(self) -> None:
        """Read messages until canceled."""
        while True:
            await self._receiver.arrived.wait()
            self._receiver.arrived.clear()
            self.read()

    def read(self) -> None:
        new = self._receiver.received[self._num_read :]
        self._num_read += len(new)
        for received in new:
            self._note(received)

    def _note(self, received: ReceivedRequest) -> None:
        tenant = received.path.partition("=")[2]
        try:
            told = self._signatures[tenant].verify(received.body, dict(received.headers))
        except WebhookVerificationError:
            self.num_forged += 1
            return
        job = told["data"]
        is_of_one_mind = told["type"] == f"job.{job['status']}"
        self.num_forged += not is_of_one_mind
        self.messages.append(Message(received.headers["webhook-id"], job["id"], job["status"], tenant))


def webhook_url(receiver_url: str, tenant: TenantKey) -> str:
    """Return the tenant's own URL at the receiver."""
    return f"{receiver_url}?tenant={tenant.name}"


@asynccontextmanager
async def listening(
    receiver: WebhookReceiver, server: str, tenants: Sequence[TenantKey]
) -> AsyncGenerator[WebhookLog]:
    """Receive messages within the block, verified with the secrets that `server` issues."""
    log = WebhookLog(receiver, {tenant.name: await _secret(server, tenant.key) for tenant in tenants})
    task = asyncio.create_task(log.listen())
    try:
        yield log
    finally:
        task.cancel()


async def _secret(server: str, key: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        headers = {"authorization": f"Bearer {key}"}
        answer = await client.get(f"{server}/v1/webhooks/secret", headers=headers)
        return str(answer.raise_for_status().json()["secret"])


async def until_sent(records: Records, grace_seconds: float) -> None:
    """Wait until the outbox is empty, or time is over; attempts of a killed sender are due after 1 min."""
    deadline = time.monotonic() + grace_seconds
    while await _owed(records) and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)


async def audit_webhooks(records: Records, log: WebhookLog, owners: Mapping[str, str]) -> WebhookCounts:
    log.read()
    ended = sa.select(jobs.c.id, jobs.c.status).where(jobs.c.status.in_(FINAL_STATUSES))
    final = {row.id: str(row.status) for row in await records.rows(ended)}
    told = {message.job_id for message in log.messages}
    owed = await _owed(records) - told
    return WebhookCounts(
        told=len(final.keys() & told),
        owed=len(final.keys() & owed),
        missing=len(final.keys() - told - owed),
        repeated=len(log.messages) - len({message.webhook_id for message in log.messages}),
        untrue=log.num_forged + _num_untrue(log, final),
        crossed=sum(owners.get(message.job_id) != message.tenant for message in log.messages),
    )


def _num_untrue(log: WebhookLog, final: Mapping[str, str]) -> int:
    false = sum(final.get(message.job_id) != message.status for message in log.messages)
    names = {(message.job_id, message.webhook_id) for message in log.messages}
    return false + len(names) - len({job_id for job_id, _ in names})


async def _owed(records: Records) -> set[str]:
    """Return the jobs whose message is not recorded as sent yet."""
    waiting = sa.select(deliveries.c.subject_id).where(deliveries.c.status == DeliveryStatus.PENDING)
    return {row.subject_id for row in await records.rows(waiting)}
