"""The models that can be asked for, and the tenants' plans, read once a moment rather than once a job."""

from collections.abc import Mapping, Sequence

from diffuserve.api.cache import Cache
from diffuserve.domain.errors import InvalidParams, ModelNotFound, ServerUnavailable
from diffuserve.domain.tenant import Plan
from diffuserve.domain.worker import Worker
from diffuserve.jobs.operations import ServedModel
from diffuserve.jobs.store import JobStore

_MODELS_SECONDS = 1.0
_PLAN_SECONDS = 5.0


class Catalog:
    """What a job is checked against before the store sees it."""

    def __init__(self, store: JobStore, default_model: str | None) -> None:
        self._store = store
        self._default_model = default_model
        self._models: Cache[None, Mapping[str, ServedModel]] = Cache(_MODELS_SECONDS)
        self._workers: Cache[None, Sequence[Worker]] = Cache(_MODELS_SECONDS)
        self._plans: Cache[str, Plan] = Cache(_PLAN_SECONDS)

    async def models(self) -> Mapping[str, ServedModel]:
        models = self._models.find(None)
        if models is None:
            models = await self._store.operations.models()
            self._models.keep(None, models)
        return models

    async def workers(self) -> Sequence[Worker]:
        workers = self._workers.find(None)
        if workers is None:
            workers = await self._store.operations.workers()
            self._workers.keep(None, workers)
        return workers

    async def pick(self, name: str | None) -> ServedModel:
        """The model of that name, else the default one, else the only one.

        Raises `ModelNotFound`, `InvalidParams` where the choice is open, and `ServerUnavailable`
        while no worker has offered any model.
        """
        models = await self.models()
        if not models:
            raise ServerUnavailable("no worker has offered a model yet", retry_after=1.0)
        wanted = name or self._default_model or _only(models)
        if wanted not in models:
            raise ModelNotFound(f"no model {wanted!r} here; there is {_listed(models)}")
        return models[wanted]

    async def plan(self, tenant_id: str) -> Plan:
        plan = self._plans.find(tenant_id)
        if plan is None:
            plan = (await self._store.operations.tenant(tenant_id)).plan
            self._plans.keep(tenant_id, plan)
        return plan


def _only(models: Mapping[str, ServedModel]) -> str:
    if len(models) > 1:
        raise InvalidParams("model", None, f"say which one: {_listed(models)}")
    return next(iter(models))


def _listed(models: Mapping[str, ServedModel]) -> str:
    return ", ".join(sorted(models))
