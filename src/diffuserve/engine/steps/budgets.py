"""The budgets of the next step: tokens that are worth it, and memory that is left."""

from diffuserve.engine.config import EngineConfig
from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.decoding.decoder import Decoder
from diffuserve.engine.policy.scheduler import StepLimits
from diffuserve.engine.stages import Stage, StageExecutor
from diffuserve.engine.steps.adaptive_steps import AdaptiveSteps
from diffuserve.engine.steps.prompt_encoder import PromptEncoder

_MAX_AHEAD = 1 / 8  # of the memory, for requests that run by themselves and wait
_MIN_KNEE_TOKENS, _MAX_KNEE_TOKENS = 1_024, 65_536


class Budgets:
    """Says what a step may take.

    `memory_bytes` are shared with what is decoded, with kept prompts, and with what runs hold.
    """

    def __init__(  # noqa: PLR0913 (the parts of an engine that take memory or tokens)
        self,
        config: EngineConfig,
        memory_bytes: int,
        cost_model: CostModel,
        stages: StageExecutor,
        prompts: PromptEncoder,
        decoder: Decoder,
        adaptive: AdaptiveSteps,
    ) -> None:
        self._config, self.memory_bytes = config, memory_bytes
        self._cost_model, self._stages, self._prompts, self._decoder = cost_model, stages, prompts, decoder
        self._adaptive = adaptive

    @property
    def tokens(self) -> int:
        """Tokens that may ordinarily share a step: as configured, else the fit's knee for every core slot."""
        if self._config.token_budget is not None:
            return self._config.token_budget
        knee = min(max(self._cost_model.knee_tokens(), _MIN_KNEE_TOKENS), _MAX_KNEE_TOKENS)
        return knee * self._stages.num_core_slots(Stage.DENOISE)

    def limits(self) -> StepLimits:
        """Return the budgets of this moment."""
        held = self._prompts.parked_bytes
        room = self.memory_bytes - self._decoder.held_bytes - self._prompts.held_bytes - held
        encodes_ahead = held <= self.memory_bytes * _MAX_AHEAD
        tokens = self._adaptive.limited(self.tokens)
        return StepLimits(tokens, room, self._config.max_batch_size, encodes_ahead)
