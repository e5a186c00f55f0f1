"""What a worker says of itself. Pure, but for the clock and the names of claims."""

import os
import secrets
import time
from collections.abc import Mapping
from typing import Any

from diffuserve.domain.worker import Claim, ModelOffer, Registration, WorkerReport, WorkerState
from diffuserve.worker.admission import Memory, Room
from diffuserve.worker.config import WorkerConfig
from diffuserve.worker.messages import Beat, Hello


def registration(config: WorkerConfig, hello: Hello) -> Registration:
    """The first words: the model is known, and being loaded."""
    return Registration(
        models=(ModelOffer(spec=hello.spec, fit=hello.fit),),
        report=WorkerReport(
            state=WorkerState.INITIALIZING,
            timestamp=time.time(),
            num_gpus=hello.num_gpus,
            num_cpus=os.cpu_count() or 1,
        ),
        name=config.name,
        labels=dict(config.labels),
        price_per_hour=config.price_per_hour,
        is_spot=config.is_spot,
    )


def condition(
    state: WorkerState,
    first: Registration,
    memory: Memory,
    beat: Beat | None,
    num_running: int,
    image_filter: Mapping[str, Any] | None,
) -> WorkerReport:
    """How the worker is now; its model is resident, and its filter known, once it was ready."""
    is_loaded = state is not WorkerState.INITIALIZING
    return WorkerReport(
        state=state,
        timestamp=time.time(),
        num_gpus=first.report.num_gpus,
        num_cpus=first.report.num_cpus,
        memory_bytes=memory.used,
        memory_limit_bytes=memory.limit,
        resident_models=tuple(offer.spec["name"] for offer in first.models) if is_loaded else (),
        last_step_seconds=beat.last_step_seconds if beat else None,
        num_running=num_running,
        image_filter=image_filter,
    )


def claim_of(room: Room, model: str) -> Claim:
    """As much as there is room for, under a name of its own."""
    return Claim(
        claim_id=secrets.token_hex(8),
        num_jobs=room.num_jobs,
        num_tokens=room.num_tokens,
        models=(model,),
        resident_models=(model,),
    )
