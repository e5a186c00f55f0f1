"""A worker's reports about itself; pure functions except for the clock."""

import os
import time
from collections.abc import Sequence

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.state.capacity import ClaimScope
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.requests.adapter_use import ADAPTER_NAME
from diffuserve.domain.workers.worker import (
    MAX_OWN_ADAPTERS,
    ModelOffer,
    Registration,
    WorkerReport,
    WorkerState,
)
from diffuserve.protocol.messages import EngineHeartbeat, ModelAnnounced
from diffuserve.telemetry.memory import Memory


def new_registration(
    config: WorkerConfig, announced: Sequence[ModelAnnounced], is_spot: bool
) -> Registration:
    """Offer the models that the worker has in memory or may load."""
    return Registration(
        models=tuple(ModelOffer(spec=model.spec, fit=model.fit) for model in announced),
        report=WorkerReport(
            state=WorkerState.INITIALIZING,
            timestamp=time.time(),
            num_cpus=os.cpu_count() or 1,
            own_adapters=_own_adapters(config),
        ),
        name=config.name,
        labels=dict(config.labels),
        price_per_hour=config.price_per_hour,
        is_spot=is_spot,
        role=config.role,
    )


def _own_adapters(config: WorkerConfig) -> tuple[str, ...]:
    """Return the names of adapters for which there are files here, of those that requests can give."""
    names = filter(ADAPTER_NAME.fullmatch, config.engine_process.adapter_files)
    return tuple(names)[:MAX_OWN_ADAPTERS]


def worker_report(
    state: WorkerState,
    registration: Registration,
    memory: Memory,
    heartbeat: EngineHeartbeat | None,
    num_running: int,
    resident_models: tuple[str, ...],
) -> WorkerReport:
    """Report the worker's present state."""
    return WorkerReport(
        state=state,
        timestamp=time.time(),
        num_cpus=registration.report.num_cpus,
        memory_bytes=memory.used,
        memory_limit_bytes=memory.limit,
        resident_models=resident_models,
        last_step_seconds=heartbeat.last_step_seconds if heartbeat else None,
        num_running=num_running,
        own_adapters=registration.report.own_adapters,
    )


def new_claim(room: ClaimScope, claim_id: str) -> Claim:
    """Build a claim for all the room that there is."""
    return Claim(
        claim_id=claim_id,
        num_jobs=room.capacity.num_jobs,
        num_tokens=room.capacity.num_tokens,
        models=room.models,
        resident_models=room.resident_models,
        ahead_of=room.ahead_of,
    )
