"""FastAPI dependencies of routes that hold a response open: each takes a slot of its tenant."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import RequireRole
from diffuserve.api.auth.quota import require_reader, require_submitter
from diffuserve.api.services import Services, ServicesDep
from diffuserve.domain.tenant import Role


@asynccontextmanager
async def wait_slot(services: Services, caller: Caller) -> AsyncIterator[None]:
    """Hold a slot of the caller's tenant while its response is open. Raise `TooManyWaits`."""
    plan = await services.catalog.plan(caller.tenant_id)
    with services.waits.slot(caller.tenant_id, plan):
        yield


def _with_slot(require: RequireRole) -> Callable[..., AsyncIterator[Caller]]:
    """Return a dependency that also holds a slot until the response has ended, however it ends."""

    async def hold(
        services: ServicesDep, caller: Annotated[Caller, Depends(require)]
    ) -> AsyncIterator[Caller]:
        async with wait_slot(services, caller):
            yield caller

    return hold


FollowingCaller = Annotated[Caller, Depends(_with_slot(require_reader))]
SubmittingFollower = Annotated[Caller, Depends(_with_slot(require_submitter))]
WatchingOperator = Annotated[Caller, Depends(_with_slot(RequireRole(Role.OPERATOR)))]
