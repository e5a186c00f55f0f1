"""The last hour of the server, recorded for charts whether anybody watches or not."""

import asyncio
import logging

import orjson

from diffuserve.api.operators.snapshots import Snapshots
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.resources.operations import HistoryPointResource, OperationsResource
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.jobs.reads.history import PERIOD_SECONDS, History
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_WORKING = (WorkerState.READY, WorkerState.OCCUPIED)
_BATCH = ("mean_batch_size", "mean_step_seconds", "useful_share")
_LATENCY = ("queue_p50", "queue_p95", "run_p50", "run_p95")


class HistoryRecorder:
    """Records a point for each ten seconds, unless another control plane has done so."""

    def __init__(self, history: History, snapshots: Snapshots) -> None:
        self._history = history
        self._snapshots = snapshots

    async def run(self) -> None:
        """Record points until the task is canceled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS / 2)
            try:
                await self.record()
            except ServerUnavailable as error:
                log.warning("no point of the last hour: %s", error, extra=once_a_minute())
            except Exception:
                log.exception("no point of the last hour could be recorded")

    async def record(self) -> None:
        """Record a point if there is none of these ten seconds."""
        started_at = await self._history.due()
        if started_at is not None:
            point = point_of((await self._snapshots.newest()).resource)
            await self._history.record(started_at, orjson.dumps(point).decode())


def point_of(seen: OperationsResource) -> HistoryPointResource:
    """Return what charts need of a snapshot."""
    return HistoryPointResource(
        at=seen.at,
        per_minute=seen.throughput.per_minute,
        num_ready=seen.queue.num_ready,
        work_seconds=seen.queue.work_seconds,
        num_running=seen.queue.num_running,
        num_workers=sum(seen.num_workers.get(state, 0) for state in _WORKING),
        device_seconds={outcome.id: outcome.seconds for outcome in seen.device_seconds},
        **{name: getattr(seen.latency, name) for name in _LATENCY},
        **{name: getattr(seen.batch, name) for name in _BATCH},
    )
