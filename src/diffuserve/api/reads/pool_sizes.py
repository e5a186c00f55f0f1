"""Sizes that pools of workers should have, read once for all autoscalers that ask together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffuserve.domain.errors import ModelNotFound
from diffuserve.domain.workers.readiness import workers_of
from diffuserve.domain.workers.worker import Worker
from diffuserve.jobs.policy.scaling import (
    DesiredWorkers,
    PoolDemand,
    ScaleConfig,
    desired_workers,
    workers_worth,
)
from diffuserve.jobs.reads.demand import Demands
from diffuserve.jobs.reads.shared_reads import FreshReads
from diffuserve.jobs.store import JobStore

_PAUSE_SECONDS = 0.5  # between two reads, for any number of callers


@dataclass(frozen=True)
class PoolSize:
    """Numbers of workers that a pool should have, has, and has on demand."""

    desired: DesiredWorkers
    num_live: int
    num_on_demand: int


class PoolSizes:
    """Answers how many workers the pool of each model should have."""

    def __init__(self, store: JobStore, config: ScaleConfig) -> None:
        self._store = store
        self._config = config
        self._reads = FreshReads(self._read, _PAUSE_SECONDS)

    async def of(self, pool: str) -> PoolSize:
        """Return the size of a model's pool now.

        A model that no worker has offered yet has its floor alone, which starts the first worker. Raise
        `ModelNotFound` for one that has no floor either, and `ServerUnavailable`.
        """
        demands, workers = await self._reads.get()
        if pool not in demands.by_model and pool not in self._config.scale_floors:
            raise ModelNotFound(_not_found(pool, demands.by_model))
        live = workers_of(pool, workers)
        return PoolSize(
            self._desired(pool, demands),
            num_live=len(live),
            num_on_demand=sum(not worker.is_spot for worker in live),
        )

    async def totals(self) -> Mapping[str, int]:
        """Return how many workers each offered model should have. Raise `ServerUnavailable`."""
        demands, _ = await self._reads.get()
        return {model: self._desired(model, demands).total for model in demands.by_model}

    async def worth(self) -> float:
        """Return how many workers the work on all models needs, not rounded. Raise `ServerUnavailable`."""
        demands, _ = await self._reads.get()
        return sum(workers_worth(each, demands.now, self._config) for each in demands.by_model.values())

    def _desired(self, pool: str, demands: Demands) -> DesiredWorkers:
        floors = self._config.scale_floors.get(pool, ())
        demand = demands.by_model.get(pool, PoolDemand())
        return desired_workers(demand, demands.now, floors, self._config)

    async def _read(self) -> tuple[Demands, Sequence[Worker]]:
        return await self._store.demand.read(), await self._store.operations.workers()


def _not_found(pool: str, known: Mapping[str, object]) -> str:
    offered = ", ".join(sorted(known)) or "none yet"
    return (
        f"no worker has offered the model {pool!r} (offered: {offered}); give it a floor in "
        "DIFFUSERVE_SCALE_FLOORS to have its first worker started"
    )
