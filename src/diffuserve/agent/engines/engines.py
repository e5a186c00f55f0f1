"""The engines of one agent: one for each model in memory, and the models that give way to others."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.descriptions import read_descriptions
from diffuserve.agent.engines.engine_starter import EngineStarter
from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.supervisor import EngineSupervisor
from diffuserve.agent.engines.unloading import DEFAULT_SHARE, choose_unloads, is_too_large
from diffuserve.agent.run_forever import run_forever
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.workers.worker import LoadProgress
from diffuserve.protocol.messages import EngineRefused, EngineReport, ModelAnnounced
from diffuserve.telemetry.memory import memory_limit

log = logging.getLogger(__name__)

_MAX_REASON = 200  # of the characters that a report may have


@dataclass(frozen=True)
class Withdrawal:
    """Reason why no engine of a model is left, and whether none could ever start."""

    reason: str
    could_not_start: bool


class Engines:
    """Loads and unloads models, each in an engine process of its own.

    The first model is loaded at once, another one when a job for it is held. The least recently used models
    are unloaded for it, once they have no job. `on_announced` receives what the worker offers, `on_job` every
    message about a job, and `on_change` the model whose engine became ready, sent a heartbeat, is stuck, has
    died, or will not be started again. `latest` is the engine that became ready last, also after its end.
    """

    def __init__(
        self,
        config: WorkerConfig,
        state: AgentState,
        on_announced: Callable[[Sequence[ModelAnnounced]], None],
        on_job: Callable[[EngineReport], None],
        on_change: Callable[[ServedModel], None],
    ) -> None:
        self._config, self._state, self._starter = config, state, EngineStarter(config)
        self._on_announced, self._on_job, self._on_change = on_announced, on_job, on_change
        self._uses = itertools.count(1)
        self._due = asyncio.Event()
        self._tasks: dict[EngineSupervisor, list[asyncio.Task[None]]] = {}
        self._withdrawal = Withdrawal("it has no model", could_not_start=True)
        self.latest: EngineSupervisor | None = None
        self.models = [ServedModel(process) for process in config.own_processes]

    @property
    def is_ready(self) -> bool:
        return any(model.is_ready for model in self.models)

    @property
    def is_stalled(self) -> bool:
        return any(model.engine is not None and model.engine.is_stalled for model in self.models)

    @property
    def loading(self) -> LoadProgress | None:
        """The progress of the model that is being loaded; `None` without one."""
        engines = (model.engine for model in self.models if model.engine is not None)
        return next((engine.loading for engine in engines if engine.loading is not None), None)

    @property
    def with_peers(self) -> list[EngineSupervisor]:
        """The engines that fetch or give their models with peers."""
        engines = (model.engine for model in self.models)
        return [engine for engine in engines if engine is not None and engine.peer_report is not None]

    @property
    def quantization(self) -> str | None:
        """Quantization of the weights of all models; `None` while that of one is not known.

        Of several kinds it is the first that is one: then jobs that must be exact are not for this worker.
        """
        kinds = [model.quantization for model in self._served]
        quantized = [kind for kind in kinds if kind not in (None, Quantization.NONE)]
        return quantized[0] if quantized else None if None in kinds else Quantization.NONE.value

    @property
    def pids(self) -> list[int]:
        """The processes of the engines."""
        links = (model.engine.link for model in self.models if model.engine is not None)
        return [link.pid for link in links if link is not None]

    @property
    def withdrawn(self) -> Mapping[str, str]:
        """The models that cannot be loaded, with the reasons."""
        refused = {model.name: " ".join(model.refusal.split()) for model in self.models if model.is_withdrawn}
        return {name: reason[:_MAX_REASON] for name, reason in refused.items()}

    def of(self, name: str) -> ServedModel | None:
        """Return the model of this name, unless it is withdrawn or was never offered."""
        return next((model for model in self._served if model.name == name), None)

    def may_load(self, model: ServedModel) -> bool:
        """Return whether a job may wait here until a model is loaded.

        None waits for the restart of an engine that has died: other workers may be quicker.
        """
        return len(self.models) > 1 and (model.is_cold or model.is_loading)

    def claimable(self) -> list[ServedModel]:
        """Return the models that jobs may be claimed for: none that gives way to one that is to be loaded."""
        wanted = self._wanted()
        leaving = () if wanted is None else self._leaving(wanted)
        is_loading = wanted is not None or any(model.is_loading for model in self.models)
        return [
            model
            for model in self._served
            if (model.is_ready and model not in leaving) or (model.is_cold and not is_loading)
        ]

    def drop_folder(self, attempt: str) -> None:
        """Delete the files of an attempt whose lease was lost, whichever engine has them."""
        links = (model.engine.link for model in self.models if model.engine is not None)
        for link in links:
            if link is not None:
                link.drop_folder(attempt)

    def use(self, model: ServedModel) -> None:
        """Note that a job is for this model."""
        model.last_use = next(self._uses)

    def review(self) -> None:
        """Look again whether a model is to be loaded: jobs came or went."""
        self._due.set()

    async def run(self) -> Withdrawal:
        """Keep engines running until no model is left that could be loaded; return why not the last one."""
        if len(self.models) > 1 and all(model.announced is None for model in self.models):
            await self._describe()
        while self._served:
            self._due.clear()
            await self._make_progress()
            await self._due.wait()
        return self._withdrawal

    async def stop(self) -> None:
        """End all engines, which save their cost fits, and what others would start from."""
        await asyncio.gather(*(self._end(engine) for engine in list(self._tasks)))
        await self._starter.close()

    async def prepare_restarts(self) -> None:
        """Keep ready, beside engines that run, what the next one starts from."""
        await self._starter.keep_zygote()

    @property
    def _served(self) -> list[ServedModel]:
        return [model for model in self.models if not model.is_withdrawn]

    async def _describe(self) -> None:
        """Learn what the models are before any is loaded, so that all of them are offered."""
        for model, told in zip(self.models, await read_descriptions(self._config), strict=True):
            if isinstance(told, EngineRefused):
                self._withdraw(model, Withdrawal(told.reason, could_not_start=True))
            elif (name := told.spec.name) in {other.name for other in self._served if other.announced}:
                reason = f"another model of this worker is called {name!r} too; give one of them another name"
                self._withdraw(model, Withdrawal(reason, could_not_start=True))
            else:
                model.announced = told
                model.config = replace(model.config, model=told.reference)
        if self._served:
            self._on_announced([model.announced for model in self._served if model.announced is not None])

    def _wanted(self) -> ServedModel | None:
        """Return the model to load next: one with a job, else the first while none is in memory."""
        if any(model.is_loading for model in self.models):
            return None
        awaited = [model for model in map(self.of, self._state.awaited_models) if model is not None]
        if cold := [model for model in awaited if model.is_cold]:
            return cold[0]
        has_engine = any(model.engine is not None for model in self._served)
        return None if has_engine else next(iter(self._served), None)

    def _leaving(self, wanted: ServedModel) -> list[ServedModel]:
        """Return the models that give way to another one."""
        in_memory = [model for model in self._served if model.engine is not None]
        names = choose_unloads((model.in_memory for model in in_memory), wanted.num_bytes, self._budget)
        return [model for model in in_memory if model.name in names]

    @property
    def _budget(self) -> int | None:
        """Bytes for weights; `None` until an engine has told of its device."""
        if self._config.resident_bytes is not None:
            return self._config.resident_bytes
        if self.latest is None:
            return None
        return int(DEFAULT_SHARE * (self.latest.memory_limit_bytes or memory_limit()))

    async def _make_progress(self) -> None:
        """Unload what gives way to the next model and has no job, and load that once there is room."""
        wanted = self._wanted()
        if wanted is None:
            return
        is_known = len(self.models) > 1 and not wanted.may_be_smaller
        if is_known and is_too_large(wanted.num_bytes, self._budget):
            self._refuse_too_large(wanted)
            return
        leaving = self._leaving(wanted)
        for model in leaving:
            if not self._state.held_for(model.name):
                await self._unload(model)
        if all(model.engine is None for model in leaving):
            self._load(wanted)

    def _refuse_too_large(self, model: ServedModel) -> None:
        reason = (
            f"its weights have {model.num_bytes:,} bytes, and all models together may have {self._budget:,}; "
            "give more with --resident-bytes, or a worker of its own"
        )
        self._withdraw(model, Withdrawal(reason, could_not_start=True))

    def _load(self, model: ServedModel) -> None:
        """Start the engine of a model."""
        if len(self.models) > 1:
            log.info("loading %s", model.name)
        model.engine = engine = EngineSupervisor(
            self._config,
            partial(self._starter.start, model.config),
            on_announced=partial(self._announced, model),
            on_job=self._on_job,
            on_ready=lambda: self._became_ready(model, engine),
            on_change=lambda: self._changed(model, engine),
            is_occupied=lambda: self._state.has_engine_work(model.name),
        )
        model.loading_since = asyncio.get_running_loop().time()
        loops = (partial(self._keep_running, model, engine), engine.watch)
        self._tasks[engine] = [asyncio.create_task(run_forever(loop)) for loop in loops]
        self.use(model)

    async def _unload(self, model: ServedModel) -> None:
        """End the engine of a model that has no job; with the process ends its hold on the model's files."""
        log.info("unloading %s", model.name)
        engine, model.engine = model.engine, None
        assert engine is not None
        await self._end(engine)

    async def _end(self, engine: EngineSupervisor) -> None:
        await engine.stop()
        tasks = self._tasks.pop(engine, [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_running(self, model: ServedModel, engine: EngineSupervisor) -> None:
        """Supervise an engine; withdraw its model if it cannot be kept running."""
        code = await engine.run()
        if not engine.is_stopping:
            self._withdraw(model, Withdrawal(engine.reason(code), engine.cannot_start(code)))

    def _withdraw(self, model: ServedModel, withdrawal: Withdrawal) -> None:
        self._withdrawal, model.refusal = withdrawal, withdrawal.reason
        if self._served:
            log.error("%s cannot be served: %s", model.name, model.refusal)
        self._on_change(model)
        self._due.set()

    def _announced(self, model: ServedModel, announced: ModelAnnounced) -> None:
        """Note what the first engine of a worker's only model says of it; several are known before."""
        if model.announced is None:
            model.announced = announced
            self._on_announced([announced])

    def _changed(self, model: ServedModel, engine: EngineSupervisor) -> None:
        if model.engine is engine:  # else it is being unloaded
            if engine.last_heartbeat is not None:
                model.fit = engine.last_heartbeat.fit
            self._on_change(model)
            self._due.set()

    def _became_ready(self, model: ServedModel, engine: EngineSupervisor) -> None:
        if model.loading_since is not None:
            model.load_seconds = asyncio.get_running_loop().time() - model.loading_since
            model.loading_since = None
            model.num_loads += 1
        model.token_budget, model.quantization = engine.token_budget, engine.quantization
        model.residency = engine.residency
        self.latest = engine
        self._starter.want_zygote()
