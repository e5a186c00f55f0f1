"""The plan of the caller's tenant."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.resources.plan import PlanResource

router = APIRouter(tags=["plan"], route_class=JsonRoute)

Used = Annotated[Catalog, Depends(Uses(Catalog))]


@router.get("/v1/plan", summary="Get the caller's plan", response_model=PlanResource)
async def get_plan(catalog: Used, caller: ClientCaller) -> Response:
    """Get the limits of the caller's tenant, and the priorities that its jobs may have."""
    plan = await catalog.plan(caller.tenant_id)
    priorities = tuple(band for band in Band if plan.allows(band))
    return json_response(PlanResource(**vars(plan), priorities=priorities))
