"""FastAPI dependencies of routes that hold a response open: each takes a slot of its tenant."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import RequireRole
from diffuserve.api.auth.open_waits import OpenWaits
from diffuserve.api.auth.quota import require_reader, require_submitter
from diffuserve.api.http.parts import Uses
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.tenant import Role


@dataclass(frozen=True)
class WaitSlots:
    """Slots of responses that are held open, as many for each tenant as its plan allows."""

    catalog: Catalog
    waits: OpenWaits

    @asynccontextmanager
    async def hold(self, caller: Caller) -> AsyncIterator[None]:
        """Hold a slot of the caller's tenant while its response is open. Raise `TooManyWaits`."""
        plan = await self.catalog.plan(caller.tenant_id)
        with self.waits.slot(caller.tenant_id, plan):
            yield


Slots = Annotated[WaitSlots, Depends(Uses(WaitSlots))]


def _with_slot(require: RequireRole) -> Callable[..., AsyncIterator[Caller]]:
    """Return a dependency that also holds a slot until the response has ended, however it ends."""

    async def hold(slots: Slots, caller: Annotated[Caller, Depends(require)]) -> AsyncIterator[Caller]:
        async with slots.hold(caller):
            yield caller

    return hold


FollowingCaller = Annotated[Caller, Depends(_with_slot(require_reader))]
SubmittingFollower = Annotated[Caller, Depends(_with_slot(require_submitter))]
WatchingOperator = Annotated[Caller, Depends(_with_slot(RequireRole(Role.OPERATOR)))]
