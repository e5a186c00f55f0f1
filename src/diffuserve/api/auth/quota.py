"""Rate limits: each call of a client counts against its tenant's plan, as work or as a read.

Requests that make work are counted by all control planes together, all others by each for itself: a count in
memory costs a read next to nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import RequireRole, bearer_of
from diffuserve.api.http.parts import part_of
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import RateLimited
from diffuserve.domain.tenant import Plan, Role
from diffuserve.quotas.base import Allowance, Quotas, Rate
from diffuserve.telemetry import log_context


@dataclass(frozen=True)
class QuotaPolicy:
    """A limit of plans: its name, in the headers as well, the field of the plan, and who counts.

    All control planes count together what `is_shared`. `account` is what follows the tenant's name where two
    policies count in the same place.
    """

    name: str
    per_second: Callable[[Plan], float | None]
    is_shared: bool
    account: str = ""


REQUESTS = QuotaPolicy("requests", lambda plan: plan.requests_per_second, is_shared=True)
ITEMS = QuotaPolicy("items of batches", REQUESTS.per_second, is_shared=True, account="/items")
READS = QuotaPolicy("reads", lambda plan: plan.reads_per_second, is_shared=False)


@dataclass(frozen=True)
class RequestRates:
    """Counts requests of tenants by their plans: in `shared` with all control planes, or in `own` alone."""

    catalog: Catalog
    shared: Quotas
    own: Quotas

    async def take(self, tenant_id: str, policy: QuotaPolicy, count: int = 1) -> Allowance | None:
        """Take so many requests of the tenant's quota; return `None` if its plan has no limit."""
        per_second = policy.per_second(await self.catalog.plan(tenant_id))
        if per_second is None:
            return None
        quotas = self.shared if policy.is_shared else self.own
        return await quotas.take(tenant_id + policy.account, Rate(per_second), count)

    async def charge_items(self, tenant_id: str, num_items: int) -> None:
        """Count items of a batch, at the rate at which the tenant may send requests.

        They have an account of their own, so that a batch does not hold up its tenant's single requests.
        Raise `RateLimited` until the items of earlier batches are paid.
        """
        allowance = await self.take(tenant_id, ITEMS, num_items)
        if allowance is not None:
            _check(tenant_id, ITEMS, allowance)


class RequireQuota(RequireRole):
    """Dependency that also takes a request of the caller's quota, and raises `RateLimited`.

    The middleware adds the quota's headers, so that error responses carry them as well.
    """

    def __init__(self, policy: QuotaPolicy, *roles: Role) -> None:
        super().__init__(*roles)
        self._policy = policy

    async def caller(self, connection: HTTPConnection, secret: str | None) -> Caller:
        """Return the caller with this secret. Raise `Unauthorized`, `Forbidden` or `RateLimited`."""
        caller = await super().caller(connection, secret)
        log_context.bind(tenant=caller.tenant_id)
        allowance = await part_of(connection, RequestRates).take(caller.tenant_id, self._policy)
        if allowance is not None:
            connection.state.quota_headers = quota_headers(self._policy, allowance)
            _check(caller.tenant_id, self._policy, allowance)
        return caller


require_reader = RequireQuota(READS, Role.TENANT, Role.OPERATOR)
require_submitter = RequireQuota(REQUESTS, Role.TENANT, Role.OPERATOR)
ClientCaller = Annotated[Caller, Depends(require_reader)]
SubmittingCaller = Annotated[Caller, Depends(require_submitter)]


async def websocket_caller(connection: HTTPConnection) -> Caller:
    """Authenticate a WebSocket: browsers cannot set its headers, so the key may be in the query."""
    secret = bearer_of(connection) or connection.query_params.get("access_token")
    return await require_reader.caller(connection, secret)


def quota_headers(policy: QuotaPolicy, allowance: Allowance) -> dict[str, str]:
    """Build the headers of draft-ietf-httpapi-ratelimit-headers; `t` is seconds until the quota is full."""
    rate = allowance.rate
    window = math.ceil(rate.burst_seconds)
    return {
        "ratelimit-policy": f'"{policy.name}";q={rate.burst};w={window}',
        "ratelimit": f'"{policy.name}";r={allowance.num_left};t={math.ceil(allowance.debt)}',
    }


def _check(tenant_id: str, policy: QuotaPolicy, allowance: Allowance) -> None:
    if not allowance.is_granted:
        raise RateLimited(
            f"tenant {tenant_id!r} exceeds the {allowance.rate.per_second:g} {policy.name} per second "
            f"of its plan; retry after {allowance.retry_after:.3g} s",
            retry_after=allowance.retry_after,
        )
