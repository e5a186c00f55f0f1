"""Rate limits: each call of a route that submits work counts against its tenant's plan."""

import math
from typing import Annotated

from fastapi import Depends, Request

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import RequireRole
from diffuserve.api.services import Services, services_of
from diffuserve.domain.errors import RateLimited
from diffuserve.domain.tenant import Role
from diffuserve.quotas.base import Allowance, Rate

_POLICY = "requests"


class RequireQuota(RequireRole):
    """Dependency that also takes a request of the caller's quota, and raises `RateLimited`.

    The middleware adds the quota's headers, so that error responses carry them as well.
    """

    async def __call__(self, request: Request) -> Caller:
        caller = await super().__call__(request)
        allowance = await _take(services_of(request), caller.tenant_id)
        if allowance is not None:
            request.state.quota_headers = quota_headers(allowance)
            _check(caller.tenant_id, allowance)
        return caller


SubmittingCaller = Annotated[Caller, Depends(RequireQuota(Role.TENANT, Role.OPERATOR))]


def quota_headers(allowance: Allowance) -> dict[str, str]:
    """Build the headers of draft-ietf-httpapi-ratelimit-headers; `t` is seconds until the quota is full."""
    rate = allowance.rate
    window = math.ceil(rate.burst_seconds)
    return {
        "ratelimit-policy": f'"{_POLICY}";q={rate.burst};w={window}',
        "ratelimit": f'"{_POLICY}";r={allowance.num_left};t={math.ceil(allowance.debt)}',
    }


async def _take(services: Services, tenant_id: str) -> Allowance | None:
    """Take a request of the tenant's quota; return `None` if its plan has no limit."""
    plan = await services.catalog.plan(tenant_id)
    if plan.requests_per_second is None:
        return None
    return await services.quotas.take(tenant_id, Rate(plan.requests_per_second))


def _check(tenant_id: str, allowance: Allowance) -> None:
    if not allowance.is_granted:
        raise RateLimited(
            f"tenant {tenant_id!r} exceeds the {allowance.rate.per_second:g} requests per second "
            f"of its plan; retry after {allowance.retry_after:.3g} s",
            retry_after=allowance.retry_after,
        )
