"""Sizes of pools, for autoscalers such as KEDA."""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from diffuserve.api.auth.dependencies import ScalerCaller
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.pool_sizes import PoolSizes
from diffuserve.domain.resources.scale import ScaleResource

router = APIRouter(prefix="/internal/v1", tags=["operations"], route_class=JsonRoute)

Used = Annotated[PoolSizes, Depends(Uses(PoolSizes))]


class ScaledKind(StrEnum):
    """Workers that an autoscaler starts: all of a pool, or those on spot machines beside others."""

    ALL = "all"
    SPOT = "spot"


@router.get(
    "/scale/{pool:path}", summary="Get the size that a pool should have", response_model=ScaleResource
)
async def get_scale(
    pool: Annotated[str, Path(description="Id of the model whose workers are the pool.")],
    pool_sizes: Used,
    caller: ScalerCaller,
    kind: Annotated[
        ScaledKind,
        Query(description="`spot`: without the workers on demand that are there, whoever started them."),
    ] = ScaledKind.ALL,
) -> Response:
    """Get the number of workers that a model should have. For the roles monitor and operator."""
    size = await pool_sizes.of(pool)
    desired = size.desired
    beside = size.num_on_demand if kind is ScaledKind.SPOT else 0
    resource = ScaleResource(
        pool=pool,
        workers=max(desired.total - beside, 0),
        for_work=desired.for_work,
        for_rate=desired.for_rate,
        floor=desired.floor,
        predicted=desired.predicted,
        num_live=size.num_live,
        num_on_demand=size.num_on_demand,
    )
    return json_response(resource)
