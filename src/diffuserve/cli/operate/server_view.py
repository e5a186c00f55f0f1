"""View of a server at one moment, as far as the API key may see it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffuserve.domain.errors import Forbidden
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.resources.operations import OperationsResource
from diffuserve.domain.resources.worker import WorkerResource
from diffuserve.domain.text.timestamps import from_rfc3339
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.sdk.async_client import AsyncClient

RATE_SECONDS = 60.0
_FINISHED_PAGE = 100
_RUNNING_PAGE = 100
_ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED)
_ACTIVE = (JobStatus.RUNNING, JobStatus.CANCELING)


@dataclass(frozen=True, kw_only=True)
class ServerView(Resource):
    """Workers, queue, running jobs and throughput of a server.

    `workers` and `queue`, the ready jobs by band, are `None` for a key that is no operator's: `refusal` says
    so. Then the jobs are those of the key's tenant alone.
    """

    server: str
    now: float
    models: tuple[str, ...]
    jobs: tuple[JobResource, ...]
    jobs_per_minute: float
    workers: tuple[WorkerResource, ...] | None = None
    queue: Mapping[str, int] | None = None
    queue_seconds: float | None = None
    refusal: str = ""


async def read_view(client: AsyncClient) -> ServerView:
    """Ask a server what it does. Raise `ServerUnavailable` and `Unauthorized`."""
    models = tuple(model.id for model in await client.models())
    running = (await client.list_jobs(_ACTIVE, limit=_RUNNING_PAGE)).data
    try:
        return _of_operators(client.server, models, running, await client.operations())
    except Forbidden:
        return await _of_a_tenant(client, models, running)


def _of_operators(
    server: str, models: tuple[str, ...], running: tuple[JobResource, ...], seen: OperationsResource
) -> ServerView:
    return ServerView(
        server=server,
        now=from_rfc3339(seen.at).timestamp(),
        models=models,
        jobs=running,
        jobs_per_minute=sum(seen.throughput.per_minute[status] for status in _ENDED),
        workers=seen.workers,
        queue={band.id: band.num_ready for band in seen.queue.bands},
        queue_seconds=seen.queue.work_seconds,
    )


async def _of_a_tenant(
    client: AsyncClient, models: tuple[str, ...], running: tuple[JobResource, ...]
) -> ServerView:
    now = await client.server_time()
    ended = (await client.list_jobs(_ENDED, limit=_FINISHED_PAGE)).data
    return ServerView(
        server=client.server,
        now=now,
        models=models,
        jobs=running,
        jobs_per_minute=jobs_per_minute(ended, now, is_all=len(ended) < _FINISHED_PAGE),
        refusal="the API key is no operator's: workers and queue are hidden, and jobs are its tenant's; "
        "`diffuserve keys create --role operator` makes one that sees all",
    )


def jobs_per_minute(ended: Sequence[JobResource], now: float, *, is_all: bool) -> float:
    """Return how many jobs ended per minute, in the last one.

    Where there are more than the given ones (not `is_all`), these are the newest, and the time since the
    first of them counts.
    """
    ages = [now - from_rfc3339(job.finished_at).timestamp() for job in ended if job.finished_at]
    recent = [age for age in ages if age <= RATE_SECONDS]
    if not recent:
        return 0.0
    seconds = RATE_SECONDS if is_all or len(recent) < len(ages) else max(*recent, 1.0)
    return 60.0 * len(recent) / seconds


def without_replaced(workers: Sequence[WorkerResource]) -> tuple[WorkerResource, ...]:
    """Leave out lost workers whose name a live one has: they were started again."""
    live = {worker.name for worker in workers if worker.state is not WorkerState.LOST and worker.name}
    return tuple(
        worker for worker in workers if worker.state is not WorkerState.LOST or worker.name not in live
    )


def replaced_line(num_replaced: int) -> str:
    """Say how many lost workers are not shown; the control plane forgets them after a day."""
    return f"{num_replaced} lost in the last day; --all shows them"


def count_states(workers: Sequence[WorkerResource]) -> dict[str, int]:
    """Return the number of workers in each state, the most frequent first."""
    return dict(Counter(str(worker.state) for worker in workers).most_common())
