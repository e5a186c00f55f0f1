"""Use of the devices: what tenants used, and what workers cost."""

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.http.storable import Storable
from diffuserve.domain.resources.usage import UsageField, UsageResource
from diffuserve.jobs.reads.usage_reader import UsageQuery
from diffuserve.jobs.store import JobStore

router = APIRouter(tags=["usage"], route_class=JsonRoute)

Used = Annotated[JobStore, Depends(Uses(JobStore))]

_Day = Annotated[date, Field(ge=date(2000, 1, 1), le=date(2999, 12, 31))]
_TENANT = "Use of this tenant alone, for operators; others see their own use whatever it says."


class UsageParams(BaseModel):
    """Days and fields of the use that is asked for."""

    since: Annotated[_Day | None, Field(description="First day; 30 days before the last if left out.")] = None
    until: Annotated[_Day | None, Field(description="Last day; today, by UTC, if left out.")] = None
    group_by: Annotated[
        list[UsageField],
        Field(max_length=len(UsageField), description="What rows are told apart by. May be repeated."),
    ] = list(UsageQuery.group_by)
    tenant_id: Annotated[str, Field(max_length=200, description=_TENANT), Storable] | None = None


@router.get("/v1/usage", summary="Get the use of the devices", response_model=UsageResource)
async def get_usage(store: Used, caller: ClientCaller, params: Annotated[UsageParams, Query()]) -> Response:
    """Return device-seconds, images and costs by day, model, tenant, kind of machine or outcome.

    Tenants see their own, operators everybody's and what the workers cost in all.
    """
    query = UsageQuery(
        since=params.since,
        until=params.until,
        group_by=tuple(dict.fromkeys(params.group_by)),
        tenant_id=params.tenant_id if caller.scope is None else caller.scope,
    )
    return json_response(await store.usage.read(query, is_operator=caller.scope is None))
