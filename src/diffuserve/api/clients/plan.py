"""The plan of the caller's tenant."""

from fastapi import APIRouter, Response

from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.responses import json_response
from diffuserve.api.services import ServicesDep
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.resources.plan import PlanResource

router = APIRouter(tags=["plan"], route_class=JsonRoute)


@router.get("/v1/plan", summary="Get the caller's plan", response_model=PlanResource)
async def get_plan(services: ServicesDep, caller: ClientCaller) -> Response:
    """Get the limits of the caller's tenant, and the priorities that its jobs may have."""
    plan = await services.catalog.plan(caller.tenant_id)
    priorities = tuple(band for band in Band if plan.allows(band))
    return json_response(PlanResource(**vars(plan), priorities=priorities))
