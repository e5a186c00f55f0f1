"""Models, workers and tenants' plans, cached so that a submission seldom reads them from the store."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cachetools import TTLCache

from diffuserve.domain.errors import InvalidParams, ModelNotCapable, ModelNotFound, ServerUnavailable
from diffuserve.domain.jobs.job import AUDIO_GENERATE, IMAGE_GENERATE
from diffuserve.domain.jobs.kinds import KINDS, check_makes
from diffuserve.domain.models.tiers import Tiers, possible_tiers
from diffuserve.domain.tenant import Plan
from diffuserve.domain.workers.readiness import ModelStatus, status_of
from diffuserve.domain.workers.worker import Worker
from diffuserve.jobs.reads.operations import OfferedModel
from diffuserve.jobs.reads.shared_reads import FreshReads, SharedReads
from diffuserve.jobs.store import JobStore
from diffuserve.safety.sound_judges import WITHHELD

log = logging.getLogger(__name__)

_MODELS_SECONDS = _WORKERS_SECONDS = 1.0
_MISSING_SECONDS = 0.1
"""Between two reads on account of models that the cache lacks, however many requests name such ones."""
_PLAN_SECONDS = 5.0
_MAX_PLANS = 10_000
_MAX_LISTED = 20
_OPENAI_NAME = re.compile(r"(gpt-image|chatgpt-image|dall-e|sora)-.{1,60}")
_NO_MODEL = (
    "no worker has offered a model yet: start one with `diffuserve worker --model MODEL`, or, where an "
    "autoscaler starts them, give the model a floor in DIFFUSERVE_SCALE_FLOORS"
)


class Catalog:
    """Answers from a cache of a few seconds what a submission is checked against.

    The cache is not believed that a model is missing: a worker may have offered it since. Models have those
    of their `tiers` that they can do; the others are logged once.
    """

    def __init__(
        self,
        store: JobStore,
        default_model: str | None,
        tiers: Mapping[str, Tiers] | None = None,
        lets_sounds_out: bool = True,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self._store = store
        self._default_model = default_model
        self._tiers = tiers or {}
        self._aliases = aliases or {}
        self._lets_sounds_out = lets_sounds_out
        self._known_as_impossible: set[str] = set()
        self._models: TTLCache[None, Mapping[str, OfferedModel]] = TTLCache(1, _MODELS_SECONDS)
        self._fresh_models = FreshReads(store.operations.models, _MISSING_SECONDS)
        self._workers: SharedReads[None, Sequence[Worker]] = SharedReads(self._read_workers, _WORKERS_SECONDS)
        self._plans: TTLCache[str, Plan] = TTLCache(_MAX_PLANS, _PLAN_SECONDS)

    def prefer(self, model: str) -> None:
        """Let jobs that name no model be for this one, unless the configuration names another."""
        self._default_model = self._default_model or model
        self._models.clear()

    async def models(self) -> Mapping[str, OfferedModel]:
        """Return the served models by name."""
        return self._models.get(None) or await self._read_models()

    async def default_model(self) -> str | None:
        """Return the model of jobs that name none; `None` where they have to name one."""
        names = await self.models()
        if self._default_model in names:
            return self._default_model
        return next(iter(names)) if len(names) == 1 else None

    async def _read_models(self) -> Mapping[str, OfferedModel]:
        offered = await self._fresh_models.get()
        models = {name: self._limited(name, served) for name, served in offered.items()}
        self._models[None] = models
        return models

    def _limited(self, name: str, served: OfferedModel) -> OfferedModel:
        """Return the model with those of its tiers that it can do."""
        wanted = self._tiers.get(name)
        if wanted is None:
            return served
        possible = possible_tiers(wanted, served.spec)
        if possible != wanted and name not in self._known_as_impossible:
            self._known_as_impossible.add(name)
            left_out = sorted(map(str, {*wanted.steps, *wanted.sizes} - {*possible.steps, *possible.sizes}))
            log.warning("%s cannot draw with %s; these tiers are left out", name, ", ".join(left_out))
        return served.within(possible)

    async def workers(self) -> Sequence[Worker]:
        """Return every worker as of a second ago, lost ones included; readers without a key share a read."""
        return await self._workers.get(None)

    async def _read_workers(self, _key: None) -> Sequence[Worker]:
        return await self._store.operations.workers()

    async def status(self, model: str) -> ModelStatus:
        """Return the readiness of a model."""
        return status_of(model, await self.workers(), self._store.operations.expected)

    async def pick(self, name: str | None, kind: str = IMAGE_GENERATE) -> OfferedModel:
        """Return the model called `name`; without a name the default model, or else the only one.

        An alias is as good as a name, and a name of OpenAI's is for the only model that makes such things.
        Clips and sounds without a model's name are for the only model that makes them, unless the default one
        does. Raise `ModelNotFound`, `ModelNotCapable` if the model makes no such thing, `InvalidParams` if
        several models are served and none is the default, and `ServerUnavailable` while no worker has
        offered any.
        """
        if kind == AUDIO_GENERATE and not self._lets_sounds_out:
            raise InvalidParams("kind", kind, WITHHELD)
        return await self._chosen(lambda models: self._pick(models, name, kind))

    async def model(self, name: str) -> OfferedModel:
        """Return the model called `name`. Raise `ModelNotFound`."""
        return await self._chosen(lambda models: _named(models, self._own_name(name, models)))

    def aliases_of(self, model: str) -> tuple[str, ...]:
        """Return the other names of a model that are configured."""
        return tuple(alias for alias, name in self._aliases.items() if name == model)

    def _own_name(self, name: str, makers: Mapping[str, OfferedModel]) -> str:
        """Return the name of the model that an alias stands for, or else the name itself."""
        if name in self._aliases:
            return self._aliases[name]
        is_foreign = _OPENAI_NAME.fullmatch(name) is not None
        return next(iter(makers)) if is_foreign and name not in makers and len(makers) == 1 else name

    async def _chosen(self, choose: Callable[[Mapping[str, OfferedModel]], OfferedModel]) -> OfferedModel:
        """Return the model chosen from the cache, or else from the store, whose refusal counts."""
        if cached := self._models.get(None):
            with suppress(ModelNotFound, ModelNotCapable):
                return choose(cached)
        return choose(await self._read_models())

    def _pick(self, models: Mapping[str, OfferedModel], name: str | None, kind: str) -> OfferedModel:
        if not models:
            raise ServerUnavailable(_NO_MODEL, retry_after=1.0)
        makers = {maker: served for maker, served in models.items() if KINDS[kind].is_made_by(served.spec)}
        own = self._own_name(name, makers) if name else self._default_maker(models, makers)
        served = _named(models, own)
        check_makes(served.spec, kind, makers)
        return served

    def _default_maker(self, models: Mapping[str, OfferedModel], makers: Mapping[str, OfferedModel]) -> str:
        """Return the model for jobs that name none; one that cannot do them if there is no other."""
        if self._default_model in makers or not makers:
            return self._default_model or next(iter(models))
        return _only(makers)

    async def plan(self, tenant_id: str) -> Plan:
        """Return the tenant's plan."""
        plan = self._plans.get(tenant_id)
        if plan is None:
            plan = self._plans[tenant_id] = (await self._store.operations.tenant(tenant_id)).plan
        return plan


def _named(models: Mapping[str, OfferedModel], name: str) -> OfferedModel:
    if name not in models:
        known = f"choose one of: {_listed(models)}" if models else _NO_MODEL
        raise ModelNotFound(f"model {name!r} is not served; {known}")
    return models[name]


def _only(models: Mapping[str, OfferedModel]) -> str:
    if len(models) > 1:
        raise InvalidParams("model", None, f"choose one of: {_listed(models)}")
    return next(iter(models))


def _listed(models: Mapping[str, OfferedModel]) -> str:
    shown = ", ".join(sorted(models)[:_MAX_LISTED])
    left_out = len(models) - _MAX_LISTED
    return f"{shown} and {left_out} more, which GET /v1/models lists" if left_out > 0 else shown
