"""Workers: registration, claims, heartbeats and control commands; and the operators' listing."""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import (
    OperatorCaller,
    WorkerCaller,
    WorkerOrOperatorCaller,
    checked_owner,
    checked_owner_or_operator,
    key_of,
)
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.following.job_metrics import JobMetrics
from diffuserve.api.following.watched_jobs import WatchedJobs
from diffuserve.api.http.interruptible import idle
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import WorkerId
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.pool_sizes import PoolSizes
from diffuserve.api.reads.worker_polls import WorkerPolls
from diffuserve.api.resources.serializers import worker_resource
from diffuserve.api.workers.progress import publish_progress
from diffuserve.api.workers.worker_validation import (
    check_heartbeat,
    check_progress,
    check_registration,
    check_storable,
)
from diffuserve.backoff import jitter
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.jobs.progress_report import WatchedReports, WorkerProgress
from diffuserve.domain.resources.scale import LeavingResource
from diffuserve.domain.resources.worker import WorkerList
from diffuserve.domain.text.path_parts import Sha256
from diffuserve.domain.trace_context import TraceContext
from diffuserve.domain.workers.peers import PeerAdvice
from diffuserve.domain.workers.worker import (
    ClaimedLeases,
    ControlCommands,
    Heartbeat,
    Lease,
    ReceivedCommands,
    Registered,
    Registration,
)
from diffuserve.events.base import QUEUE, EventBus, Subscription, worker_topic
from diffuserve.jobs.leases.claim import Claimed
from diffuserve.jobs.policy.peers import advise
from diffuserve.jobs.store import JobStore
from diffuserve.quotas.base import Quotas, Rate
from diffuserve.storage.base import ArtifactStore
from diffuserve.telemetry.metrics import ControlMetrics
from diffuserve.telemetry.tracing import Tracer, attributes_of

router = APIRouter(prefix="/v1/workers", tags=["workers"], route_class=JsonRoute)


@dataclass(frozen=True)
class WorkerParts:
    """Parts that these routes use."""

    store: JobStore
    artifacts: ArtifactStore
    bus: EventBus
    config: ApiConfig
    quotas: Quotas
    worker_polls: WorkerPolls
    pool_sizes: PoolSizes
    watched_jobs: WatchedJobs
    metrics: ControlMetrics
    job_metrics: JobMetrics
    tracer: Tracer


Used = Annotated[WorkerParts, Depends(Uses(WorkerParts))]


_REGISTRATIONS = Rate(20.0)  # of one key

Wait = Annotated[
    float, Query(ge=0, allow_inf_nan=False, description="Seconds to delay the response, 25 at most.")
]
ModelHash = Annotated[Sha256, Query(description="Hash of a version of a model.")]


@router.get("", summary="List workers", response_model=WorkerList)
async def list_workers(parts: Used, caller: OperatorCaller) -> Response:
    """List every worker, lost ones included. For operators."""
    workers = await parts.store.operations.workers()
    return json_response(WorkerList(data=tuple(map(worker_resource, workers))))


@router.post("", summary="Register a worker", status_code=201, response_model=Registered)
async def register_worker(body: Registration, parts: Used, caller: WorkerCaller) -> Response:
    """Register a worker with the models that it offers."""
    await _count_registration(parts, caller)
    worker_id = await parts.store.leases.register(check_registration(body), key_of(caller))
    config = parts.store.config
    registered = Registered(
        worker_id,
        config.lease_seconds,
        config.heartbeat_seconds,
        parts.artifacts.signs_urls,
        0 if parts.artifacts.signs_urls else parts.config.max_inline_bytes,
    )
    return json_response(registered, 201)


@router.post("/{worker_id}/claim", summary="Claim jobs", response_model=ClaimedLeases)
async def claim_jobs(
    worker_id: WorkerId,
    body: Claim,
    request: Request,
    parts: Used,
    caller: WorkerCaller,
    wait: Wait = 0.0,
) -> Response:
    """Lease jobs to the worker, as soon as there are any. The same `claim_id` gets the same leases again."""
    checked_owner(worker_id, caller)
    end = asyncio.get_running_loop().time() + min(wait, parts.config.longest_poll_seconds)
    leases = await _claim_until(end, parts, worker_id, check_storable(body), request)
    return json_response(ClaimedLeases(leases=tuple(leases)))


@router.post(
    "/{worker_id}/progress", summary="Report progress of several jobs", response_model=WatchedReports
)
async def report_progress(
    worker_id: WorkerId, body: WorkerProgress, parts: Used, caller: WorkerCaller
) -> Response:
    """Publish progress, and name the jobs that clients watch; what is of a lost lease is dropped."""
    checked_owner(worker_id, caller)
    held = await parts.store.leases.held_by(worker_id)
    reported = [
        advanced
        for advanced in check_progress(body).jobs
        if held.get(advanced.job_id) == advanced.report.lease_token
    ]
    for advanced in reported:
        publish_progress(parts.bus, advanced.job_id, advanced.report)
    watched = parts.watched_jobs.among(advanced.job_id for advanced in reported)
    return json_response(WatchedReports(watched=watched))


@router.post("/{worker_id}/heartbeat", summary="Renew leases", response_model=ControlCommands)
async def renew_leases(worker_id: WorkerId, body: Heartbeat, parts: Used, caller: WorkerCaller) -> Response:
    """Renew the leases that the worker holds, and return its control commands."""
    checked_owner(worker_id, caller)
    return json_response(await parts.store.leases.heartbeat(worker_id, check_heartbeat(body)))


@router.get("/{worker_id}/peers", summary="List peers of a model", response_model=PeerAdvice)
async def list_peers(worker_id: WorkerId, model: ModelHash, parts: Used, caller: WorkerCaller) -> Response:
    """Return the peers of a worker in a model that it reports, and its share of the reads of the bucket."""
    checked_owner(worker_id, caller)
    now, workers = await parts.worker_polls.workers()
    return json_response(advise(workers, now, worker_id, model))


@router.post("/{worker_id}/drain", summary="Give this worker no more jobs", status_code=204)
async def drain_worker(worker_id: WorkerId, parts: Used, caller: WorkerOrOperatorCaller) -> Response:
    """Stop leasing jobs to the worker, which finishes those that it holds and ends. For operators too."""
    await parts.store.leases.drain(checked_owner_or_operator(worker_id, caller))
    return Response(status_code=204)


@router.post(
    "/{worker_id}/leave", summary="Ask whether an idle worker may leave", response_model=LeavingResource
)
async def request_leave(
    worker_id: WorkerId,
    parts: Used,
    caller: WorkerCaller,
    least: Annotated[
        int, Query(ge=0, description="Workers of each of its models that stay in any case.")
    ] = 0,
) -> Response:
    """Lease the worker no more jobs if it holds none and its models have more workers than they should."""
    checked_owner(worker_id, caller)
    leaves = await parts.store.leases.leave(worker_id, await parts.pool_sizes.totals(), least)
    return json_response(LeavingResource(leaves=leaves))


@router.delete("/{worker_id}", summary="Deregister a worker", status_code=204)
async def deregister_worker(worker_id: WorkerId, parts: Used, caller: WorkerCaller) -> Response:
    """Forget the worker, which has ended. Leases that it still holds expire."""
    await parts.store.leases.deregister(checked_owner(worker_id, caller))
    return Response(status_code=204)


@router.get("/{worker_id}/control", summary="Wait for control commands", response_model=ControlCommands)
async def await_commands(  # noqa: PLR0913 (a route has as many arguments as parameters)
    worker_id: WorkerId,
    request: Request,
    parts: Used,
    caller: WorkerCaller,
    wait: Wait = 25.0,
    known: Annotated[
        str, Query(description="Ids of jobs whose cancellation was received, separated by commas.")
    ] = "",
    putting_down: Annotated[
        str | None,
        Query(
            description="Attempts, as job id, dash and lease token, whose preemption was received, separated "
            "by commas. "
            "A worker that leaves it out is told of none."
        ),
    ] = None,
    draining: bool = False,
) -> Response:
    """Return commands that the worker does not know yet; an empty response when `wait` is over."""
    checked_owner(worker_id, caller)
    end = asyncio.get_running_loop().time() + min(wait, parts.config.longest_poll_seconds)
    with idle(request.scope):
        preempt = None if putting_down is None else tuple(putting_down.split(","))
        received = ReceivedCommands(tuple(known.split(",")), preempt, draining)
        commands = await _commands_until(end, parts, worker_id, received)
    return json_response(commands)


async def _count_registration(parts: WorkerParts, caller: Caller) -> None:
    """Raise `ServerUnavailable`, after which workers try again, while a key registers too many at a time."""
    allowance = await parts.quotas.take(f"registrations/{key_of(caller)}", _REGISTRATIONS)
    if not allowance.is_granted:
        text = f"more than {_REGISTRATIONS.per_second:g} workers a second register with this API key"
        raise ServerUnavailable(text, retry_after=allowance.retry_after)


async def _claim_until(
    end: float, parts: WorkerParts, worker_id: str, claim: Claim, request: Request
) -> list[Lease]:
    """Claim until there are leases, the time is `end`, or the worker has disconnected."""
    # Subscribed before the first claim, so that a job which becomes ready meanwhile is not missed.
    with parts.bus.subscribe(QUEUE) as hints:
        while True:
            claimed = await _claim(parts, worker_id, claim)
            if claimed.leases:
                return claimed.leases
            with idle(request.scope):
                is_worth_another = await _is_worth_a_claim(parts, hints, end, claimed.seconds_left, claim)
            if not is_worth_another:
                return []
            if await request.is_disconnected():
                return []


async def _claim(parts: WorkerParts, worker_id: str, claim: Claim) -> Claimed:
    started_at = time.perf_counter()
    claimed = await parts.store.leases.try_claim(worker_id, claim)
    parts.metrics.claim_seconds.observe(time.perf_counter() - started_at)
    parts.job_metrics.record_claimed(claimed.leases)
    _record_queueing(parts.tracer, claimed.leases)
    return claimed


def _record_queueing(tracer: Tracer, leases: Iterable[Lease]) -> None:
    """Record how long jobs waited that are leased for the first time."""
    for lease in leases:
        if lease.attempt == 1 and (parent := TraceContext.parse(lease.traceparent)) is not None:
            tracer.start("job.queue", parent, attributes_of(lease), at=lease.created_at).end()


async def _is_worth_a_claim(
    parts: WorkerParts, hints: Subscription, end: float, seconds_left: float | None, claim: Claim
) -> bool:
    """Return `True` when a hint or a check says that jobs are ready, and `False` at the time `end`.

    For a job that is left to other workers for `seconds_left`, the check comes right after that time.
    """
    clock, worst = asyncio.get_running_loop().time, claim.worst_band
    left_until = math.inf if seconds_left is None else clock() + seconds_left
    look_at = clock() + _poll_seconds(parts)
    while clock() < end:
        if await _is_called(hints, min(look_at, left_until, end) - clock(), worst) or clock() >= left_until:
            return True
        if clock() >= look_at:
            look_at = clock() + _poll_seconds(parts)
            if worst is not None and await parts.worker_polls.has_work(worst):
                return True
    return False


async def _is_called(hints: Subscription, seconds: float, worst: Band | None) -> bool:
    """Wait for a hint, and return whether it, or another that has arrived, may be about a wanted job.

    A hint has only the best band of its jobs. A worker that wants only some jobs checks for others now and
    then: otherwise all full workers would claim at every job.
    """
    if (hint := await hints.get(max(0.0, seconds))) is None:
        return False
    heard = [hint]
    while (hint := await hints.get(0.0)) is not None:  # one claim answers all hints that have arrived
        heard.append(hint)
    return worst is Band.BATCH or any(hint.get("urgent") for hint in heard)


async def _commands_until(
    end: float, parts: WorkerParts, worker_id: str, received: ReceivedCommands
) -> ControlCommands:
    """Return commands that the worker has not received, or none at the time `end`."""
    loop = asyncio.get_running_loop()
    look, ask = parts.worker_polls.commands, parts.store.leases.control_commands
    read = ask
    with parts.bus.subscribe(worker_topic(worker_id)) as messages:
        while True:
            new = received.new_among(await read(worker_id))
            if new or loop.time() >= end:
                return new
            message = await messages.get(min(_poll_seconds(parts), end - loop.time()))
            if message is not None and (lost := await _lost_by(parts, worker_id, message)):
                return ControlCommands(lost=(lost,))
            # Without a message this checks for a lost one, by a read that all workers share.
            read = look if message is None else ask


async def _lost_by(parts: WorkerParts, worker_id: str, message: Mapping[str, Any]) -> str | None:
    """Return the job whose lease a message says is lost, if the store says so too: messages are hints."""
    job_id = message.get("job_id")
    if message.get("type") != "lost" or not isinstance(job_id, str):
        return None
    return None if job_id in await parts.store.leases.held_by(worker_id) else job_id


def _poll_seconds(parts: WorkerParts) -> float:
    """Return the poll interval with jitter, so that workers which started together do not poll together."""
    return parts.config.poll_seconds * jitter(0.8, 1.2)
