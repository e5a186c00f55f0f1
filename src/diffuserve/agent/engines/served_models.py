"""The models of one agent: which may be claimed for, which is to be loaded, and which it displaces."""

import asyncio
import itertools
from collections.abc import Mapping

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.supervisor import EngineSupervisor
from diffuserve.agent.engines.unloading import DEFAULT_SHARE, choose_unloads
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.domain.bounds import as_printable
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.workers.worker import LoadProgress
from diffuserve.protocol.messages import ToEngine
from diffuserve.telemetry.memory import memory_limit


class ServedModels:
    """All models of an agent, and what was decided about them; `Engines` loads and unloads them.

    A model that is to be loaded displaces the least recently used ones; an `ordered` one is loaded without a
    job. `latest` is the engine that became ready last, also after its end. A review is `due` whenever jobs or
    engines came or went.
    """

    def __init__(self, config: WorkerConfig, state: AgentState) -> None:
        self._config, self._state = config, state
        self._uses = itertools.count(1)
        self.due = asyncio.Event()
        self.latest: EngineSupervisor | None = None
        self.all = [ServedModel(process) for process in config.own_processes]
        self.ordered: ServedModel | None = None

    @property
    def is_ready(self) -> bool:
        return any(model.is_ready for model in self.all)

    @property
    def is_stalled(self) -> bool:
        return any(model.engine is not None and model.engine.is_stalled for model in self.all)

    @property
    def loading(self) -> LoadProgress | None:
        """The progress of the model that is being loaded; `None` without one."""
        engines = (model.engine for model in self.all if model.engine is not None)
        return next((engine.loading for engine in engines if engine.loading is not None), None)

    @property
    def with_peers(self) -> list[EngineSupervisor]:
        """The engines that fetch or give their models with peers."""
        engines = (model.engine for model in self.all)
        return [engine for engine in engines if engine is not None and engine.peer_report is not None]

    @property
    def quantization(self) -> str | None:
        """Quantization of the weights of all models; `None` while that of one is not known.

        Of several kinds it is the first that is one: then jobs that must be exact are not for this worker.
        """
        kinds = [model.kept_in for model in self.served]
        quantized = [kind for kind in kinds if kind not in (None, Quantization.NONE)]
        return quantized[0] if quantized else None if None in kinds else Quantization.NONE.value

    @property
    def pids(self) -> list[int]:
        """The processes of the engines."""
        links = (model.engine.link for model in self.all if model.engine is not None)
        return [link.pid for link in links if link is not None]

    @property
    def withdrawn(self) -> Mapping[str, str]:
        """The models that cannot be loaded, with the reasons."""
        return {model.name: as_printable(model.refusal) for model in self.all if model.is_withdrawn}

    def of(self, name: str) -> ServedModel | None:
        """Return the model of this name, unless it is withdrawn or was never offered."""
        return next((model for model in self.served if model.name == name), None)

    def may_load(self, model: ServedModel) -> bool:
        """Return whether a job may wait here until a model is loaded.

        None waits for the restart of an engine that has died: other workers may be quicker.
        """
        return len(self.all) > 1 and (model.is_cold or model.is_loading)

    def claimable(self) -> list[ServedModel]:
        """Return the models that jobs may be claimed for: none that is being displaced."""
        wanted = self.wanted()
        leaving = () if wanted is None else self.leaving(wanted)
        is_loading = wanted is not None or any(model.is_loading for model in self.all)
        return [
            model
            for model in self.served
            if (model.is_ready and model not in leaving) or (model.is_cold and not is_loading)
        ]

    def send(self, name: str, message: ToEngine) -> None:
        """Send a message to the engine of a model, if there is one."""
        model = self.of(name)
        if model is not None and model.engine is not None and model.engine.link is not None:
            model.engine.link.send(message)

    def drop_folder(self, attempt: str) -> None:
        """Delete the files of an attempt whose lease was lost, whichever engine has them."""
        links = (model.engine.link for model in self.all if model.engine is not None)
        for link in links:
            if link is not None:
                link.drop_folder(attempt)

    def add(self, model: ServedModel) -> None:
        """Serve another model, in place of a withdrawn one of its name."""
        self.all = [other for other in self.all if other.name != model.name or not other.is_withdrawn]
        self.all.append(model)

    def use(self, model: ServedModel) -> None:
        """Note that a job is for this model."""
        model.last_use = next(self._uses)

    def review(self) -> None:
        """Look again whether a model is to be loaded: jobs came or went."""
        self.due.set()

    @property
    def served(self) -> list[ServedModel]:
        """The models that are not withdrawn."""
        return [model for model in self.all if not model.is_withdrawn]

    def wanted(self) -> ServedModel | None:
        """Return the model to load next: one with a job, else the first while none is in memory."""
        if any(model.is_loading for model in self.all):
            return None
        awaited = [model for model in map(self.of, self._state.awaited_models) if model is not None]
        if cold := [model for model in awaited if model.is_cold]:
            return cold[0]
        if self.ordered is not None and self.ordered.is_cold:
            return self.ordered
        has_engine = any(model.engine is not None for model in self.served)
        return None if has_engine else next(iter(self.served), None)

    def leaving(self, wanted: ServedModel) -> list[ServedModel]:
        """Return the models that another one displaces."""
        in_memory = [model for model in self.served if model.engine is not None]
        names = choose_unloads((model.in_memory for model in in_memory), wanted.num_bytes, self.budget)
        return [model for model in in_memory if model.name in names]

    @property
    def budget(self) -> int | None:
        """Bytes for weights; `None` until an engine has reported its device."""
        if self._config.resident_bytes is not None:
            return self._config.resident_bytes
        if self.latest is None:
            return None
        return int(DEFAULT_SHARE * (self.latest.memory_limit_bytes or memory_limit()))
