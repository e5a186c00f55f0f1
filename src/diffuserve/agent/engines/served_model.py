"""A model that a worker may have in memory, and what the worker knows of it."""

from dataclasses import dataclass

from diffuserve.agent.engines.supervisor import EngineSupervisor
from diffuserve.agent.engines.unloading import ModelInMemory
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.residency import Residency
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import ModelAnnounced


@dataclass(eq=False)
class ServedModel:
    """A model, its engine while it is resident or being loaded, and the last engine's report.

    `last_use` is the sequence number of its last job among those of all models. `load_seconds` is the
    duration of the last of `num_loads` loads; `loading_since` is when the current one began. A model with a
    `refusal` is withdrawn: no engine could load it.
    """

    config: EngineProcessConfig
    announced: ModelAnnounced | None = None
    engine: EngineSupervisor | None = None
    token_budget: int | None = None
    quantization: str | None = None
    residency: Residency | None = None
    fit: CostFit | None = None
    last_use: int = 0
    num_loads: int = 0
    load_seconds: float = 0.0
    loading_since: float | None = None
    refusal: str = ""

    @property
    def name(self) -> str:
        """The name that jobs call it by; until it is announced the one that it was configured by."""
        return self.config.model if self.announced is None else self.announced.spec.name

    @property
    def kept_in(self) -> str | None:
        """Return what its weights are kept in, or will be once loaded; `None` while that is not known."""
        announced = None if self.announced is None else self.announced.quantization
        return self.quantization if self.quantization is not None else announced

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights on the device; of all weights until its engine reports which are offloaded."""
        if self.residency is not None and self.residency.device_bytes:
            return self.residency.device_bytes
        return 0 if self.announced is None else self.announced.num_bytes

    @property
    def may_be_smaller(self) -> bool:
        """True until it is known how many of its weights are offloaded to the host."""
        return self.config.offload is not Offload.NONE and self.residency is None

    @property
    def is_withdrawn(self) -> bool:
        return bool(self.refusal)

    @property
    def is_resident(self) -> bool:
        """True while its engine has it in memory, even if the engine is stuck."""
        return self.engine is not None and self.engine.has_model

    @property
    def is_ready(self) -> bool:
        return self.engine is not None and self.engine.is_ready

    @property
    def is_loading(self) -> bool:
        """True from its engine's start until the engine is first ready."""
        return self.engine is not None and not self.engine.was_ever_ready and not self.is_withdrawn

    @property
    def is_cold(self) -> bool:
        """True if it can be loaded but is not."""
        return self.engine is None and not self.is_withdrawn

    @property
    def in_memory(self) -> ModelInMemory:
        return ModelInMemory(self.name, self.num_bytes, self.last_use)
