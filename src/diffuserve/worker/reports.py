"""A worker's reports about itself. Pure, but for the clock and the ids of claims."""

import os
import secrets
import time
from collections.abc import Mapping
from typing import Any

from diffuserve.domain.worker import Claim, ModelOffer, Registration, WorkerReport, WorkerState
from diffuserve.worker.capacity import Capacity, Memory
from diffuserve.worker.config import WorkerConfig
from diffuserve.worker.messages import EngineHeartbeat, ModelAnnounced


def new_registration(config: WorkerConfig, announced: ModelAnnounced, is_spot: bool) -> Registration:
    """Offer the model that the engine is loading."""
    return Registration(
        models=(ModelOffer(spec=announced.spec, fit=announced.fit),),
        report=WorkerReport(
            state=WorkerState.INITIALIZING,
            timestamp=time.time(),
            num_cpus=os.cpu_count() or 1,
        ),
        name=config.name,
        labels=dict(config.labels),
        price_per_hour=config.price_per_hour,
        is_spot=is_spot,
        role=config.role,
    )


def worker_report(
    state: WorkerState,
    registration: Registration,
    memory: Memory,
    heartbeat: EngineHeartbeat | None,
    num_running: int,
    image_filter: Mapping[str, Any] | None,
) -> WorkerReport:
    """Report the worker's present state; the model is resident in every state but `INITIALIZING`."""
    is_loaded = state is not WorkerState.INITIALIZING
    return WorkerReport(
        state=state,
        timestamp=time.time(),
        num_cpus=registration.report.num_cpus,
        memory_bytes=memory.used,
        memory_limit_bytes=memory.limit,
        resident_models=tuple(offer.spec["name"] for offer in registration.models) if is_loaded else (),
        last_step_seconds=heartbeat.last_step_seconds if heartbeat else None,
        num_running=num_running,
        image_filter=image_filter,
    )


def new_claim(capacity: Capacity, model: str) -> Claim:
    """Build a claim for as much as there is capacity for, under a new id."""
    return Claim(
        claim_id=secrets.token_hex(8),
        num_jobs=capacity.num_jobs,
        num_tokens=capacity.num_tokens,
        models=(model,),
        resident_models=(model,),
    )
