"""Orders of models: operators have a worker fetch and load a model that it was not started with."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from diffuserve.api.auth.dependencies import OperatorCaller, WorkerCaller, checked_owner
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import WorkerId
from diffuserve.api.http.responses import json_response
from diffuserve.api.submit.request_bodies import ModelName
from diffuserve.api.workers.worker_validation import check_registration
from diffuserve.domain.workers.model_orders import KeptOrders, ModelOrder
from diffuserve.domain.workers.worker import ModelOffer, Registration, WorkerReport, WorkerState
from diffuserve.jobs.store import JobStore

router = APIRouter(prefix="/v1/workers", tags=["workers"], route_class=JsonRoute)

Used = Annotated[JobStore, Depends(Uses(JobStore))]


class OrderBody(BaseModel):
    """Model to have in memory, by a name in the worker's report."""

    model: ModelName
    accept_license: Annotated[
        bool, Field(description="Accept a license that restricts what the results may be used for.")
    ] = False


class OffersBody(BaseModel):
    """Models that a worker offers beside those that it registered with."""

    models: Annotated[tuple[ModelOffer, ...], Field(min_length=1, max_length=10)]


@router.post(
    "/{worker_id}/order", summary="Order a model from a worker", status_code=202, response_model=ModelOrder
)
async def order_model(worker_id: WorkerId, body: OrderBody, store: Used, caller: OperatorCaller) -> Response:
    """Have the worker fetch a model, if its files are not there, and load it. For operators.

    The worker tells in its report which models it can get, and how far it is.
    """
    order = ModelOrder(id=f"order_{secrets.token_hex(8)}", model=body.model)
    await store.leases.order_model(worker_id, order, body.accept_license)
    return json_response(order, 202)


@router.get("/{worker_id}/order", summary="List the models that a worker keeps", response_model=KeptOrders)
async def list_kept_orders(worker_id: WorkerId, store: Used, caller: OperatorCaller) -> Response:
    """List the orders that the worker has carried out, and gets again when it starts anew. For operators."""
    return json_response(KeptOrders(data=await store.leases.kept_orders(worker_id)))


@router.delete("/{worker_id}/order", summary="Cancel a worker's order of a model", status_code=204)
async def cancel_order(
    worker_id: WorkerId,
    store: Used,
    caller: OperatorCaller,
    model: Annotated[ModelName | None, Query(description="By default that of the last order.")] = None,
) -> Response:
    """Have the worker stop fetching, and not load the model again when it starts anew. For operators.

    What has arrived stays on its disk, and a model in memory is served until the worker ends.
    """
    await store.leases.cancel_order(worker_id, model)
    return Response(status_code=204)


@router.post("/{worker_id}/models", summary="Offer more models", status_code=204)
async def offer_models(worker_id: WorkerId, body: OffersBody, store: Used, caller: WorkerCaller) -> Response:
    """Offer models that the worker was ordered to have."""
    checked_owner(worker_id, caller)
    report = WorkerReport(state=WorkerState.READY)
    offered = check_registration(Registration(models=body.models, report=report))
    await store.leases.offer_more(worker_id, offered.models)
    return Response(status_code=204)
