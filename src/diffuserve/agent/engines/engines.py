"""The engines of one agent, one for each model in memory, and the unloading of models for others."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.descriptions import read_descriptions
from diffuserve.agent.engines.engine_starter import EngineStarter
from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.served_models import ServedModels
from diffuserve.agent.engines.supervisor import EngineSupervisor
from diffuserve.agent.engines.unloading import is_too_large
from diffuserve.agent.run_forever import run_forever
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.protocol.messages import EngineRefused, EngineReport, ModelAnnounced

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Withdrawal:
    """Reason why no engine of a model is left, and whether none could ever start."""

    reason: str
    could_not_start: bool


class Engines:
    """Loads and unloads models, each in an engine process of its own.

    The first model is loaded at once, another one when a job for it is held; models that it displaces are
    unloaded once they have no job. `on_announced` receives what the worker offers, `on_job` every
    message about a job, and `on_change` the model whose engine became ready, sent a heartbeat, is stuck, has
    died, or will not be started again.
    """

    def __init__(
        self,
        config: WorkerConfig,
        state: AgentState,
        models: ServedModels,
        on_announced: Callable[[Sequence[ModelAnnounced]], None],
        on_job: Callable[[EngineReport], None],
        on_change: Callable[[ServedModel], None],
    ) -> None:
        self._config, self._state, self._models = config, state, models
        self._starter = EngineStarter(config)
        self._on_announced, self._on_job, self._on_change = on_announced, on_job, on_change
        self._tasks: dict[EngineSupervisor, list[asyncio.Task[None]]] = {}
        self._withdrawal = Withdrawal("it has no model", could_not_start=True)

    async def run(self) -> Withdrawal:
        """Keep engines running until no model is left that could be loaded; return why not the last one."""
        if len(self._models.all) > 1 and all(model.announced is None for model in self._models.all):
            await self._describe()
        while self._models.served:
            self._models.due.clear()
            await self._make_progress()
            await self._models.due.wait()
        return self._withdrawal

    async def stop(self) -> None:
        """End all engines, which save their cost fits, and the zygotes."""
        await asyncio.gather(*(self._end(engine) for engine in list(self._tasks)))
        await self._starter.close()

    async def prepare_restarts(self) -> None:
        """Keep a zygote ready for the next engine to start from."""
        await self._starter.keep_zygote()

    async def _describe(self) -> None:
        """Learn what the models are before any is loaded, so that all of them are offered."""
        for model, told in zip(self._models.all, await read_descriptions(self._config), strict=True):
            if isinstance(told, EngineRefused):
                self._withdraw(model, Withdrawal(told.reason, could_not_start=True))
            elif (name := told.spec.name) in {other.name for other in self._models.served if other.announced}:
                reason = f"another model of this worker is called {name!r} too; give one of them another name"
                self._withdraw(model, Withdrawal(reason, could_not_start=True))
            else:
                model.announced = told
                model.config = replace(model.config, model=told.reference)
        if self._models.served:
            self._on_announced(
                [model.announced for model in self._models.served if model.announced is not None]
            )

    async def _make_progress(self) -> None:
        """Unload models that the next one displaces and that have no job; load it once there is room."""
        wanted = self._models.wanted()
        if wanted is None:
            return
        is_known = len(self._models.all) > 1 and not wanted.may_be_smaller
        if is_known and is_too_large(wanted.num_bytes, self._models.budget):
            self._refuse_too_large(wanted)
            return
        leaving = self._models.leaving(wanted)
        for model in leaving:
            if not self._state.held_for(model.name):
                await self._unload(model)
        if all(model.engine is None for model in leaving):
            self._load(wanted)

    def _refuse_too_large(self, model: ServedModel) -> None:
        budget = self._models.budget
        reason = (
            f"its weights have {model.num_bytes:,} bytes, and all models together may have {budget:,}; "
            "give more with --resident-bytes, or a worker of its own"
        )
        self._withdraw(model, Withdrawal(reason, could_not_start=True))

    def _load(self, model: ServedModel) -> None:
        """Start the engine of a model."""
        if len(self._models.all) > 1:
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
        self._models.use(model)

    async def _unload(self, model: ServedModel) -> None:
        """End the engine of a model without jobs; its process's lock on the model's files ends too."""
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
        if self._models.served:
            log.error("%s cannot be served: %s", model.name, model.refusal)
        self._on_change(model)
        self._models.due.set()

    def _announced(self, model: ServedModel, announced: ModelAnnounced) -> str:
        """Store the description of a worker's only model from its engine; several are described before.

        Return why the engine must not serve: it has another model than the one it was started for. Else "".
        """
        if model.announced is None:
            model.announced = announced
            self._on_announced([announced])
        if announced.spec.name == model.name:
            return ""
        return f"its engine has {announced.spec.name!r} in place of {model.name!r}, and must not draw for it"

    def _changed(self, model: ServedModel, engine: EngineSupervisor) -> None:
        if model.engine is engine:  # otherwise it is being unloaded
            if engine.last_heartbeat is not None:
                model.fit = engine.last_heartbeat.fit
            self._on_change(model)
            self._models.due.set()

    def _became_ready(self, model: ServedModel, engine: EngineSupervisor) -> None:
        if model.loading_since is not None:
            model.load_seconds = asyncio.get_running_loop().time() - model.loading_since
            model.loading_since = None
            model.num_loads += 1
        model.token_budget, model.quantization = engine.token_budget, engine.quantization
        model.residency = engine.residency
        self._models.latest = engine
        self._starter.want_zygote()
