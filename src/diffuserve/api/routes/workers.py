"""What workers say of themselves and ask for, and what operators see of them."""

import asyncio
import random
import time
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from diffuserve.api.auth.dependencies import Operator, WorkerOnly
from diffuserve.api.path_params import WorkerId
from diffuserve.api.responses import json_response, rfc3339
from diffuserve.api.schemas import ClaimedShape, WorkersShape
from diffuserve.api.services import Services, ServicesOf
from diffuserve.api.worker_validation import check_claim, check_heartbeat, check_registration
from diffuserve.domain.worker import Claim, ControlCommands, Heartbeat, Lease, Registered, Registration
from diffuserve.events.base import QUEUE, Subscription, worker_topic

router = APIRouter(prefix="/v1/workers", tags=["workers"])

Wait = Annotated[
    float, Query(ge=0, allow_inf_nan=False, description="Seconds to hold the answer back, 25 at most.")
]


@router.get("", summary="List workers", response_model=WorkersShape)
async def list_workers(services: ServicesOf, caller: Operator) -> Response:
    workers = [
        asdict(worker)
        | {"registered_at": rfc3339(worker.registered_at), "heartbeat_at": rfc3339(worker.heartbeat_at)}
        for worker in await services.store.operations.workers()
    ]
    return json_response({"data": workers})


@router.post("", summary="Register a worker", status_code=201, response_model=Registered)
async def register(body: Registration, services: ServicesOf, caller: WorkerOnly) -> Response:
    worker_id = await services.store.leases.register(check_registration(body))
    config = services.store.config
    registered = Registered(
        worker_id, config.lease_seconds, config.heartbeat_seconds, services.artifacts.signs_urls
    )
    return json_response(registered, 201)


@router.post("/{worker_id}/claim", summary="Ask for jobs", response_model=ClaimedShape)
async def claim(
    worker_id: WorkerId,
    body: Claim,
    request: Request,
    services: ServicesOf,
    caller: WorkerOnly,
    wait: Wait = 0.0,
) -> Response:
    """Held back until there is something to do. The same `claim_id` gets the same leases again."""
    end = asyncio.get_running_loop().time() + min(wait, services.config.longest_poll_seconds)
    leases = await _claim_until(end, services, worker_id, check_claim(body), request)
    return json_response({"leases": leases})


@router.post("/{worker_id}/heartbeat", summary="Renew leases", response_model=ControlCommands)
async def heartbeat(
    worker_id: WorkerId, body: Heartbeat, services: ServicesOf, caller: WorkerOnly
) -> Response:
    return json_response(await services.store.leases.heartbeat(worker_id, check_heartbeat(body)))


@router.post("/{worker_id}/drain", summary="Give this worker no more jobs", status_code=204)
async def drain(worker_id: WorkerId, services: ServicesOf, caller: WorkerOnly) -> Response:
    await services.store.leases.drain(worker_id)
    return Response(status_code=204)


@router.get("/{worker_id}/control", summary="Wait for orders", response_model=ControlCommands)
async def control(
    worker_id: WorkerId,
    services: ServicesOf,
    caller: WorkerOnly,
    wait: Wait = 25.0,
    known: Annotated[str, Query(description="Ids of jobs whose cancel was heard, by commas.")] = "",
    draining: bool = False,
) -> Response:
    """Answers at once with what the worker does not know yet, else with nothing when time is up."""
    end = asyncio.get_running_loop().time() + min(wait, services.config.longest_poll_seconds)
    orders = await _orders_until(end, services, worker_id, frozenset(known.split(",")), draining)
    return json_response(orders)


async def _claim_until(
    end: float, services: Services, worker_id: str, claim: Claim, request: Request
) -> list[Lease]:
    """The subscription comes first, so that what becomes ready during a claim is heard."""
    loop = asyncio.get_running_loop()
    with services.bus.subscribe(QUEUE) as hints:
        while True:
            leases = await _claim(services, worker_id, claim)
            if leases or loop.time() >= end:
                return leases
            await _hint(hints, min(_look_seconds(services), end - loop.time()))
            if await request.is_disconnected():
                return []


async def _claim(services: Services, worker_id: str, claim: Claim) -> list[Lease]:
    started_at = time.perf_counter()
    leases = await services.store.leases.claim(worker_id, claim)
    services.metrics.claim_seconds.observe(time.perf_counter() - started_at)
    services.times.claimed(leases)
    return leases


async def _hint(hints: Subscription, seconds: float) -> None:
    """Wait for one; those that came with it say the same."""
    if await hints.get(seconds) is not None:
        while await hints.get(0.0) is not None:
            pass


async def _orders_until(
    end: float, services: Services, worker_id: str, known: frozenset[str], is_draining: bool
) -> ControlCommands:
    loop = asyncio.get_running_loop()
    with services.bus.subscribe(worker_topic(worker_id)) as messages:
        while True:
            orders = await services.store.leases.control_commands(worker_id)
            cancel = tuple(job_id for job_id in orders.cancel if job_id not in known)
            news = ControlCommands(cancel=cancel, drain=orders.drain and not is_draining)
            if news or loop.time() >= end:
                return news
            message = await messages.get(min(_look_seconds(services), end - loop.time()))
            if message is not None and message["type"] == "lost":
                return ControlCommands(lost=(message["job_id"],))


def _look_seconds(services: Services) -> float:
    """Workers that began together should not go on together."""
    return services.config.look_seconds * random.uniform(0.8, 1.2)
